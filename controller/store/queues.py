"""Queues: what is remembered of each between cycles; and the freeze of all submissions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from controller.core.records import SUBMISSIONS, Circuit, Freeze, QueueState
from controller.store.connection import Connection
from controller.store.rows import Shape
from controller.store.sql import text
from schema.tables import freezes, queues

SHAPE = Shape(QueueState, queues, circuit=Circuit)

#: Every queue that anything is remembered of.
ALL = select(*SHAPE.columns).order_by(queues.c.name)
_PUT = insert(queues)
#: The whole state of one queue.
PUT = _PUT.on_conflict_do_update(
    index_elements=[queues.c.name],
    set_={column.name: _PUT.excluded[column.name] for column in SHAPE.columns if column.name != "name"},
)
_NOTE = insert(queues)
#: The reason at the head of a queue, since when; one that stays keeps its first time.
NOTE_BLOCKED = _NOTE.on_conflict_do_update(
    index_elements=[queues.c.name],
    set_={"blocked_reason": _NOTE.excluded.blocked_reason, "blocked_since": _NOTE.excluded.blocked_since},
    where=queues.c.blocked_reason.is_distinct_from(_NOTE.excluded.blocked_reason),
)


FREEZE_SHAPE = Shape(Freeze, freezes)
#: Whether submissions are frozen.
FREEZE = select(*FREEZE_SHAPE.columns).where(freezes.c.name == text("name"))
_FROZEN = insert(freezes)
#: The freeze as it shall be.
PUT_FREEZE = _FROZEN.on_conflict_do_update(
    index_elements=[freezes.c.name],
    set_={column.name: _FROZEN.excluded[column.name] for column in FREEZE_SHAPE.columns if column.name != "name"},
)


class SqlQueues:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def all(self) -> Mapping[str, QueueState]:
        states = [SHAPE.read(row) for row in await self._connection.rows(ALL)]
        return {state.name: state for state in states}

    async def put(self, state: QueueState) -> None:
        await self._connection.changed(PUT, **SHAPE.write(state))

    async def note_blocked(self, name: str, reason: str | None, now: datetime) -> None:
        since = None if reason is None else now
        await self._connection.changed(NOTE_BLOCKED, name=name, blocked_reason=reason, blocked_since=since)

    async def freeze(self) -> Freeze:
        return FREEZE_SHAPE.read_one(await self._connection.row(FREEZE, name=SUBMISSIONS)) or Freeze()

    async def put_freeze(self, freeze: Freeze) -> None:
        await self._connection.changed(PUT_FREEZE, **FREEZE_SHAPE.write(freeze))
