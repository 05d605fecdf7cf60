"""The capacity circuit of a queue, and of queues that share a quota."""

from __future__ import annotations

from dataclasses import replace

from controller.core.circuits import CircuitLimits, after_a_wall, next_circuit
from controller.core.records import Circuit, QueueState
from tests.builders import NOW, ago, load

LIMITS = CircuitLimits(
    start_seconds=900, reason_dwell_seconds=300, cooldown_seconds=600, cooldown_max_seconds=7200, probe_size=2
)
CLOSED = QueueState(name="g6e")
REASON = "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill"


def turn(state: QueueState, **seen: object) -> QueueState:
    return next_circuit(state, load(**seen), NOW, LIMITS, jitter=0.5)


def test_never_on_first_sight() -> None:
    fresh = replace(CLOSED, blocked_reason=REASON, blocked_since=ago(10))
    assert turn(fresh, queued=5, oldest_queued_at=ago(20)) is fresh


def test_a_reason_that_stands_opens() -> None:
    state = replace(CLOSED, blocked_reason=REASON, blocked_since=ago(301))
    opened = turn(state, queued=5, running=3, oldest_queued_at=ago(400))
    assert opened.circuit is Circuit.OPEN
    assert opened.cooldown_seconds == 600
    assert opened.retry_at is not None


def test_a_start_after_the_reason_disproves_it() -> None:
    state = replace(CLOSED, blocked_reason=REASON, blocked_since=ago(301))
    assert turn(state, queued=5, running=1, oldest_queued_at=ago(400), last_started_at=ago(100)) == CLOSED


def test_a_reason_that_comes_back_after_a_start_counts_from_then() -> None:
    """One that was noted hours ago must neither open the circuit at once nor keep it closed for good."""
    again = replace(CLOSED, blocked_reason=REASON, blocked_since=ago(299))
    seen: dict[str, object] = {"queued": 5, "running": 1, "oldest_queued_at": ago(9000), "last_started_at": ago(3000)}
    assert turn(again, **seen).circuit is Circuit.CLOSED
    assert turn(replace(again, blocked_since=ago(300)), **seen).circuit is Circuit.OPEN


def test_misconfiguration_is_not_capacity() -> None:
    state = replace(CLOSED, blocked_reason="MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - x", blocked_since=ago(999))
    assert turn(state, queued=5, running=1, oldest_queued_at=ago(400)) is state


def test_silence_alone_opens_when_nothing_starts() -> None:
    assert turn(CLOSED, queued=5, oldest_queued_at=ago(901)).circuit is Circuit.OPEN
    assert turn(CLOSED, queued=5, oldest_queued_at=ago(899)) is CLOSED
    assert turn(CLOSED, queued=5, running=2, oldest_queued_at=ago(5000)) is CLOSED
    assert turn(CLOSED, queued=0) is CLOSED
    assert turn(CLOSED, queued=5, oldest_queued_at=ago(5000), last_busy_at=ago(10)) is CLOSED


def test_probe_after_cool_down_then_closed_or_doubled() -> None:
    waiting = QueueState(name="g6e", circuit=Circuit.OPEN, circuit_changed_at=ago(600), retry_at=ago(1))
    half = turn(waiting)
    assert half.circuit is Circuit.HALF_OPEN
    probed = replace(half, circuit_changed_at=ago(901), cooldown_seconds=600)
    assert turn(probed, running=1, last_started_at=ago(5)).circuit is Circuit.CLOSED
    again = turn(probed, queued=2, oldest_queued_at=ago(901))
    assert (again.circuit, again.cooldown_seconds) == (Circuit.OPEN, 1200)


def test_a_canary_that_starts_before_the_cool_down_closes_at_once() -> None:
    opened = QueueState(name="g6e", circuit=Circuit.OPEN, circuit_changed_at=ago(100), retry_at=ago(-900))
    assert turn(opened, queued=1, running=1, last_started_at=ago(5)).circuit is Circuit.CLOSED


def test_a_fresh_probe_has_its_dwell() -> None:
    half = QueueState(
        name="g6e",
        circuit=Circuit.HALF_OPEN,
        circuit_changed_at=ago(10),
        blocked_reason=REASON,
        blocked_since=ago(400),
    )
    assert turn(half, queued=2, oldest_queued_at=ago(4000)) is half


def test_cool_down_is_capped() -> None:
    probed = QueueState(name="g6e", circuit=Circuit.HALF_OPEN, circuit_changed_at=ago(999), cooldown_seconds=7000)
    assert turn(probed, queued=1, oldest_queued_at=ago(999)).cooldown_seconds == 7200


def test_queues_that_were_dry_together_are_tried_together() -> None:
    before = {name: QueueState(name=name, circuit=Circuit.OPEN) for name in ("g6e", "g6", "g5")}
    after = {**before, "g6": QueueState(name="g6")}
    states = after_a_wall([["g6e", "g6", "g5"]], before, after, NOW)
    assert {name: state.circuit for name, state in states.items()} == {
        "g6e": Circuit.HALF_OPEN,
        "g6": Circuit.CLOSED,
        "g5": Circuit.HALF_OPEN,
    }
    assert after_a_wall([["g6e"], ["g6"], ["g5"]], before, after, NOW) == after
    one_was_closed = {**before, "g5": QueueState(name="g5")}
    assert after_a_wall([["g6e", "g6", "g5"]], one_was_closed, after, NOW) == after
