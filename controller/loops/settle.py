"""Settling: an attempt that has ended is closed with its outcome, and its shard moves on.

The commit marker is read before every verdict, whatever Batch or the worker said: a valid one finishes the shard.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

from pydantic import ValidationError

from controller.core import transitions
from controller.core.changes import AttemptChange
from controller.core.progress import figure_deltas
from controller.core.records import Attempt, Request, Shard, TotalKey
from controller.core.retry import should_hold
from controller.loops.context import Context, log
from controller.loops.events import announce
from controller.ports import Transaction
from schema.layout import Location, chunk_key, commit_key, plan_key
from schema.messages import MessageType
from schema.plan import CommitMarker
from schema.states import AttemptState, JobKind, Outcome, RequestState, ShardState, StopIntent


async def read_marker(context: Context, request: Request, shard: Shard) -> CommitMarker | None:
    """The shard's valid commit of its current generation (I5), or None. Every object it names is looked at."""
    if request.output_uri is None:
        return None
    output = Location.parse(request.output_uri)
    body = await context.objects.get(output.join(commit_key(shard.shard, shard.generation)))
    if body is None:
        return None
    try:
        marker = CommitMarker.model_validate_json(body)
    except ValidationError as error:
        log.error("marker_unreadable", request_id=request.id, shard=shard.shard, error=str(error))
        return None
    problem = _incoherent(marker, request, shard) or await _missing_object(context, output, marker)
    if problem is not None:
        context.recorder.count("markers_invalid")
        log.error("marker_invalid", request_id=request.id, shard=shard.shard, problem=problem)
        return None
    return marker


def _incoherent(marker: CommitMarker, request: Request, shard: Shard) -> str | None:
    if (marker.request_id, marker.shard, marker.generation) != (request.id, shard.shard, shard.generation):
        return "it names another request, shard or generation"
    if [chunk.chunk for chunk in marker.chunks] != list(range(shard.chunks)):
        return "its chunks are not exactly the shard's"
    if any(chunk.key != chunk_key(shard.shard, chunk.chunk, chunk.sha256) for chunk in marker.chunks):
        return "it names an object that is no finished chunk of the shard"
    if sum(chunk.rows for chunk in marker.chunks) != shard.assets or marker.ok + marker.bad != shard.assets:
        return f"its rows do not add up to the shard's {shard.assets} assets"
    return None


async def _missing_object(context: Context, output: Location, marker: CommitMarker) -> str | None:
    found = await asyncio.gather(*(context.objects.head(output.join(chunk.key)) for chunk in marker.chunks))
    for chunk, info in zip(marker.chunks, found, strict=True):
        if info is None:
            return f"{chunk.key} is not there"
        if info.size != chunk.bytes or (info.sha256 or chunk.sha256) != chunk.sha256:
            return f"{chunk.key} has another size or checksum"
    return None


async def settle(context: Context, attempt_id: str) -> Outcome | None:
    """Close an ended attempt; None when somebody else has."""
    async with context.store.transaction() as tx:
        attempt = await tx.attempts.get(attempt_id)
        if attempt is None or attempt.state is AttemptState.ENDED:
            return None
        request = await tx.requests.get(attempt.request_id)
        shard = None if attempt.shard is None else await tx.shards.get(attempt.request_id, attempt.shard)
    assert request is not None
    marker, done = None, False
    if shard is not None:
        marker = await read_marker(context, request, shard)
    elif attempt.kind is JobKind.PREPARE:
        done = await context.objects.head(context.control(plan_key(request.id))) is not None
    else:
        # What an index job did was recorded with its report; without one it runs again, idempotently.
        done = attempt.worker_exit_code == 0
    async with context.store.transaction() as tx:
        # Again, and locked: a report taken meanwhile has added its figures to the totals and may say how it ended.
        attempt = await tx.attempts.get(attempt_id, lock=True)
        if attempt is None or attempt.state is AttemptState.ENDED:
            return None
        return await close_attempt(context, tx, attempt, marker=marker, done=done, now=context.clock.now())


