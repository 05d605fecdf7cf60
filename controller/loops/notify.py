"""Notify: sends what the outbox holds to the status queue, at least once."""

from __future__ import annotations

from datetime import datetime

from controller.loops.context import Context
from controller.loops.runner import Outcome


class Notify:
    name = "notify"

    def __init__(self, context: Context) -> None:
        self._context = context

    async def step(self, now: datetime) -> Outcome:
        context = self._context
        async with context.store.transaction() as tx:
            events = await tx.events.claim_unsent(context.holder, now, context.claim_until(now), limit=100)
        for event in events:
            attributes = {"type": event.type, "request_id": event.request_id}
            await context.outboxes.status.send(event.body, attributes, event.request_id)
            async with context.store.transaction() as tx:
                await tx.events.sent([event.id], context.clock.now())
            context.recorder.count("status_events", type=event.type)
        return Outcome.BUSY if events else Outcome.IDLE
