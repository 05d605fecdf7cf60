"""The only module that proposes a change of state: state and fact in, guarded changes out.

Facts come from SubmitJob's answer, worker reports, what Batch shows, and commit markers. None of them is trusted
further than it goes: a report needs the attempt's token, Batch's word gives way to a marker, and absence is only
evidence after misses and time (`lost`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from controller.core.changes import AttemptChange, JobChange, RequestChange, ShardChange
from controller.core.decisions import Settlement
from controller.core.facts import JobView
from controller.core.outcome import TABLE, Evidence, Rule, rule_for
from controller.core.records import Attempt, Job, Request, Shard
from controller.core.retry import GiveUp, Limits, decide, queue_to_avoid
from schema.layout import commit_key
from schema.messages import ReportKind, WorkerReport
from schema.plan import CommitMarker
from schema.states import (
    ATTEMPT_LIVE,
    REQUEST_MOVES,
    AttemptState,
    JobKind,
    JobState,
    Outcome,
    RequestState,
    ShardState,
    StopIntent,
)

# --- jobs --------------------------------------------------------------------------------------------------------


def submit_started(job: Job, now: datetime, epoch: int) -> JobChange:
    """The call is about to be made: from here on its result may exist."""
    values = {"submit_started_at": now, "submit_epoch": epoch}
    return JobChange(id=job.id, expected=frozenset({JobState.INTENDED}), values=values)


def submit_withdrawn(job: Job) -> JobChange:
    """The call was certainly not carried out: the job is fresh again."""
    return JobChange(id=job.id, expected=frozenset({JobState.INTENDED}), values={"submit_started_at": None})


def submitted(job: Job, batch_job_id: str, now: datetime) -> JobChange:
    values = {"batch_job_id": batch_job_id, "submitted_at": now}
    return JobChange(id=job.id, expected=frozenset({JobState.INTENDED}), to=JobState.SUBMITTED, values=values)


def never_submitted(job: Job, reason: str, now: datetime) -> JobChange:
    """Given up under this name; what turns up late ends itself or is stopped as an orphan."""
    values = {"closed_at": now, "reason": reason}
    return JobChange(id=job.id, expected=frozenset({JobState.INTENDED}), to=JobState.CLOSED, values=values)


def queued(attempt: Attempt, now: datetime) -> AttemptChange:
    """SubmitJob answered, or the job was found by its name."""
    return AttemptChange(
        id=attempt.id,
        token=attempt.token,
        expected=frozenset({AttemptState.SUBMITTING}),
        to=AttemptState.QUEUED,
        values={"queued_at": now, "last_contact_at": now, "next_check_at": now},
    )


# --- reports and observations ------------------------------------------------------------------------------------


def heard(attempt: Attempt, report: WorkerReport, now: datetime) -> AttemptChange | None:
    """What a report changes in its attempt; None if the token is not the attempt's or the attempt has ended.

    The sequence number guards the write: an older report that comes late changes nothing.
    """
    if report.token != attempt.token or attempt.state not in ATTEMPT_LIVE:
        return None
    values: dict[str, Any] = {
        "last_contact_at": now,
        "misses": 0,
        "last_seq": report.seq,
        "figures": report.figures,
        "open_chunks": tuple(report.open_chunks),
        "poison": tuple(sorted({*attempt.poison, *report.poison})),
        "batch_job_id": attempt.batch_job_id or report.batch_job_id,
        "compute_environment": report.compute_environment or attempt.compute_environment,
        "instance_type": report.instance_type or attempt.instance_type,
        "started_at": attempt.started_at or now,
    }
    if report.kind is ReportKind.ENDED:
        values |= {"worker_ended_at": now, "worker_exit_code": report.exit_code, "worker_error": report.error}
    running = AttemptState.RUNNING if attempt.state is not AttemptState.RUNNING else None
    return AttemptChange(
        id=attempt.id,
        token=attempt.token,
        expected=frozenset({attempt.state}),
        to=running,
        seq=report.seq,
        values=values,
    )


def observed(attempt: Attempt, view: JobView, now: datetime) -> AttemptChange | None:
    """What Batch shows of a live attempt. Statuses come late and out of order: an end is never taken back."""
    if attempt.state not in ATTEMPT_LIVE or attempt.batch_ended_at is not None:
        return None
    values: dict[str, Any] = {
        "last_contact_at": now,
        "misses": 0,
        "batch_status": view.status,
        "batch_status_reason": view.status_reason,
    }
    to: AttemptState | None = None
    if view.started_at is not None or view.status == "RUNNING":
        values["started_at"] = attempt.started_at or view.started_at or now
        to = AttemptState.RUNNING if attempt.state is not AttemptState.RUNNING else None
    elif attempt.state is AttemptState.SUBMITTING:
        to, values["queued_at"] = AttemptState.QUEUED, now
    if view.terminal:
        values |= {
            "container_reason": view.container_reason,
            "batch_exit_code": view.exit_code,
            "batch_ended_at": now,
        }
    return AttemptChange(id=attempt.id, token=attempt.token, expected=frozenset({attempt.state}), to=to, values=values)


def missed(attempt: Attempt) -> AttemptChange:
    """DescribeJobs did not know it, or knew of nothing."""
    return AttemptChange(
        id=attempt.id,
        token=attempt.token,
        expected=frozenset({attempt.state}),
        values={"misses": attempt.misses + 1},
    )


def is_lost(attempt: Attempt, now: datetime, lost_seconds: float, lost_misses: int) -> bool:
    """Misses and silence, both: one slow answer or one lag of DescribeJobs is no verdict."""
    silent = now - attempt.last_contact_at >= timedelta(seconds=lost_seconds)
    return attempt.misses >= lost_misses and silent


def has_ended(attempt: Attempt, now: datetime, report_grace_seconds: float) -> bool:
    """The worker said so, or Batch did and the worker's own word has had time to arrive."""
    if attempt.worker_ended_at is not None:
        return True
    if attempt.batch_ended_at is None:
        return False
    if attempt.started_at is None:
        return True
    return now - attempt.batch_ended_at >= timedelta(seconds=report_grace_seconds)


