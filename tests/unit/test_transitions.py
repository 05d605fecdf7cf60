"""State and fact in, guarded changes out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.core import transitions
from controller.core.changes import ShardChange
from controller.core.facts import JobView
from controller.core.retry import Limits
from schema.exit_codes import ExitCode
from schema.messages import ReportKind, WorkerReport
from schema.states import MOVES, AttemptState, Outcome, RequestState, ShardState, StopIntent, diagram
from tests.builders import NOW, ago, attempt, marker, request, shard

LIMITS = Limits(failures=4, backoff_seconds=30, backoff_max_seconds=900, isolate_after=2)
ASSIGNED = shard(state=ShardState.ASSIGNED, attempt_id="a-0")


def report(**changes: object) -> WorkerReport:
    base: dict[str, object] = {
        "attempt_id": "a-0",
        "token": "t-0",
        "kind": ReportKind.HEARTBEAT,
        "seq": 3,
        "request_id": "r-1",
    }
    return WorkerReport(**{**base, **changes})  # type: ignore[arg-type]


def view(status: str, **changes: object) -> JobView:
    base: dict[str, object] = {"batch_job_id": "b:0", "name": "n", "queue": "g6e", "status": status}
    return JobView(**{**base, **changes})  # type: ignore[arg-type]


def settle(ended, of=ASSIGNED, history=(), commit=None):
    return transitions.settle(ended, of, history, marker=commit, done=False, now=NOW, limits=LIMITS, jitter=0.5)


def test_a_heartbeat_may_overtake_the_answer_of_submitjob() -> None:
    change = transitions.heard(attempt(state=AttemptState.SUBMITTING, started_at=None), report(), NOW)
    assert change is not None
    assert (change.to, change.seq, change.values["started_at"]) == (AttemptState.RUNNING, 3, NOW)


@pytest.mark.parametrize("stale", [report(token="other"), report()], ids=["foreign token", "ended attempt"])
def test_stale_reports_change_nothing(stale: WorkerReport) -> None:
    state = AttemptState.ENDED if stale.token == "t-0" else AttemptState.RUNNING
    assert transitions.heard(attempt(state=state), stale, NOW) is None


def test_the_first_batch_id_that_reports_is_bound() -> None:
    first = transitions.heard(attempt(), report(batch_job_id="b:0"), NOW)
    second = transitions.heard(attempt(batch_job_id="b:0"), report(batch_job_id="c:0"), NOW)
    assert first is not None
    assert second is not None
    assert first.values["batch_job_id"] == second.values["batch_job_id"] == "b:0"


def test_batch_status_never_takes_an_end_back() -> None:
    assert transitions.observed(attempt(batch_ended_at=ago(1)), view("RUNNING"), NOW) is None


def test_running_seen_by_batch_starts_the_attempt() -> None:
    queued = attempt(state=AttemptState.QUEUED, started_at=None)
    change = transitions.observed(queued, view("RUNNING"), NOW)
    assert change is not None
    assert change.to is AttemptState.RUNNING


def test_failed_without_a_start_stays_unstarted() -> None:
    queued = attempt(state=AttemptState.QUEUED, started_at=None)
    change = transitions.observed(queued, view("FAILED", status_reason="cancelled"), NOW)
    assert change is not None
    assert change.to is None
    assert "started_at" not in change.values
    assert change.values["batch_ended_at"] == NOW


def test_lost_needs_misses_and_silence() -> None:
    silent = attempt(misses=3, last_contact_at=ago(901))
    assert transitions.is_lost(silent, NOW, 900, 3)
    assert not transitions.is_lost(replace(silent, misses=2), NOW, 900, 3)
    assert not transitions.is_lost(replace(silent, last_contact_at=ago(899)), NOW, 900, 3)


def test_batch_s_word_waits_for_the_report() -> None:
    ended = attempt(batch_ended_at=ago(5))
    assert not transitions.has_ended(ended, NOW, 20)
    assert transitions.has_ended(ended, NOW, 5)
    assert transitions.has_ended(replace(ended, started_at=None), NOW, 20)
    assert transitions.has_ended(attempt(worker_ended_at=NOW), NOW, 20)


def test_a_marker_finishes_the_shard_whoever_wrote_it() -> None:
    settled = settle(attempt(batch_status="FAILED", batch_exit_code=1), commit=marker(ASSIGNED, attempt_id="a-9"))
    assert settled.outcome is Outcome.SUCCEEDED
    assert settled.shard is not None
    assert settled.shard.to is ShardState.SUCCEEDED
    assert settled.shard.values["ok"] == 40


@pytest.mark.parametrize("state", [ShardState.FAILED, ShardState.CANCELLED, ShardState.SUCCEEDED])
def test_i3_a_terminal_shard_is_left_alone(state: ShardState) -> None:
    assert settle(attempt(), shard(state=state), commit=marker(ASSIGNED)).shard is None


def test_an_attempt_that_is_not_the_current_one_moves_no_shard() -> None:
    other = replace(ASSIGNED, attempt_id="a-7")
    assert settle(attempt(worker_exit_code=1), other).shard is None


def test_retry_and_give_up() -> None:
    crashed = attempt(worker_exit_code=ExitCode.CRASHED, worker_error="boom")
    first = settle(crashed)
    assert first.attempt.values["reason"] == "boom"
    assert first.shard is not None
    assert first.shard.to is ShardState.PENDING
    before = [attempt(i, state=AttemptState.ENDED, outcome=Outcome.CRASHED) for i in range(1, 4)]
    last = settle(crashed, history=before)
    assert last.shard is not None
    assert last.shard.to is ShardState.FAILED
    assert "4 failures" in last.shard.values["reason"]


def test_poison_is_remembered_by_the_shard() -> None:
    settled = settle(attempt(worker_exit_code=1, poison=(7,)), replace(ASSIGNED, poison=(2,)))
    assert settled.shard is not None
    assert settled.shard.values["poison"] == (2, 7)


def test_cancel_intent_cancels_the_shard() -> None:
    settled = settle(attempt(stop_intent=StopIntent.CANCEL, batch_exit_code=143))
    assert settled.shard is not None
    assert settled.shard.to is ShardState.CANCELLED


def test_requeue_opens_a_generation() -> None:
    change = transitions.requeued(shard(state=ShardState.FAILED, isolate=(3,)), NOW)
    assert (change.values["generation"], change.to) == (2, ShardState.PENDING)


def test_illegal_moves_cannot_be_built() -> None:
    with pytest.raises(AssertionError, match="illegal move"):
        ShardChange(request_id="r", shard=0, expected=frozenset({ShardState.SUCCEEDED}), to=ShardState.FAILED)
    with pytest.raises(AssertionError, match="illegal move"):
        transitions.moved(request(state=RequestState.ACCEPTED), RequestState.SUCCEEDED, NOW)


def test_too_late_to_cancel() -> None:
    assert transitions.cancel_asked(request(state=RequestState.SUCCEEDED), "x", NOW) is None
    assert transitions.cancel_asked(request(), "x", NOW) is not None


def test_preparation_gives_up_at_once_on_a_configuration_error() -> None:
    ended = attempt(shard=None, state=AttemptState.ENDED, outcome=Outcome.CONFIG_ERROR, reason="no such bucket")
    reason = transitions.give_up_reason(ended.kind, [ended], NOW, LIMITS)
    assert reason is not None
    assert "no such bucket" in reason


@pytest.mark.parametrize("name", MOVES)
def test_every_state_can_be_reached_and_drawn(name: str) -> None:
    moves = MOVES[name]
    reached = {next(iter(moves))} | {to for targets in moves.values() for to in targets}
    assert reached == set(moves)
    assert all(state in diagram(name) for state in moves)
