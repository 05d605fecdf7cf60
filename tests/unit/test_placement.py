"""Circuits and the choice of a queue."""

from __future__ import annotations

from dataclasses import replace

from controller.core.cycle import Situation, plan
from controller.core.decisions import KeepQueue, StartAttempts, StopUnstarted
from controller.core.placement import CircuitLimits, QueueSpec, next_circuit, place, room
from controller.core.records import Circuit, QueueState
from schema.states import Outcome, StopIntent
from tests.builders import NOW, ago, load, request, shard

LIMITS = CircuitLimits(
    start_seconds=900, reason_dwell_seconds=300, cooldown_seconds=600, cooldown_max_seconds=7200, probe_size=2
)
QUEUES = [
    QueueSpec(name=name, max_live=100, backlog=10, price_usd_per_hour=1.0, multi_node=name == "ondemand")
    for name in ("g6e", "g6", "g5", "ondemand")
]
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


def test_a_start_after_the_reason_keeps_it_closed() -> None:
    state = replace(CLOSED, blocked_reason=REASON, blocked_since=ago(301))
    assert turn(state, queued=5, running=1, oldest_queued_at=ago(400), last_started_at=ago(100)) is state


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


def test_cool_down_is_capped() -> None:
    probed = QueueState(name="g6e", circuit=Circuit.HALF_OPEN, circuit_changed_at=ago(999), cooldown_seconds=7000)
    assert turn(probed, queued=1, oldest_queued_at=ago(999)).cooldown_seconds == 7200


def test_room_keeps_the_backlog_shallow() -> None:
    spec = QUEUES[0]
    assert room(spec, CLOSED, load(queued=4, submitting=1), LIMITS) == 5
    assert room(spec, CLOSED, load(running=98), LIMITS) == 2
    assert room(spec, CLOSED, load(running=100, queued=3), LIMITS) == 0
    assert room(spec, replace(CLOSED, circuit=Circuit.OPEN), load(), LIMITS) == 0
    assert room(spec, replace(CLOSED, circuit=Circuit.HALF_OPEN), load(queued=1), LIMITS) == 1
    assert room(spec, replace(CLOSED, paused=True), load(), LIMITS) == 0


def test_preferred_first_then_overflow() -> None:
    shards = [shard(i) for i in range(5)]
    placed = place(shards, {"r-1": request()}, QUEUES, {"g6e": 2, "g6": 2, "g5": 9, "ondemand": 9})
    assert [name for name, _ in placed] == ["g6e", "g6e", "g6", "g6", "g5"]


def test_only_the_queues_the_request_allows() -> None:
    allowed = request(body={"queues": ["g5", "g6"]})
    placed = place([shard(i) for i in range(3)], {"r-1": allowed}, QUEUES, dict.fromkeys(["g6e", "g6", "g5"], 2))
    assert [name for name, _ in placed] == ["g5", "g5", "g6"]


def test_multi_node_only_where_a_definition_for_it_exists() -> None:
    wanted = request(body={"mode": "multi_node"})
    placed = place([shard()], {"r-1": wanted}, QUEUES, dict.fromkeys(["g6e", "g6", "g5", "ondemand"], 2))
    assert [name for name, _ in placed] == ["ondemand"]


def test_sick_host_goes_elsewhere_if_there_is_elsewhere() -> None:
    unlucky = shard(last_outcome=Outcome.HOST_SICK, last_queue="g6e")
    both = place([unlucky], {"r-1": request()}, QUEUES, {"g6e": 1, "g6": 1})
    alone = place([unlucky], {"r-1": request()}, QUEUES, {"g6e": 1})
    assert ([q for q, _ in both], [q for q, _ in alone]) == (["g6"], ["g6e"])


def situation(**changes: object) -> Situation:
    base: dict[str, object] = {
        "queues": QUEUES,
        "states": {},
        "loads": {},
        "shards": [],
        "requests": {"r-1": request()},
        "circuit_limits": LIMITS,
        "array_max": 4,
        "jitter": 0.5,
    }
    return Situation(**{**base, **changes})  # type: ignore[arg-type]


def test_cycle_cuts_a_long_lot_evenly() -> None:
    decisions = plan(situation(shards=[shard(i) for i in range(9)]), NOW)
    sizes = [len(d.shards) for d in decisions if isinstance(d, StartAttempts)]
    assert sizes == [3, 3, 3]
    seen = sorted(s.shard for d in decisions if isinstance(d, StartAttempts) for s in d.shards)
    assert seen == list(range(9))


def test_cycle_falls_back_when_a_queue_runs_dry() -> None:
    dry = {"g6e": load(queued=5, oldest_queued_at=ago(1000))}
    decisions = plan(situation(loads=dry, shards=[shard()]), NOW)
    assert [d.state.circuit for d in decisions if isinstance(d, KeepQueue)] == [Circuit.OPEN]
    assert StopUnstarted(queue="g6e", intent=StopIntent.FALL_BACK) in decisions
    assert [d.queue for d in decisions if isinstance(d, StartAttempts)] == ["g6"]


def test_cycle_keeps_waiting_when_everything_is_dry() -> None:
    dry = {name: load(name, queued=5, oldest_queued_at=ago(1000)) for name in ("g6e", "g6", "g5", "ondemand")}
    decisions = plan(situation(loads=dry), NOW)
    assert not [d for d in decisions if isinstance(d, StopUnstarted)]
