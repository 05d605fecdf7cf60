"""What waits in the wrong queue: who gives back what has not started, and how the last of the work is shared out.

While there is work for every queue it does not matter where what waits is waiting, as long as each queue has enough.
It matters when a queue is dry, or fuller than it can start soon, and when the work ends: then the last shards must not
wait in one queue while another has nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.core.decisions import StopUnstarted
from controller.core.placement import QueueSpec
from controller.core.records import Waiting
from schema.states import StopIntent


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A queue as the last of the work sees it: `slots` shards at once, each for `seconds` (any unit, one for all)."""

    name: str
    slots: int
    seconds: float
    waiting: int


def shares(lanes: Sequence[Lane], work: int) -> dict[str, int]:
    """How many of `work` waiting shards each lane takes so that the last one ends soonest.

    By the time t a lane with n slots that end evenly has started n * t / seconds of them, and those end `seconds`
    later; so one level of time is found at which all lanes together have ended them all.
    """
    able = [lane for lane in lanes if lane.slots > 0]
    if not able:
        return {}
    low, high = 0.0, max(lane.seconds for lane in able) * (2 + work / sum(lane.slots for lane in able))
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(_ended(able, middle).values()) >= work else (middle, high)
    found = _ended(able, high)
    fastest = min(able, key=lambda lane: lane.seconds).name
    found[fastest] += max(0, work - sum(found.values()))
    return {lane.name: found.get(lane.name, 0) for lane in lanes}


def _ended(lanes: Sequence[Lane], level: float) -> dict[str, int]:
    return {lane.name: int(lane.slots * max(0.0, level / lane.seconds - 1)) for lane in lanes}


def surplus(lanes: Sequence[Lane], wanted: Mapping[str, int]) -> dict[str, int]:
    """What lanes hold over their share, where it is worth the trouble of moving it."""
    over = {lane.name: lane.waiting - wanted.get(lane.name, 0) for lane in lanes}
    slack = {lane.name: max(1, lane.slots // 50) if lane.slots else 0 for lane in lanes}
    return {name: count for name, count in over.items() if count > slack[name]}


def give_back(
    surplus: Mapping[str, int],
    takers: Mapping[str, int],
    waiting: Sequence[Waiting],
    orders: Mapping[str, Sequence[QueueSpec]],
) -> list[StopUnstarted]:
    """Stop up to so many unstarted attempts of each queue: of requests that another queue may run, for which `takers`
    has the room."""
    stops: list[StopUnstarted] = []
    left, rooms = dict(surplus), dict(takers)
    for held in waiting:
        others = [queue.name for queue in orders.get(held.request_id, ()) if queue.name != held.queue]
        count = min(left.get(held.queue, 0), held.attempts, sum(rooms.get(name, 0) for name in others))
        if count <= 0:
            continue
        left[held.queue] -= count
        taken = count
        for name in others:
            part = min(taken, rooms.get(name, 0))
            rooms[name], taken = rooms.get(name, 0) - part, taken - part
        stops.append(_stop(held, count))
    return stops


def withdraw(surplus: Mapping[str, int], waiting: Sequence[Waiting]) -> list[StopUnstarted]:
    """Stop up to so many of each queue, whether or not another queue can take them now."""
    stops: list[StopUnstarted] = []
    left = dict(surplus)
    for held in waiting:
        count = min(left.get(held.queue, 0), held.attempts)
        if count > 0:
            left[held.queue] -= count
            stops.append(_stop(held, count))
    return stops


def _stop(held: Waiting, count: int) -> StopUnstarted:
    return StopUnstarted(queue=held.queue, intent=StopIntent.FALL_BACK, request_id=held.request_id, attempts=count)
