"""The capacity of a queue as a circuit: one per queue, never per shard.

Batch gives a capacity reason only to the head of a queue, and sometimes none, so a circuit opens on either sign: a
CAPACITY reason that stands for its dwell, or waiting attempts of which none starts. It never opens on first sight.
While it is open nothing new is sent, but a canary keeps waiting there: waiting costs nothing, and its start is the
first sign of capacity. After a cool-down with jitter a missing canary is sent (half open); one start closes the
circuit, a probe that waits as long as the others did opens it again for twice as long. Running work never moves.

All families share one vCPU quota. When every queue of a quota is dry at once nothing is moved between them, since
the others are no better. The first start of any gives all of them a fresh clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from controller.core.records import Circuit, QueueLoad, QueueState


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
    state = _without_old_reason(state, load)
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


def after_a_wall(
    groups: Sequence[Sequence[str]], before: Mapping[str, QueueState], after: dict[str, QueueState], now: datetime
) -> dict[str, QueueState]:
    """Queues that were dry together are tried together: the first start in a group half opens the others of it."""
    states = dict(after)
    for group in groups:
        walled = len(group) > 1 and all(before[name].circuit is not Circuit.CLOSED for name in group)
        if not walled or all(after[name].circuit is not Circuit.CLOSED for name in group):
            continue
        for name in group:
            if states[name].circuit is Circuit.OPEN:
                states[name] = replace(states[name], circuit=Circuit.HALF_OPEN, circuit_changed_at=now)
    return states


def _without_old_reason(state: QueueState, load: QueueLoad) -> QueueState:
    """A reason from before the last start says nothing of the head that waits now; Batch repeats it if it stands."""
    since, started = state.blocked_since, load.last_started_at
    if since is None or started is None or started <= since:
        return state
    return replace(state, blocked_reason=None, blocked_since=None)


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
    if state.circuit_changed_at is not None and now - state.circuit_changed_at < timedelta(
        seconds=limits.reason_dwell_seconds
    ):
        return False
    stands = now - state.blocked_since >= timedelta(seconds=limits.reason_dwell_seconds)
    return stands and state.blocked_reason.startswith(_CAPACITY_REASONS)


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
