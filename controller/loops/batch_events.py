"""Batch events: job state changes from EventBridge over SQS. Late, doubled, reordered or missing: reconcile asks again.

An event is only a hint to look sooner. Parents of arrays are skipped: their children speak for themselves.
"""

from __future__ import annotations

from datetime import datetime

from controller.core import transitions
from controller.core.batch_events import parse_event
from controller.core.facts import JobView, QueueBlocked
from controller.core.records import Attempt
from controller.loops.context import Context, log
from controller.loops.runner import Outcome
from controller.loops.settle import settle
from controller.ports import Unavailable


class BatchEvents:
    name = "batch_events"

    def __init__(self, context: Context) -> None:
        self._context = context

    async def step(self, now: datetime) -> Outcome:
        context = self._context
        deliveries = await context.inboxes.batch_events.receive(
            limit=50, wait_seconds=context.settings.loops.poll_seconds
        )
        done = []
        for delivery in deliveries:
            try:
                await self._take(parse_event(delivery.body), context.clock.now())
            except Unavailable as error:
                log.warning("batch_event_postponed", error=str(error))
                continue
            done.append(delivery)
        if done:
            await context.inboxes.batch_events.delete(done)
        return Outcome.BUSY if deliveries else Outcome.IDLE

    async def _take(self, fact: JobView | QueueBlocked | None, now: datetime) -> None:
        context = self._context
        if isinstance(fact, QueueBlocked):
            async with context.store.transaction() as tx:
                await tx.queues.note_blocked(fact.queue, fact.reason, now)
            context.recorder.count("batch_events", result="queue_blocked")
            return
        if fact is None or fact.array_size is not None:
            context.recorder.count("batch_events", result="ignored")
            return
        attempt = await see(context, fact, now)
        context.recorder.count("batch_events", result="seen" if attempt else "stale")
        grace = context.settings.reconcile.report_grace_seconds
        if attempt is not None and transitions.has_ended(attempt, now, grace):
            await settle(context, attempt.id)


async def see(context: Context, view: JobView, now: datetime) -> Attempt | None:
    """Record what Batch shows; the attempt as it is then, or None if the view said nothing new."""
    async with context.store.transaction() as tx:
        attempt = await tx.attempts.by_batch_job_id(view.batch_job_id)
        if attempt is None:
            return None
        change = transitions.observed(attempt, view, now)
        if change is None or not await tx.attempts.apply(change):
            return None
        return await tx.attempts.get(attempt.id)
