"""Leases: who leads, under an epoch that grows at every change of holder."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import case, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from controller.core.records import Lease
from controller.ports import Fenced
from controller.store.connection import Connection
from controller.store.rows import Shape
from controller.store.sql import NOW, text
from schema.tables import leases

SHAPE = Shape(Lease, leases)

_FIRST = insert(leases)
_OURS = leases.c.holder == _FIRST.excluded.holder
#: Take a lease that is ours, new or run out. A change of holder is a new epoch; no row comes back if it is another's.
ACQUIRE = _FIRST.on_conflict_do_update(
    index_elements=[leases.c.name],
    set_={
        "holder": _FIRST.excluded.holder,
        "until": _FIRST.excluded.until,
        "epoch": leases.c.epoch + case((_OURS, 0), else_=1),
    },
    where=or_(_OURS, leases.c.until <= NOW),
).returning(*SHAPE.columns)
#: Who holds it; nobody else can take it before this transaction ends.
FENCE = select(*SHAPE.columns).where(leases.c.name == text("name")).with_for_update(read=True)
#: Let it run out now.
RELEASE = (
    update(leases)
    .where(leases.c.name == text("the_name"), leases.c.holder == text("the_holder"), leases.c.until > NOW)
    .values(until=NOW)
)


class SqlLeases:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def acquire(self, name: str, holder: str, now: datetime, ttl_seconds: float) -> Lease | None:
        first = {"name": name, "holder": holder, "epoch": 1, "until": now + timedelta(seconds=ttl_seconds)}
        return SHAPE.read_one(await self._connection.row(ACQUIRE, now=now, **first))

    async def fence(self, name: str, lease: Lease) -> None:
        held = SHAPE.read_one(await self._connection.row(FENCE, name=name))
        if held is None or (held.holder, held.epoch) != (lease.holder, lease.epoch):
            raise Fenced(f"epoch {lease.epoch} of {name!r} is over")

    async def release(self, name: str, holder: str, now: datetime) -> None:
        await self._connection.changed(RELEASE, the_name=name, the_holder=holder, now=now)
