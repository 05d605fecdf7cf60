"""Tend (leader): progress events, the cost limit, the snapshot behind the gauges, and old outbox rows."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta

from controller.core import transitions
from controller.core.progress import forecast_usd, summarise
from controller.core.records import Request
from controller.loops.context import Context, log
from controller.loops.events import announce
from controller.loops.leader import Leadership
from controller.loops.runner import Outcome
from controller.ports import Transaction
from schema.messages import MessageType
from schema.states import RequestState

#: Sent status events are kept so long for `reembed request show`.
KEEP_EVENTS = timedelta(days=30)


class Tend:
    name = "tend"

    def __init__(self, context: Context, leadership: Leadership) -> None:
        self._context = context
        self._leadership = leadership

    async def step(self, now: datetime) -> Outcome:
        context = self._context
        if await self._leadership.hold(now) is None:
            return Outcome.IDLE
        async with context.store.transaction() as tx:
            running = await tx.requests.in_states([RequestState.RUNNING], context.settings.loops.page)
        for request in running:
            async with context.store.transaction() as tx:
                await self._leadership.fence(tx)
                await self._tend(tx, request, now)
        async with context.store.transaction() as tx:
            await tx.events.prune(now - KEEP_EVENTS, limit=context.settings.loops.page)
            states = await tx.measures.states()
            totals = await tx.totals.all()
        context.recorder.publish(states, totals)
        return Outcome.IDLE

    async def _tend(self, tx: Transaction, request: Request, now: datetime) -> None:
        context = self._context
        since = request.progress_sent_at or request.updated_at
        if now - since < timedelta(seconds=context.settings.loops.progress_seconds):
            return
        counts = await tx.shards.counts(request.id)
        seconds = await tx.measures.attempt_seconds(request.id)
        summary = summarise(request, counts, seconds, context.prices_usd_per_hour, now)
        await tx.requests.apply(transitions.progress_sent(request, now))
        figures = asdict(summary)
        figures.pop("wasted_usd")
        await announce(context, tx, request, MessageType.STATUS_PROGRESS, now, **figures)
        limit, forecast = request.body.get("max_cost_usd"), forecast_usd(summary)
        if limit is None or forecast is None or forecast <= limit or request.paused:
            return
        reason = f"forecast {forecast:.2f} USD is over max_cost_usd {limit:.2f}; resume to go on all the same"
        if await tx.requests.apply(transitions.paused(request, reason, now)):
            await announce(context, tx, request, MessageType.STATUS_PAUSED, now, reason=reason)
            log.warning("request_paused", request_id=request.id, reason=reason)
