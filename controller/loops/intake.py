"""Intake: requests from SQS become rows, or go to the reject queue with the reason and the fix, at first receipt.

A message is deleted only after its row is committed or its rejection is sent (I1). One message's trouble never
holds up the next: each is taken in a transaction of its own.
"""

from __future__ import annotations

from datetime import datetime

from controller.core import transitions
from controller.core.admission import Amend, Cancel, Submit, admit, amended_queues_reject
from controller.core.records import Request
from controller.core.rejects import Reject, conflict_reject, rejected, too_late, unknown_request
from controller.loops.context import Context, log
from controller.loops.events import SOURCE, announce
from controller.loops.runner import Outcome
from controller.ports import Delivery, Transaction, Unavailable
from schema.messages import MessageType, Mode, encode
from schema.states import REQUEST_TERMINAL, RequestState


class Intake:
    name = "intake"

    def __init__(self, context: Context) -> None:
        self._context = context

    async def step(self, now: datetime) -> Outcome:
        context = self._context
        deliveries = await context.inboxes.requests.receive(limit=10, wait_seconds=context.settings.loops.poll_seconds)
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
        fact = admit(delivery.body, self._context.policy, now)
        async with self._context.store.transaction() as tx:
            refusal = await self._record(tx, fact, now)
        if refusal is not None:
            await self._reject(refusal, delivery, now)

    async def _record(self, tx: Transaction, fact: Submit | Cancel | Amend | Reject, now: datetime) -> Reject | None:
        self._context.recorder.count("requests_received", type=type(fact).__name__.lower())
        if isinstance(fact, Reject):
            return await self._unless_known(tx, fact, now)
        if isinstance(fact, Submit):
            return await self._submit(tx, fact, now)
        tenant, key = fact.message.tenant, fact.message.idempotency_key
        request = await tx.requests.get(fact.request_id, lock=True)
        if request is None:
            return unknown_request(tenant, key, fact.origin)
        if isinstance(fact, Cancel):
            change = transitions.cancel_asked(request, fact.message.reason, now)
            if change is not None:
                await tx.requests.apply(change)
                return None
            already = request.state in (RequestState.CANCELLING, RequestState.CANCELLED)
            return None if already else too_late(tenant, key, request.state, fact.origin)
        return await self._amend(tx, fact, request, now)

    async def _amend(self, tx: Transaction, fact: Amend, request: Request, now: datetime) -> Reject | None:
        message = fact.message
        if request.state in REQUEST_TERMINAL or request.state is RequestState.CANCELLING:
            return too_late(message.tenant, message.idempotency_key, request.state, fact.origin)
        mode = Mode(request.body.get("mode", Mode.ARRAY))
        refusal = amended_queues_reject(fact, mode, request.model, self._context.policy)
        if refusal is None:
            await tx.requests.amend(
                request.id, priority=message.priority, deadline=message.deadline, queues=message.queues, now=now
            )
        return refusal

    async def _unless_known(self, tx: Transaction, refusal: Reject, now: datetime) -> Reject | None:
        """A redelivery of an accepted request is a duplicate even if policy or time stand against it by now."""
        if refusal.request_id is None or refusal.body_digest is None:
            return refusal
        existing = await tx.requests.get(refusal.request_id)
        if existing is None or existing.body_digest != refusal.body_digest:
            return refusal
        await announce(self._context, tx, existing, MessageType.STATUS_ACCEPTED, now, duplicate=True)
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
            return conflict_reject(message.tenant, message.idempotency_key, fact.origin)
        await announce(self._context, tx, existing or request, MessageType.STATUS_ACCEPTED, now, duplicate=True)
        return None

    async def _reject(self, reject: Reject, delivery: Delivery, now: datetime) -> None:
        context = self._context
        payload = rejected(reject, delivery.body)
        event_id = context.entropy.new_id("e")
        body = encode(MessageType.STATUS_REJECTED, payload, event_id=event_id, source=SOURCE, time=now)
        attributes = {"type": MessageType.STATUS_REJECTED.value, "code": reject.code.value}
        group = reject.tenant or "unknown"
        await context.outboxes.status.send(body, attributes, group)
        await context.outboxes.rejects.send(body, attributes, group)
        context.recorder.count("messages_rejected", code=reject.code.value)
        log.warning("message_rejected", code=reject.code.value, reason=reject.reason, field=reject.field)
