"""The invariants that hold in the control database at any moment, as functions from rows to violations.

For tests. I1, I3 and I9 are about more than one moment, and I5, I6 and I11 also need S3 or Batch: what is not
seen here is checked where it happens, above all in tests/e2e.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from controller.core.records import Attempt, Job, Request, Shard
from schema.states import ATTEMPT_LIVE, OUTCOME_RULES, AttemptState, JobState, RequestState, ShardState

#: Only these requests may have shards that are pending or assigned: all others would leave them so for ever.
_AT_WORK = {RequestState.PREPARING, RequestState.RUNNING, RequestState.CANCELLING}


def i2_one_live_attempt(attempts: Iterable[Attempt]) -> list[str]:
    live = Counter((a.request_id, a.shard) for a in attempts if a.shard is not None and a.state in ATTEMPT_LIVE)
    return [f"I2: shard {shard} has {count} live attempts" for shard, count in live.items() if count > 1]


def i4_current_attempt(shards: Iterable[Shard], attempts: Iterable[Attempt]) -> list[str]:
    """An assigned shard points at a live attempt of its own generation, any other shard at none."""
    by_id = {attempt.id: attempt for attempt in attempts}
    found: list[str] = []
    for shard in shards:
        name = f"I4: shard {shard.request_id}/{shard.shard}"
        if shard.state is ShardState.ASSIGNED:
            attempt = by_id.get(shard.attempt_id or "")
            if attempt is None or attempt.state is AttemptState.ENDED or attempt.generation != shard.generation:
                found.append(f"{name} is assigned without a live attempt of its generation")
        elif shard.attempt_id is not None:
            found.append(f"{name} is {shard.state} and still points at {shard.attempt_id}")
    return found


def i5_marker_recorded(shards: Iterable[Shard]) -> list[str]:
    return [
        f"I5: shard {s.request_id}/{s.shard} is succeeded without a whole marker"
        for s in shards
        if s.state is ShardState.SUCCEEDED and (s.marker_digest is None or s.ok is None or s.bad is None)
    ]


def i6_every_attempt_has_a_job(attempts: Iterable[Attempt], jobs: Iterable[Job]) -> list[str]:
    known = {job.id: job for job in jobs}
    found = [f"I6: attempt {a.id} without job {a.job_id}" for a in attempts if a.job_id not in known]
    live_jobs = {a.job_id for a in attempts if a.state in ATTEMPT_LIVE}
    return found + [
        f"I6: job {job.id} is closed with a live attempt"
        for job in known.values()
        if job.state is JobState.CLOSED and job.id in live_jobs
    ]


def i7_looked_at(attempts: Iterable[Attempt], now: datetime, limit_seconds: float) -> list[str]:
    late = now - timedelta(seconds=limit_seconds)
    return [f"I7: attempt {a.id} is overdue" for a in attempts if a.state in ATTEMPT_LIVE and a.next_check_at < late]


def i8_budgets(attempts: Sequence[Attempt]) -> list[str]:
    """No outcome of one shard and generation passes its own cap by more than the one finalising run."""
    counts = Counter((a.request_id, a.shard, a.generation, a.outcome) for a in attempts if a.shard is not None)
    found: list[str] = []
    for (request_id, shard, _, outcome), count in counts.items():
        cap = OUTCOME_RULES[outcome].cap if outcome is not None else None
        if cap is not None and count > cap + 1:
            found.append(f"I8: shard {request_id}/{shard} has {count} attempts {outcome}, the cap is {cap}")
    return found


def i10_nothing_left_behind(
    requests: Iterable[Request], shards: Iterable[Shard], attempts: Iterable[Attempt], jobs: Iterable[Job]
) -> list[str]:
    """No work waits in a request that nobody takes up, and nothing of a cancelled one is alive."""
    states = {request.id: request.state for request in requests}
    cancelled = {name for name, state in states.items() if state is RequestState.CANCELLED}
    found = [
        f"I10: shard {s.request_id}/{s.shard} is {s.state} in a request that is {states[s.request_id]}"
        for s in shards
        if s.state in (ShardState.PENDING, ShardState.ASSIGNED)
        and states.get(s.request_id, RequestState.RUNNING) not in _AT_WORK
    ]
    found += [
        f"I10: attempt {a.id} of a cancelled request is {a.state}"
        for a in attempts
        if a.request_id in cancelled and a.state in ATTEMPT_LIVE
    ]
    return found + [
        f"I10: job {job.id} of a cancelled request is {job.state}"
        for job in jobs
        if job.request_id in cancelled and job.state is not JobState.CLOSED
    ]


def i11_counts(request: Request, shards: Iterable[Shard]) -> list[str]:
    """A succeeded request's shards add up to its assets; gaps only where failures were accepted."""
    if request.state is not RequestState.SUCCEEDED:
        return []
    mine = [shard for shard in shards if shard.request_id == request.id]
    rows = sum((shard.ok or 0) + (shard.bad or 0) for shard in mine if shard.state is ShardState.SUCCEEDED)
    gaps = sum(shard.assets for shard in mine if shard.state is not ShardState.SUCCEEDED)
    if gaps and not request.accept_failures:
        return [f"I11: request {request.id} succeeded with {gaps} assets missing"]
    if rows + gaps != request.assets:
        return [f"I11: request {request.id} lists {request.assets} assets, rows {rows}, gaps {gaps}"]
    return []


def check(
    requests: Sequence[Request], shards: Sequence[Shard], attempts: Sequence[Attempt], jobs: Sequence[Job]
) -> list[str]:
    """Every violation in one snapshot; empty is good."""
    found = i2_one_live_attempt(attempts) + i4_current_attempt(shards, attempts) + i5_marker_recorded(shards)
    found += i6_every_attempt_has_a_job(attempts, jobs) + i8_budgets(attempts)
    found += i10_nothing_left_behind(requests, shards, attempts, jobs)
    for request in requests:
        found += i11_counts(request, shards)
    return found
