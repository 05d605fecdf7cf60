"""Why an attempt ended as it did: the chain of stored facts, in order, and the rule that each led to.

Pure: rows in, lines out. It tells only what is on record; that something is missing is told too.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from controller.api.views import FactView
from controller.core.records import Attempt, Job, Shard
from schema.exit_codes import ExitCode
from schema.states import OUTCOME_RULES, AttemptState, Budget, JobState, Outcome

Fact = tuple[datetime | None, str, str]


def explain(attempt: Attempt, job: Job | None, shard: Shard | None) -> list[FactView]:
    """Facts by time; those without one (conclusions) last, in the order of reasoning."""
    facts = [*_submission(attempt, job), *_life(attempt), *_end(attempt)]
    dated = sorted((fact for fact in facts if fact[0] is not None), key=lambda fact: str(fact[0]))
    lines = [*dated, *_conclusions(attempt, shard)]
    return [FactView(at=at, source=source, fact=text) for at, source, text in lines]


def _submission(attempt: Attempt, job: Job | None) -> Iterator[Fact]:
    what = (
        f"shard {attempt.shard}, generation {attempt.generation}" if attempt.shard is not None else attempt.kind.value
    )
    place = f"index {attempt.array_index} of job {attempt.job_id} on queue {attempt.queue}"
    yield attempt.created_at, "controller", f"attempt written for {what}: {place}"
    if job is None:
        return
    if job.submit_started_at is not None:
        yield job.submit_started_at, "controller", f"SubmitJob called as {job.name} (size {job.size})"
    if job.submitted_at is not None:
        yield job.submitted_at, "controller", f"the job has a Batch id, {job.batch_job_id}: answered, or found by name"
    if job.state is JobState.CLOSED and job.submitted_at is None:
        yield (
            job.closed_at,
            "controller",
            f"the job was given up without a Batch id: {job.reason or 'no reason stored'}",
        )


def _life(attempt: Attempt) -> Iterator[Fact]:
    if attempt.started_at is not None:
        host = " ".join(part for part in (attempt.instance_type, attempt.compute_environment) if part)
        on = f" on {host}" if host else ""
        yield attempt.started_at, "worker", f"started{on} as Batch job {attempt.batch_job_id or 'unknown'}"
    if attempt.stop_requested_at is not None:
        intent = attempt.stop_intent.value if attempt.stop_intent else "unknown"
        yield attempt.stop_requested_at, "controller", f"asked Batch to stop it; the stored intent is {intent}"
    if attempt.ended_at is None:
        misses = f", {attempt.misses} looks in vain" if attempt.misses else ""
        yield attempt.last_contact_at, "controller", f"last heard of (report {attempt.last_seq}{misses})"


def _end(attempt: Attempt) -> Iterator[Fact]:
    if attempt.worker_ended_at is not None:
        said = f"exit code {_code(attempt.worker_exit_code)}"
        yield attempt.worker_ended_at, "worker", said + (f": {attempt.worker_error}" if attempt.worker_error else "")
    if attempt.batch_ended_at is not None:
        words = [attempt.batch_status or "no status"]
        if attempt.batch_exit_code is not None:
            words.append(f"exit code {_code(attempt.batch_exit_code)}")
        words += [text for text in (attempt.batch_status_reason, attempt.container_reason) if text]
        yield attempt.batch_ended_at, "batch", "; ".join(words)
    if attempt.ended_at is not None and attempt.outcome is not None:
        yield (
            attempt.ended_at,
            "controller",
            f"closed as {attempt.outcome.value}: {attempt.reason or 'no reason stored'}",
        )


def _conclusions(attempt: Attempt, shard: Shard | None) -> Iterator[Fact]:
    if attempt.stop_intent is not None and attempt.stop_requested_at is None:
        yield None, "controller", f"a stop is intended ({attempt.stop_intent.value}) and not asked for yet"
    if attempt.state is not AttemptState.ENDED or attempt.outcome is None:
        yield None, "policy", f"it is {attempt.state.value}; no verdict yet"
        return
    if attempt.worker_ended_at is None and attempt.outcome is not Outcome.SUCCEEDED:
        yield None, "worker", "no last report: the verdict rests on Batch and on the stored intent"
    yield None, "policy", f"{attempt.outcome.value} {_cost(attempt.outcome)}"
    if attempt.open_chunks:
        chunks = ", ".join(str(chunk) for chunk in attempt.open_chunks)
        yield None, "worker", f"chunks open at the last report: {chunks}"
    if shard is not None:
        why = f" ({shard.reason})" if shard.reason else ""
        yield None, "controller", f"the shard is now {shard.state.value}, generation {shard.generation}{why}"


def _cost(outcome: Outcome) -> str:
    rule = OUTCOME_RULES[outcome]
    costs = {
        Budget.FAILURES: "counts against the failure budget",
        Budget.OWN_CAP: "counts against a cap of its own",
        Budget.FREE: "costs no budget",
    }[rule.budget]
    cap = f" (cap {rule.cap})" if rule.cap is not None else ""
    if outcome is Outcome.SUCCEEDED:
        return f"{costs}; a valid commit marker was found"
    return f"{costs}{cap}; " + ("it is tried again while budget is left" if rule.retry else "it is not tried again")


def _code(code: int | None) -> str:
    if code is None:
        return "unknown"
    try:
        return f"{code} ({ExitCode(code).name.lower()})"
    except ValueError:
        return f"{code} (signal {code - 128})" if 128 < code < 160 else str(code)