# --- the end of an attempt ---------------------------------------------------------------------------------------


def settle(
    attempt: Attempt,
    shard: Shard | None,
    history: Sequence[Attempt],
    *,
    marker: CommitMarker | None,
    done: bool,
    now: datetime,
    limits: Limits,
    jitter: float,
    rules: Sequence[Rule] = TABLE,
) -> Settlement:
    """Close an attempt that has ended. `history`: the shard's ended attempts of this generation, without this one.

    `marker` is the shard's valid commit, whoever wrote it; `done` the same for a job without a shard.
    """
    rule = rule_for(Evidence.of(attempt, committed=done or marker is not None), rules)
    outcome = rule.outcome
    change = AttemptChange(
        id=attempt.id,
        token=attempt.token,
        expected=frozenset({attempt.state}),
        to=AttemptState.ENDED,
        values={"ended_at": now, "outcome": outcome, "reason": _reason(attempt, outcome)},
    )
    if shard is None:
        return Settlement(outcome=outcome, rule=rule.name, attempt=change)
    if marker is not None:
        return Settlement(outcome=outcome, rule=rule.name, attempt=change, shard=committed(shard, marker, now))
    if shard.state is not ShardState.ASSIGNED or shard.attempt_id != attempt.id:
        return Settlement(outcome=outcome, rule=rule.name, attempt=change)
    ended = [*history, _as_ended(attempt, outcome)]
    after = _after(shard, attempt, outcome, ended, now, limits, jitter)
    return Settlement(outcome=outcome, rule=rule.name, attempt=change, shard=after)


