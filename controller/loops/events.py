"""Status events for upstream, written to the outbox in the transaction that makes them true."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from controller.core.records import OutboxEvent, Request
from controller.loops.context import Context
from controller.ports import Transaction
from schema.messages import PAYLOADS, MessageType, encode

SOURCE = "reembed/controller"


async def announce(
    context: Context, tx: Transaction, request: Request, kind: MessageType, now: datetime, **fields: Any
) -> None:
    payload = PAYLOADS[kind](
        request_id=request.id,
        tenant=request.tenant,
        idempotency_key=request.idempotency_key,
        labels=request.body.get("labels", {}),
        **fields,
    )
    event_id = context.entropy.new_id("e")
    body = encode(kind, payload, event_id=event_id, source=SOURCE, time=now)
    await tx.events.add(OutboxEvent(id=event_id, request_id=request.id, type=kind.value, body=body, created_at=now))
