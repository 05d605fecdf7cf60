"""Finish: moves requests on when their shards are: to finishing, attention, succeeded or cancelled."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from controller.core import transitions
from controller.core.progress import summarise
from controller.core.records import Request, ShardCounts
from controller.loops.context import Context, log
from controller.loops.events import announce
from controller.loops.runner import Outcome
from controller.ports import Transaction
from schema.messages import MessageType
from schema.states import RequestState, ShardState, StopIntent

_WATCHED = (RequestState.RUNNING, RequestState.FINISHING, RequestState.CANCELLING)


class Finish:
    name = "finish"

    def __init__(self, context: Context) -> None:
        self._context = context

    async def step(self, now: datetime) -> Outcome:
        context = self._context
        async with context.store.transaction() as tx:
            requests = await tx.requests.claim(_WATCHED, context.holder, now, context.claim_until(now), limit=50)
        moved = 0
        for request in requests:
            try:
                async with context.store.transaction() as tx:
                    moved += await self._advance(tx, request, context.clock.now())
            finally:
                async with context.store.transaction() as tx:
                    await tx.requests.release([request.id], context.holder)
        return Outcome.BUSY if moved else Outcome.IDLE

    async def _advance(self, tx: Transaction, request: Request, now: datetime) -> bool:
        if request.state is RequestState.CANCELLING:
            return await self._cancel(tx, request, now)
        if request.state is RequestState.FINISHING:
            return await self._succeed(tx, request, now)
        # Locked before the shards are counted: an operator's requeue changes them under the same lock.
        current = await tx.requests.get(request.id, lock=True)
        if current is None or current.state is not RequestState.RUNNING:
            return False
        counts = await tx.shards.counts(request.id)
        if counts[ShardState.PENDING] or counts[ShardState.ASSIGNED]:
            return False
        if counts[ShardState.FAILED] and not request.accept_failures:
            return await self._ask_operator(tx, request, counts, now)
        log.info("request_finishing", request_id=request.id)
        return await tx.requests.apply(transitions.moved(request, RequestState.FINISHING, now))

    async def _ask_operator(self, tx: Transaction, request: Request, counts: ShardCounts, now: datetime) -> bool:
        failed = counts[ShardState.FAILED]
        reason = f"{failed} of {counts.total} shards failed; requeue them, accept the failures or fail the request"
        if not await tx.requests.apply(transitions.moved(request, RequestState.ATTENTION, now, reason)):
            return False
        await announce(
            self._context, tx, request, MessageType.STATUS_ATTENTION, now, reason=reason, failed_shards=failed
        )
        log.error("request_needs_attention", request_id=request.id, reason=reason)
        return True

    async def _succeed(self, tx: Transaction, request: Request, now: datetime) -> bool:
        if request.manifest_uri is None:
            return False
        if not await tx.requests.apply(transitions.moved(request, RequestState.SUCCEEDED, now)):
            return False
        await self.announce_end(tx, request, MessageType.STATUS_SUCCEEDED, now)
        log.info("request_succeeded", request_id=request.id, manifest=request.manifest_uri)
        return True

    async def _cancel(self, tx: Transaction, request: Request, now: datetime) -> bool:
        """Cancelled only when no live job is left; until then its shards and attempts are told to end."""
        changed = await tx.shards.cancel_pending(request.id, now, limit=self._context.settings.loops.page)
        changed += await tx.attempts.intend_stop_request(request.id, StopIntent.CANCEL)
        counts = await tx.shards.counts(request.id)
        alive = counts[ShardState.ASSIGNED] + counts[ShardState.PENDING]
        if alive or changed or await tx.jobs.live_of_request(request.id):
            return bool(changed)
        if not await tx.requests.apply(transitions.moved(request, RequestState.CANCELLED, now, request.reason)):
            return False
        await self.announce_end(tx, request, MessageType.STATUS_CANCELLED, now, reason=request.reason)
        log.info("request_cancelled", request_id=request.id)
        return True

    async def announce_end(
        self, tx: Transaction, request: Request, kind: MessageType, now: datetime, **fields: Any
    ) -> None:
        await announce(
            self._context, tx, request, kind, now, **await final_figures(self._context, tx, request, now), **fields
        )


async def final_figures(context: Context, tx: Transaction, request: Request, now: datetime) -> dict[str, Any]:
    """The counts and places that the last status event carries."""
    counts = await tx.shards.counts(request.id)
    seconds = await tx.measures.attempt_seconds(request.id)
    summary = summarise(request, counts, seconds, context.prices_usd_per_hour, now)
    return {
        "assets": request.assets,
        "ok": counts.ok,
        "bad": counts.bad,
        "statuses": dict(counts.statuses),
        "shards": request.shards,
        "failed_shards": counts[ShardState.FAILED],
        "manifest_uri": request.manifest_uri,
        "failures_uri": request.failures_uri,
        "index": request.index if request.index_active else None,
        "cost_usd": summary.cost_usd,
    }
