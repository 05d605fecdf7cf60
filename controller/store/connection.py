"""One connection inside its transaction: runs statements, tells rows from counts, and speaks in port errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Executable, Row
from sqlalchemy.ext.asyncio import AsyncConnection

from controller.store.errors import port_errors


class Connection:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def rows(self, statement: Executable, **values: Any) -> Sequence[Row[Any]]:
        with port_errors():
            return (await self._connection.execute(statement, values)).all()

    async def row(self, statement: Executable, **values: Any) -> Row[Any] | None:
        """The only row, or None."""
        with port_errors():
            return (await self._connection.execute(statement, values)).one_or_none()

    async def changed(self, statement: Executable, **values: Any) -> int:
        """Runs a statement that writes; the number of rows it wrote."""
        with port_errors():
            return (await self._connection.execute(statement, values)).rowcount

    async def returned(self, statement: Executable, many: Sequence[Mapping[str, Any]]) -> int:
        """Writes many rows in few statements; the number of rows that came back by RETURNING."""
        with port_errors():
            return len((await self._connection.execute(statement, many)).all())

    async def each(self, statement: Executable, many: Sequence[Mapping[str, Any]]) -> None:
        """Runs one statement for each, in their order."""
        with port_errors():
            await self._connection.execute(statement, many)
