"""Which queue next. Capacity is a circuit per queue, never per shard.

Batch gives a capacity reason only to the head of a queue, and sometimes none, so a circuit opens on either sign: a
CAPACITY reason that stands for its dwell, or waiting attempts of which none starts. It never opens on first sight.
After a cool-down with jitter a small probe goes out (half open); one start closes the circuit, a probe that waits
as long as the others did opens it again for twice as long. Running work never moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from controller.core.records import Circuit, QueueLoad, QueueState, Request, Shard
from schema.states import Outcome


@dataclass(frozen=True, kw_only=True)
class QueueSpec:
    """What the settings say of a queue; the order of a sequence of them is the order of preference."""

    name: str
    max_live: int
    backlog: int
    price_usd_per_hour: float
    on_demand: bool = False
    multi_node: bool = False


@dataclass(frozen=True, kw_only=True)
class CircuitLimits:
    """From settings.Placement; seconds."""

    start_seconds: float
    reason_dwell_seconds: float
    cooldown_seconds: float
    cooldown_max_seconds: float
    probe_size: int


_CAPACITY_REASONS = ("CAPACITY:", "UNDETERMINED")


def next_circuit(state: QueueState, load: QueueLoad, now: datetime, limits: CircuitLimits, jitter: float) -> QueueState:
    """The queue's state after looking at its load; unchanged when nothing is to say."""
    changed = state.circuit_changed_at
    started_since = load.last_started_at is not None and (changed is None or load.last_started_at > changed)
    if state.circuit is Circuit.CLOSED:
        return _opened(state, now, limits, jitter) if _is_dry(state, load, now, limits) else state
    if started_since:
        return replace(state, circuit=Circuit.CLOSED, circuit_changed_at=now, retry_at=None, cooldown_seconds=0.0)
    if state.circuit is Circuit.OPEN:
        due = state.retry_at is not None and now >= state.retry_at
        return replace(state, circuit=Circuit.HALF_OPEN, circuit_changed_at=now) if due else state
    return _opened(state, now, limits, jitter) if _is_dry(state, load, now, limits) else state


def _is_dry(state: QueueState, load: QueueLoad, now: datetime, limits: CircuitLimits) -> bool:
    if not load.queued or load.oldest_queued_at is None:
        return False
    patience = timedelta(seconds=limits.start_seconds)
    signs = [load.oldest_queued_at, load.last_started_at, load.last_busy_at, state.circuit_changed_at]
    last_progress = max(filter(None, signs))
    # While something runs, its end frees room: only a reason may call such a queue dry.
    if not load.running and now - last_progress >= patience:
        return True
    if state.blocked_reason is None or state.blocked_since is None:
        return False
    stands = now - state.blocked_since >= timedelta(seconds=limits.reason_dwell_seconds)
    started_after = load.last_started_at is not None and load.last_started_at > state.blocked_since
    return stands and not started_after and state.blocked_reason.startswith(_CAPACITY_REASONS)


def _opened(state: QueueState, now: datetime, limits: CircuitLimits, jitter: float) -> QueueState:
    doubled = state.cooldown_seconds * 2 if state.cooldown_seconds else limits.cooldown_seconds
    cooldown = min(doubled, limits.cooldown_max_seconds)
    retry_at = now + timedelta(seconds=cooldown * (0.75 + jitter / 2))
    return replace(
        state,
        circuit=Circuit.OPEN,
        circuit_changed_at=now,
        retry_at=retry_at,
        cooldown_seconds=cooldown,
        blocked_reason=None,
        blocked_since=None,
    )


def room(spec: QueueSpec, state: QueueState, load: QueueLoad, limits: CircuitLimits) -> int:
    """How many attempts the queue takes now. A queue's backlog stays shallow so that a dry spell strands little."""
    if state.paused or state.circuit is Circuit.OPEN:
        return 0
    waiting = load.submitting + load.queued
    if state.circuit is Circuit.HALF_OPEN:
        return max(0, limits.probe_size - waiting)
    return max(0, min(spec.max_live - waiting - load.running, spec.backlog - waiting))


def place(
    shards: Sequence[Shard],
    requests: Mapping[str, Request],
    queues: Sequence[QueueSpec],
    rooms: Mapping[str, int],
) -> list[tuple[str, Shard]]:
    """A queue for each shard that fits, in the order given: the first allowed one with room.

    A shard that a queue reclaimed twice running goes elsewhere if anything else is open.
    """
    left = dict(rooms)
    placed: list[tuple[str, Shard]] = []
    for shard in shards:
        request = requests[shard.request_id]
        choices = [q for q in _allowed(request, queues) if left.get(q.name, 0) > 0]
        elsewhere = [q for q in choices if not _avoid(shard, q)]
        for queue in (elsewhere or choices)[:1]:
            left[queue.name] -= 1
            placed.append((queue.name, shard))
    return placed


def _allowed(request: Request, queues: Sequence[QueueSpec]) -> list[QueueSpec]:
    usable = [q for q in queues if q.multi_node or not request.multi_node]
    if request.queues is None:
        return usable
    by_name = {q.name: q for q in usable}
    return [by_name[name] for name in request.queues if name in by_name]


def _avoid(shard: Shard, queue: QueueSpec) -> bool:
    unlucky = shard.last_outcome in (Outcome.HOST_SICK, Outcome.HOST_LOST, Outcome.MISCONFIGURED)
    return unlucky and shard.last_queue == queue.name
