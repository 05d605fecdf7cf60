"""One dispatch cycle: aggregates and a bounded page in, decisions out.

1. Look at every queue's load and move its circuit; a quota that is dry as a whole counts as one.
2. Count the room of each queue, within the caps and the quotas.
3. Place the page of due shards, preferred queue first; the last of the work where it ends soonest. While more is due
   than that takes, dry queues are filled as well: waiting costs nothing, and capacity that comes back finds work.
4. What waits in a dry or full queue goes back if another queue can take it.
5. Cut the placed shards into array jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime

from controller.core.backlogs import Lane, give_back, shares, surplus, withdraw
from controller.core.batching import batches
from controller.core.circuits import after_a_wall, next_circuit
from controller.core.decisions import Decision, KeepQueue, StopUnstarted
from controller.core.placement import Choice, PlacementLimits, QueueSpec, depth, place, room
from controller.core.quotas import at_the_wall, groups, within_quotas
from controller.core.records import Circuit, QueueLoad, QueueState, Request, Shard, Waiting
from schema.states import StopIntent


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What one cycle sees; `shards` is a page, in the order they shall be served.

    `requests` holds those of the page and of `waiting`. `page_full`: more shards are due than the page holds.
    `speeds` (assets per second of one attempt by model and queue) and `quota_vcpus` are what is known of them.
    """

    queues: Sequence[QueueSpec]
    states: Mapping[str, QueueState]
    loads: Mapping[str, QueueLoad]
    shards: Sequence[Shard]
    requests: Mapping[str, Request]
    limits: PlacementLimits
    array_max: int
    jitter: float
    waiting: Sequence[Waiting] = ()
    page_full: bool = False
    frozen: bool = False
    needs_mib: Mapping[str, int] = field(default_factory=dict[str, int])
    quota_vcpus: Mapping[str, int] = field(default_factory=dict[str, int])
    speeds: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])


def plan(seen: Situation, now: datetime) -> list[Decision]:
    loads = {spec.name: seen.loads.get(spec.name, QueueLoad(name=spec.name)) for spec in seen.queues}

    # 1. circuits
    states, decisions = _circuits(seen, loads, now)

    # 2. room
    rooms = {spec.name: room(spec, states[spec.name], loads[spec.name], seen.limits) for spec in seen.queues}
    rooms = within_quotas(rooms, seen.queues, loads, seen.quota_vcpus, seen.limits.stall_seconds, now)

    # 3. place
    orders = _orders(seen, states)
    wishes, over = _last_of_the_work(seen, states, loads, rooms, now)
    placed = [] if seen.frozen else place(seen.shards, orders, rooms, wishes)
    spare = _spare(seen, placed)
    placed += place(spare, orders, _dry_rooms(seen, states, loads, rooms))

    # 4. give back
    if not seen.frozen:
        behind = frozenset(shard.request_id for shard in spare)
        decisions += _give_back(seen, states, loads, rooms, orders, over, behind)

    # 5. jobs
    decisions += batches(placed, dict(seen.requests), seen.array_max)
    return decisions


def _circuits(
    seen: Situation, loads: Mapping[str, QueueLoad], now: datetime
) -> tuple[dict[str, QueueState], list[Decision]]:
    before = {spec.name: seen.states.get(spec.name, QueueState(name=spec.name)) for spec in seen.queues}
    states = {name: next_circuit(state, loads[name], now, seen.limits, seen.jitter) for name, state in before.items()}
    together = [[spec.name for spec in group if not before[spec.name].paused] for group in groups(seen.queues)]
    states = after_a_wall(together, before, states, now)
    return states, [KeepQueue(state=state) for name, state in states.items() if state != before[name]]


def _orders(seen: Situation, states: Mapping[str, QueueState]) -> dict[str, Sequence[QueueSpec]]:
    choice = Choice(
        queues=seen.queues,
        order=seen.limits.order,
        cost_spread=seen.limits.cost_spread,
        needs_mib=seen.needs_mib,
        speeds=seen.speeds,
    )
    dry = frozenset(name for name, state in states.items() if state.circuit is not Circuit.CLOSED or state.paused)
    return {request.id: choice.of(request, dry) for request in seen.requests.values()}


def _spare(seen: Situation, placed: Sequence[tuple[str, Shard]]) -> list[Shard]:
    """What is left of a full page: more than every queue with capacity takes now."""
    if seen.frozen or not seen.page_full:
        return []
    taken = {(shard.request_id, shard.shard) for _, shard in placed}
    return [shard for shard in seen.shards if (shard.request_id, shard.shard) not in taken]