def _after(
    shard: Shard,
    attempt: Attempt,
    outcome: Outcome,
    history: Sequence[Attempt],
    now: datetime,
    limits: Limits,
    jitter: float,
) -> ShardChange:
    values: dict[str, Any] = {
        "updated_at": now,
        "attempt_id": None,
        "last_outcome": outcome,
        "last_queue": attempt.queue,
        "poison": tuple(sorted({*shard.poison, *attempt.poison})),
    }
    to = ShardState.PENDING
    if outcome is Outcome.CANCELLED:
        to, values["reason"] = ShardState.CANCELLED, outcome.value
    else:
        values["avoid_queue"] = queue_to_avoid(history)
        verdict = decide(outcome, history, now, limits, jitter)
        if isinstance(verdict, GiveUp):
            to, values["reason"] = ShardState.FAILED, verdict.reason
        else:
            values |= {"reason": outcome.value, "eligible_at": verdict.eligible_at, "isolate": verdict.isolate}
    return ShardChange(
        request_id=shard.request_id,
        shard=shard.shard,
        expected=frozenset({ShardState.ASSIGNED}),
        to=to,
        attempt_id=attempt.id,
        values=values,
    )


def committed(shard: Shard, marker: CommitMarker, now: datetime) -> ShardChange | None:
    """A valid marker finishes the shard, whoever wrote it; None when the shard is terminal already (I3)."""
    if shard.state not in (ShardState.PENDING, ShardState.ASSIGNED):
        return None
    return ShardChange(
        request_id=shard.request_id,
        shard=shard.shard,
        expected=frozenset({shard.state}),
        to=ShardState.SUCCEEDED,
        values={
            "updated_at": now,
            "attempt_id": None,
            "reason": None,
            "last_outcome": Outcome.SUCCEEDED,
            "marker_digest": marker.digest,
            "marker_key": commit_key(shard.shard, shard.generation),
            "ok": marker.ok,
            "bad": marker.bad,
            "statuses": dict(marker.statuses),
        },
    )


def never_ran(attempt: Attempt, reason: str, intent: StopIntent | None) -> Attempt:
    """The attempt as evidence for `settle` when its job was given up before Batch had it."""
    stop_intent = intent or attempt.stop_intent
    return replace(attempt, stop_intent=stop_intent, batch_status="FAILED", batch_status_reason=reason)


def superseded(attempt: Attempt) -> AttemptChange:
    """A live attempt whose shard is done: store why before anything is stopped."""
    return stop_wanted(attempt, StopIntent.SUPERSEDE)


def stop_wanted(attempt: Attempt, intent: StopIntent) -> AttemptChange:
    return AttemptChange(
        id=attempt.id, token=attempt.token, expected=frozenset({attempt.state}), values={"stop_intent": intent}
    )


def stop_asked(attempt: Attempt, now: datetime) -> AttemptChange:
    return AttemptChange(
        id=attempt.id, token=attempt.token, expected=frozenset({attempt.state}), values={"stop_requested_at": now}
    )


def assigned(shard: Shard, attempt: Attempt, now: datetime) -> ShardChange:
    return ShardChange(
        request_id=shard.request_id,
        shard=shard.shard,
        expected=frozenset({ShardState.PENDING}),
        to=ShardState.ASSIGNED,
        values={"attempt_id": attempt.id, "updated_at": now},
    )


def requeued(shard: Shard, now: datetime) -> ShardChange:
    """An operator's order: a new generation, with fresh budgets and a new commit marker."""
    return ShardChange(
        request_id=shard.request_id,
        shard=shard.shard,
        expected=frozenset({ShardState.FAILED}),
        to=ShardState.PENDING,
        values={
            "generation": shard.generation + 1,
            "eligible_at": now,
            "updated_at": now,
            "reason": "requeued",
            "avoid_queue": None,
            "isolate": (),
            "attempt_id": None,
        },
    )


