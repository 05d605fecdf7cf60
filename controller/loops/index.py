"""Index (leader): CPU jobs that load committed shards into the search index, and the last one that finalises.

It starts with the first commits, one load job a request at a time, and never holds a GPU back. Finalising writes the
manifest and the failures file and, for a request with an index, switches the alias.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from controller.core import transitions
from controller.core.jobs import index_job
from controller.core.records import Attempt, Request, Shard
from controller.loops.context import Context, log
from controller.loops.events import announce
from controller.loops.leader import Leadership
from controller.loops.runner import Outcome as Step
from controller.ports import Transaction
from schema.messages import MessageType
from schema.states import AttemptState, JobKind, Outcome, RequestState, ShardState

_WATCHED = (RequestState.RUNNING, RequestState.FINISHING)


class IndexLoop:
    name = "index"

    def __init__(self, context: Context, leadership: Leadership) -> None:
        self._context = context
        self._leadership = leadership

    async def step(self, now: datetime) -> Step:
        context = self._context
        if await self._leadership.hold(now) is None:
            return Step.IDLE
        async with context.store.transaction() as tx:
            requests = await tx.requests.in_states(_WATCHED, context.settings.loops.page)
        started = 0
        for request in requests:
            async with context.store.transaction() as tx:
                await self._leadership.fence(tx)
                # Again, and locked: a job written after the last one was counted would outlive a cancelled request.
                current = await tx.requests.get(request.id, lock=True)
                if current is not None and current.state in _WATCHED:
                    started += await self._advance(tx, current, now)
        return Step.BUSY if started else Step.IDLE

    async def _advance(self, tx: Transaction, request: Request, now: datetime) -> bool:
        """Write the next index job of a request, if none is live and there is something for it to do."""
        context = self._context
        if request.paused or request.output_uri is None or request.manifest_uri is not None:
            return False
        waiting: list[Shard] = []
        if request.index is not None:
            waiting = list(await tx.shards.unindexed(request.id, context.settings.work.index_shards))
        if not waiting and request.state is RequestState.RUNNING:
            return False
        history = await tx.attempts.of_kind(request.id, JobKind.INDEX)
        if any(attempt.state is not AttemptState.ENDED for attempt in history):
            return False
        ended = _since_success(transitions.since_reopened(request, history))
        reason = transitions.give_up_reason(JobKind.INDEX, ended, now, context.retry_limits)
        if reason is not None:
            return await self._give_up(tx, request, reason, now)
        if now < transitions.retry_at(ended, now, context.retry_limits):
            return False
        if not waiting:
            await self._write(tx, request, list(await tx.shards.succeeded(request.id)), now, finalise=True)
        else:
            await self._write(tx, request, waiting, now, finalise=False)
        return True

    async def _write(
        self, tx: Transaction, request: Request, shards: list[Shard], now: datetime, *, finalise: bool
    ) -> None:
        context = self._context
        gaps: list[int] = []
        if finalise:
            failed = await tx.shards.search(
                request.id, states=[ShardState.FAILED], outcome=None, after=-1, limit=request.shards or 1
            )
            gaps = [shard.shard for shard in failed]
        made = index_job(
            request,
            context.settings.cpu.queue,
            context.identity(1),
            context.terms,
            shards,
            now,
            finalise=finalise,
            gaps=gaps,
            rows_per_second=context.settings.work.index_rows_per_second,
        )
        await tx.jobs.insert(made.job)
        await tx.attempts.insert_many(made.attempts)
        log.info("index_job_written", request_id=request.id, shards=len(shards), finalise=finalise)

    async def _give_up(self, tx: Transaction, request: Request, reason: str, now: datetime) -> bool:
        """While shards still run, the index waits; a finishing request needs an operator."""
        if request.state is not RequestState.FINISHING:
            return False
        if await tx.requests.apply(transitions.moved(request, RequestState.ATTENTION, now, reason)):
            await announce(self._context, tx, request, MessageType.STATUS_ATTENTION, now, reason=reason)
            log.error("index_gave_up", request_id=request.id, reason=reason)
        return True


def _since_success(history: Sequence[Attempt]) -> Sequence[Attempt]:
    """The attempts after the last one that did its work: a budget is for one stretch of trouble."""
    done = [i for i, attempt in enumerate(history) if attempt.outcome is Outcome.SUCCEEDED]
    return history[done[-1] + 1 :] if done else history
