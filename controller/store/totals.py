"""Totals: counters that live in the database, added in the transaction that makes them true (I9).

Every report adds to the same few rows. So additions wait until the transaction is about to commit: then they are
written in one order, whatever the order of the calls, and no two transactions wait for each other in a circle, nor
for longer than a commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from controller.core.records import TotalKey
from controller.store.connection import Connection
from controller.store.rows import Shape
from schema.tables import totals

SHAPE = Shape(TotalKey, totals)

_ADD = insert(totals)
#: Add to one total, from zero if it is new.
ADD = _ADD.on_conflict_do_update(
    index_elements=[totals.c.name, totals.c.model, totals.c.queue, totals.c.label],
    set_={"value": totals.c.value + _ADD.excluded.value},
)
#: Every total.
ALL = select(*SHAPE.columns, totals.c.value).order_by(*SHAPE.columns)


class SqlTotals:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: Counter[TotalKey] = Counter()

    async def add(self, deltas: Mapping[TotalKey, float]) -> None:
        for key, delta in deltas.items():
            self._waiting[key] += delta  # type: ignore[assignment]

    async def write(self) -> None:
        """What was added so far. The transaction calls it just before its commit."""
        waiting, self._waiting = self._waiting, Counter()
        if waiting:
            ordered = sorted(waiting, key=astuple)
            await self._connection.each(ADD, [{**SHAPE.write(key), "value": waiting[key]} for key in ordered])

    async def all(self) -> Mapping[TotalKey, float]:
        await self.write()
        rows = await self._connection.rows(ALL)
        return {TotalKey(name=r.name, model=r.model, queue=r.queue, label=r.label): r.value for r in rows}