async def close_attempt(
    context: Context, tx: Transaction, attempt: Attempt, *, marker: CommitMarker | None, done: bool, now: datetime
) -> Outcome | None:
    """The transaction's part of settling; reads the shard and its history afresh."""
    shard, history = None, []
    if attempt.shard is not None:
        shard = await tx.shards.get(attempt.request_id, attempt.shard)
        history = [
            other
            for other in await tx.attempts.of_shard(attempt.request_id, attempt.shard)
            if other.generation == attempt.generation and other.state is AttemptState.ENDED
        ]
    settlement = transitions.settle(
        attempt,
        shard,
        history,
        marker=marker,
        done=done,
        now=now,
        limits=context.retry_limits,
        jitter=context.entropy.uniform(),
        rules=context.outcome_table,
    )
    if not await tx.attempts.apply(settlement.attempt):
        context.recorder.count("stale_writes", table="attempts")
        return None
    if settlement.shard is not None and not await tx.shards.apply(settlement.shard):
        context.recorder.count("stale_writes", table="shards")
    if shard is not None and marker is not None:
        await _stop_other(tx, shard, attempt)
    await _add_totals(tx, attempt, marker, settlement.outcome)
    if settlement.outcome is Outcome.CONFIG_ERROR and attempt.kind is JobKind.INFER:
        await _hold(context, tx, settlement.attempt, attempt.request_id, now)
    context.recorder.count("attempts_ended", outcome=settlement.outcome.value, queue=attempt.queue)
    log.info(
        "attempt_ended",
        request_id=attempt.request_id,
        shard=attempt.shard,
        attempt_id=attempt.id,
        outcome=settlement.outcome.value,
        rule=settlement.rule,
        reason=settlement.attempt.values.get("reason"),
    )
    return settlement.outcome


async def _hold(context: Context, tx: Transaction, ended: AttemptChange, request_id: str, now: datetime) -> None:
    """Pause a request whose attempts keep meeting a wrong configuration, and take back what has not started."""
    request = await tx.requests.get(request_id)
    if request is None or request.paused or request.state is not RequestState.RUNNING:
        return
    limits = context.retry_limits
    if not should_hold(await tx.measures.latest_outcomes(request.id, request.reopened_at, limits.hold_after), limits):
        return
    reason = f"{limits.hold_after} attempts in a row met a wrong configuration: {ended.values['reason']}"
    if await tx.requests.apply(transitions.paused(request, reason, now)):
        await tx.attempts.intend_stop_request(request.id, StopIntent.PAUSE)
        await announce(context, tx, request, MessageType.STATUS_PAUSED, now, reason=reason)
        log.error("request_held", request_id=request.id, reason=reason)


async def finish_found(context: Context, tx: Transaction, shard: Shard, marker: CommitMarker, now: datetime) -> bool:
    """A pending shard whose valid commit was found before a resubmission."""
    change = transitions.committed(shard, marker, now)
    return change is not None and await tx.shards.apply(change)


async def _stop_other(tx: Transaction, shard: Shard, attempt: Attempt) -> None:
    """The shard is done, but another attempt of it is alive: it shall stop."""
    if shard.state is not ShardState.ASSIGNED or shard.attempt_id in (None, attempt.id):
        return
    other = await tx.attempts.get(shard.attempt_id or "")
    if other is not None and other.state is not AttemptState.ENDED:
        await tx.attempts.apply(transitions.superseded(other))


async def _add_totals(tx: Transaction, attempt: Attempt, marker: CommitMarker | None, outcome: Outcome) -> None:
    request = await tx.requests.get(attempt.request_id)
    model = request.model if request is not None else ""
    deltas = {TotalKey(name="attempts", model=model, queue=attempt.queue, label=outcome.value): 1.0}
    if marker is not None and marker.attempt_id == attempt.id:
        for name, delta in figure_deltas(attempt.figures, marker.figures).items():
            deltas[TotalKey(name=name, model=model, queue=attempt.queue)] = delta
    await tx.totals.add(deltas)