def _reason(attempt: Attempt, outcome: Outcome) -> str:
    """The words a person reads: the worker's own first, else Batch's, else the class."""
    return attempt.worker_error or attempt.container_reason or attempt.batch_status_reason or outcome.value


def _as_ended(attempt: Attempt, outcome: Outcome) -> Attempt:
    return replace(attempt, outcome=outcome, state=AttemptState.ENDED)


# --- requests ----------------------------------------------------------------------------------------------------


def moved(request: Request, to: RequestState, now: datetime, reason: str | None = None, **values: Any) -> RequestChange:
    """One step of a request along REQUEST_MOVES."""
    ends = to in (RequestState.SUCCEEDED, RequestState.FAILED, RequestState.CANCELLED)
    fields: dict[str, Any] = {"updated_at": now, "reason": reason, "finished_at": now if ends else None, **values}
    if request.state in (RequestState.ATTENTION, RequestState.FAILED):
        fields["reopened_at"] = now
    return RequestChange(id=request.id, expected=frozenset({request.state}), to=to, values=fields)


def progress_sent(request: Request, now: datetime) -> RequestChange:
    return RequestChange(id=request.id, expected=frozenset({request.state}), values={"progress_sent_at": now})


def paused(request: Request, reason: str, now: datetime) -> RequestChange:
    """No new submission until it is resumed; what runs goes on."""
    values = {"paused": True, "reason": reason, "updated_at": now}
    return RequestChange(id=request.id, expected=frozenset({request.state}), values=values)


def resumed(request: Request, now: datetime) -> RequestChange:
    """An operator accepts the forecast: the limit is lifted, or the next look would pause it again; and what was
    wrong before no longer counts."""
    body = {**request.body, "max_cost_usd": None}
    values = {"paused": False, "reason": None, "updated_at": now, "body": body, "reopened_at": now}
    return RequestChange(id=request.id, expected=frozenset({request.state}), values=values)


def finalised(request: Request, manifest_uri: str, failures_uri: str | None, now: datetime) -> RequestChange:
    """The finalising index job has written the manifest and, if the request has an index, switched its alias."""
    return RequestChange(
        id=request.id,
        expected=frozenset({request.state}),
        values={
            "updated_at": now,
            "manifest_uri": manifest_uri,
            "failures_uri": failures_uri,
            "index_active": request.index is not None,
        },
    )


def cancel_asked(request: Request, reason: str, now: datetime) -> RequestChange | None:
    """None when it is too late. The caller holds the request's row: a loop's step in between would lose the order."""
    if RequestState.CANCELLING not in REQUEST_MOVES[request.state]:
        return None
    return moved(request, RequestState.CANCELLING, now, reason)


def since_reopened(request: Request, history: Sequence[Attempt]) -> list[Attempt]:
    """The attempts that count: an operator's order to go on opens fresh budgets."""
    return [a for a in history if request.reopened_at is None or a.created_at >= request.reopened_at]


def give_up_reason(kind: JobKind, history: Sequence[Attempt], now: datetime, limits: Limits) -> str | None:
    """Why a prepare or index job is not tried again, or None: the same budgets as a shard's."""
    if not history or history[-1].outcome is None:
        return None
    last = history[-1]
    if last.outcome is Outcome.CONFIG_ERROR:
        return f"{kind.value}: {last.reason}"
    verdict = decide(last.outcome, history, now, limits, 0.0) if last.outcome is not None else None
    return f"{kind.value}: {verdict.reason}; {last.reason}" if isinstance(verdict, GiveUp) else None


def retry_at(history: Sequence[Attempt], now: datetime, limits: Limits) -> datetime:
    """When a prepare or index job whose last attempt ended may run again."""
    if not history or history[-1].outcome is None or history[-1].ended_at is None:
        return now
    verdict = decide(history[-1].outcome, history, history[-1].ended_at, limits, 0.5)
    return now if isinstance(verdict, GiveUp) else verdict.eligible_at