def _dry_rooms(
    seen: Situation, states: Mapping[str, QueueState], loads: Mapping[str, QueueLoad], rooms: Mapping[str, int]
) -> dict[str, int]:
    """How much more each queue without capacity would take if it had any; nothing behind the wall of a quota."""
    walled = {spec.name for spec in at_the_wall(seen.queues, states, seen.quota_vcpus)}
    found: dict[str, int] = {}
    for spec in seen.queues:
        state = states[spec.name]
        if state.circuit is not Circuit.CLOSED and spec.name not in walled:
            whole = room(spec, replace(state, circuit=Circuit.CLOSED), loads[spec.name], seen.limits)
            found[spec.name] = max(0, whole - rooms[spec.name])
    return found


def _last_of_the_work(
    seen: Situation,
    states: Mapping[str, QueueState],
    loads: Mapping[str, QueueLoad],
    rooms: Mapping[str, int],
    now: datetime,
) -> tuple[dict[str, int], dict[str, int]]:
    """When all that is due has room: (what each queue should get of it, what a queue should give to the others)."""
    stranded = any(state.circuit is not Circuit.CLOSED and loads[name].waiting for name, state in states.items())
    moving = stranded or any(load.running for load in loads.values())
    if seen.page_full or len(seen.shards) > sum(rooms.values()) or not moving:
        return {}, {}
    starting = {
        name
        for name, load in loads.items()
        if states[name].circuit is Circuit.CLOSED and not load.stalled(seen.limits.stall_seconds, now)
    }
    able = [loads[spec.name] for spec in seen.queues if not states[spec.name].paused]
    lanes = [_lane(seen, load, load.name in starting) for load in able]
    wanted = shares(lanes, sum(lane.waiting for lane in lanes) + len(seen.shards))
    if not wanted:
        return {}, {}
    over = surplus([lane for lane in lanes if lane.name not in starting], wanted)
    dry = {lane.name for lane in lanes if states[lane.name].circuit is not Circuit.CLOSED}
    behind = sum(lane.waiting - lane.slots // 10 for lane in lanes if lane.name not in dry)
    if behind > 0:  # a canary loses nothing by waiting where it is, and may find capacity for the others
        over |= {name: over[name] - seen.limits.probe_size for name in dry & over.keys()}
    return {lane.name: max(0, wanted[lane.name] - lane.waiting) for lane in lanes}, over


def _lane(seen: Situation, load: QueueLoad, starting: bool) -> Lane:
    """`starting`: instances may be coming up for all that it was given. One that has started all of it, or is idle, may
    be good for more."""
    slots = load.running
    if starting:
        slots = slots + load.waiting if load.waiting else 2 * max(slots, seen.limits.probe_size)
    speeds = [by_queue[load.name] for by_queue in seen.speeds.values() if load.name in by_queue]
    seconds = len(speeds) / sum(speeds) if speeds and sum(speeds) > 0 else 1.0
    return Lane(name=load.name, slots=slots, seconds=seconds, waiting=load.waiting)


def _give_back(
    seen: Situation,
    states: Mapping[str, QueueState],
    loads: Mapping[str, QueueLoad],
    rooms: Mapping[str, int],
    orders: Mapping[str, Sequence[QueueSpec]],
    over: Mapping[str, int],
    behind: Set[str],
) -> list[StopUnstarted]:
    """`behind`: requests with more to place than all queues take; theirs may wait in a dry queue as well as here."""
    paused = [name for name, state in states.items() if state.paused and loads[name].waiting > 0]
    stops = [StopUnstarted(queue=name, intent=StopIntent.PAUSE) for name in paused]
    dry = {name for name, state in states.items() if state.circuit is not Circuit.CLOSED}
    patient: Counter[str] = Counter()
    restless: list[Waiting] = []
    for held in seen.waiting:
        if held.queue in dry and held.request_id in behind:
            patient[held.queue] += held.attempts
        else:
            restless.append(held)
    surpluses = dict(over)
    for spec in seen.queues:
        state, load = states[spec.name], loads[spec.name]
        if not state.paused and state.circuit is not Circuit.HALF_OPEN:
            excess = load.waiting - max(depth(spec, state, load, seen.limits), patient[spec.name])
            surpluses[spec.name] = max(excess, surpluses.get(spec.name, 0))
    held_back = {
        spec.name: loads[spec.name].waiting - seen.limits.probe_size
        for spec in at_the_wall(seen.queues, states, seen.quota_vcpus)
        if not states[spec.name].paused
    }
    stops += withdraw(held_back, seen.waiting)
    surpluses = {name: count for name, count in surpluses.items() if name not in held_back}
    takers = {name: count for name, count in rooms.items() if states[name].circuit is Circuit.CLOSED}
    return stops + give_back(surpluses, takers, restless, orders)
