"""The outbox: status events written with the change they tell of, and sent at least once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, select, update
from sqlalchemy.dialects.postgresql import insert

from controller.core.records import OutboxEvent
from controller.store.connection import Connection
from controller.store.rows import Shape
from controller.store.sql import LIMIT, NOW, among, claim, text, time
from schema.tables import outbox

SHAPE = Shape(OutboxEvent, outbox)

#: A new event.
ADD = insert(outbox)
#: Events that are not sent and that nobody is sending, oldest first.
CLAIM_UNSENT = claim(outbox, outbox.c.sent_at.is_(None), ("created_at", "id"), SHAPE.columns)
#: They were sent; the first time counts.
SENT = (
    update(outbox)
    .where(among(outbox.c.id, "ids"), outbox.c.sent_at.is_(None))
    .values(sent_at=NOW, claimed_by=None, claim_until=None)
)
#: Events of one request, newest first.
OF_REQUEST = (
    select(*SHAPE.columns)
    .where(outbox.c.request_id == text("request_id"))
    .order_by(outbox.c.created_at.desc(), outbox.c.id.desc())
    .limit(LIMIT)
)
_OLD = (
    select(outbox.c.id)
    .where(outbox.c.sent_at.is_not(None), outbox.c.sent_at < time("sent_before"))
    .order_by(outbox.c.sent_at, outbox.c.id)
    .limit(LIMIT)
    .with_for_update(skip_locked=True)
    .cte("picked")
)
#: Forget what was sent long ago.
PRUNE = delete(outbox).where(outbox.c.id == _OLD.c.id)


class SqlEvents:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def add(self, event: OutboxEvent) -> None:
        await self._connection.changed(ADD, **SHAPE.write(event))

    async def claim_unsent(self, holder: str, now: datetime, until: datetime, limit: int) -> Sequence[OutboxEvent]:
        rows = await self._connection.rows(CLAIM_UNSENT, holder=holder, now=now, until=until, limit=limit)
        return [SHAPE.read(row) for row in rows]

    async def sent(self, event_ids: Sequence[str], now: datetime) -> None:
        await self._connection.changed(SENT, ids=list(event_ids), now=now)

    async def of_request(self, request_id: str, limit: int) -> Sequence[OutboxEvent]:
        rows = await self._connection.rows(OF_REQUEST, request_id=request_id, limit=limit)
        return [SHAPE.read(row) for row in rows]

    async def prune(self, sent_before: datetime, limit: int) -> int:
        return await self._connection.changed(PRUNE, sent_before=sent_before, limit=limit)
