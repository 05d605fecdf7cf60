"""Operators' orders and the audit trail, which is only ever added to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert

from controller.core.records import Operation, OperationKind
from controller.store.connection import Connection
from controller.store.rows import Shape, stored
from controller.store.sql import LIMIT, text
from schema.tables import audit, operations

SHAPE = Shape(Operation, operations, kind=OperationKind)

_PENDING = operations.c.state == "pending"

#: A new order.
INSERT = insert(operations)
#: One order.
GET = select(*SHAPE.columns).where(operations.c.id == text("id"))
#: Orders that are not carried out, oldest first.
PENDING = select(*SHAPE.columns).where(_PENDING).order_by(operations.c.created_at, operations.c.id).limit(LIMIT)
#: An order is over, once.
FINISH = update(operations).where(operations.c.id == text("the_id"), _PENDING)
#: One line of the audit trail.
AUDIT = insert(audit)
#: What was done to one target, newest first.
AUDIT_OF = (
    select(audit).where(audit.c.target == text("target")).order_by(audit.c.at.desc(), audit.c.id.desc()).limit(LIMIT)
)


class SqlOperations:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def insert(self, operation: Operation) -> None:
        await self._connection.changed(INSERT, **SHAPE.write(operation))

    async def get(self, operation_id: str) -> Operation | None:
        return SHAPE.read_one(await self._connection.row(GET, id=operation_id))

    async def pending(self, limit: int) -> Sequence[Operation]:
        return [SHAPE.read(row) for row in await self._connection.rows(PENDING, limit=limit)]

    async def finish(self, operation_id: str, *, state: str, moved: int, skipped: int, now: datetime) -> bool:
        statement = FINISH.values(state=state, moved=moved, skipped=skipped, finished_at=now)
        return await self._connection.changed(statement, the_id=operation_id) == 1

    async def audit(
        self, *, id: str, at: datetime, actor: str, action: str, target: str, reason: str, detail: Mapping[str, Any]
    ) -> None:
        line = {"id": id, "at": at, "actor": actor, "action": action, "target": target, "reason": reason}
        await self._connection.changed(AUDIT, **stored({**line, "detail": detail}))

    async def audit_of(self, target: str, limit: int) -> Sequence[Mapping[str, Any]]:
        return [dict(row._mapping) for row in await self._connection.rows(AUDIT_OF, target=target, limit=limit)]
