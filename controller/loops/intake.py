"""Intake: requests from SQS become rows, or go to the reject queue with the reason and the fix, at first receipt.

A message is deleted only after its row is committed or its rejection is sent (I1). One message's trouble never
holds up the next: each is taken in a transaction of its own.
"""

from __future__ import annotations

from datetime import datetime

from controller.core import admission, transitions
from controller.core.admission import Amend, Cancel, Reject, Submit
from controller.core.records import Request
from controller.loops.context import Context, log
from controller.loops.events import SOURCE, announce
from controller.loops.runner import Outcome
from controller.ports import Delivery, Transaction, Unavailable
from schema.messages import MessageType, encode
from schema.states import REQUEST_TERMINAL, RequestState


class Intake:
    name = "intake"

    def __init__(self, context: Context) -> None:
        self._context = context

    async def step(self, now: datetime) -> Outcome:
        context = self._context
        deliveries = await context.inboxes.requests.receive(limit=10, wait_seconds=context.wait_seconds)
        for delivery in deliveries:
            try:
                await self._take(delivery, context.clock.now())
            except Unavailable as error:
                # The message stays on the queue and comes again.
                log.warning("intake_postponed", error=str(error))
                continue
            await context.inboxes.requests.delete([delivery])
        return Outcome.BUSY if deliveries else Outcome.IDLE

    async def _take(self, delivery: Delivery, now: datetime) -> None:
        fact = admission.admit(delivery.body, self._context.policy, now)
        if not isinstance(fact, Reject):
            async with self._context.store.transaction() as tx:
                fact = await self._record(tx, fact, now)
        if isinstance(fact, Reject):
            await self._reject(fact, delivery, now)

    async def _record(self, tx: Transaction, fact: Submit | Cancel | Amend, now: datetime) -> Reject | None:
        self._context.recorder.count("requests_received", type=type(fact).__name__.lower())
        if isinstance(fact, Submit):
            return await self._submit(tx, fact, now)
        request = await tx.requests.get(fact.request_id)
        if request is None:
            return admission.unknown_request(fact)
        if isinstance(fact, Cancel):
            change = transitions.cancel_asked(request, fact.message.reason, now)
            if change is None:
                already = request.state in (RequestState.CANCELLING, RequestState.CANCELLED)
                return None if already else admission.too_late(fact, request.state)
            await tx.requests.apply(change)
            return None
        if request.state in REQUEST_TERMINAL or request.state is RequestState.CANCELLING:
            return admission.too_late(fact, request.state)
        message = fact.message
        await tx.requests.amend(
            request.id, priority=message.priority, deadline=message.deadline, queues=message.queues, now=now
        )
        return None

    async def _submit(self, tx: Transaction, fact: Submit, now: datetime) -> Reject | None:
        message = fact.message
        request = Request(
            id=fact.request_id,
            tenant=message.tenant,
            idempotency_key=message.idempotency_key,
            body_digest=fact.body_digest,
            body=message.model_dump(mode="json"),
            state=RequestState.ACCEPTED,
            created_at=now,
            updated_at=now,
            priority=message.priority,
            deadline=message.deadline,
        )
        if await tx.requests.insert(request):
            await announce(self._context, tx, request, MessageType.STATUS_ACCEPTED, now)
            log.info("request_accepted", request_id=request.id, tenant=request.tenant, model=message.model)
            return None
        existing = await tx.requests.get(fact.request_id)
        if existing is not None and existing.body_digest != fact.body_digest:
            return admission.conflict_reject(fact)
        await announce(self._context, tx, existing or request, MessageType.STATUS_ACCEPTED, now, duplicate=True)
        return None

    async def _reject(self, reject: Reject, delivery: Delivery, now: datetime) -> None:
        context = self._context
        payload = reject.payload(delivery.body)
        event_id = context.entropy.new_id("e")
        body = encode(MessageType.STATUS_REJECTED, payload, event_id=event_id, source=SOURCE, time=now)
        attributes = {"type": MessageType.STATUS_REJECTED.value, "code": reject.code.value}
        await context.outboxes.rejects.send(body, attributes, reject.tenant or "unknown")
        context.recorder.count("messages_rejected", code=reject.code.value)
        log.warning("message_rejected", code=reject.code.value, reason=reject.reason, field=reject.field)
