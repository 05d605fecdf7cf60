"""The store on Postgres: short transactions from one small pool.

Every connection has time limits of its own, so a stuck statement or lock ends as `Unavailable` and never hangs a
loop. A lost connection costs the transaction that used it; the next one opens a new one. Transactions run at READ
COMMITTED: correctness comes from guarded updates and row locks, see `controller.core.changes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import column as named
from sqlalchemy import select, table
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from controller.ports import Transaction, Unavailable
from controller.store.attempts import SqlAttempts
from controller.store.connection import Connection
from controller.store.errors import connecting, port_errors
from controller.store.events import SqlEvents
from controller.store.jobs import SqlJobs
from controller.store.leases import SqlLeases
from controller.store.measures import SqlMeasures
from controller.store.operations import SqlOperations
from controller.store.queues import SqlQueues
from controller.store.requests import SqlRequests
from controller.store.shards import SqlShards
from controller.store.totals import SqlTotals
from schema.database_url import async_url

_REVISIONS = table("alembic_version", named("version_num"))
#: Alembic's own record of where the schema is.
REVISION = select(_REVISIONS.c.version_num).order_by(_REVISIONS.c.version_num)


class SqlTransaction(Transaction):
    """Every aggregate on one connection."""

    def __init__(self, connection: Connection) -> None:
        self.requests = SqlRequests(connection)
        self.shards = SqlShards(connection)
        self.attempts = SqlAttempts(connection)
        self.jobs = SqlJobs(connection)
        self.leases = SqlLeases(connection)
        self.queues = SqlQueues(connection)
        self.events = SqlEvents(connection)
        self.totals = SqlTotals(connection)
        self.operations = SqlOperations(connection)
        self.measures = SqlMeasures(connection)


class PostgresStore:
    """`controller.ports.Store` on an engine of its own."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        pool_size: int = 10,
        connect_timeout_seconds: float = 10.0,
        statement_timeout_seconds: float = 30.0,
        lock_timeout_seconds: float = 10.0,
        application_name: str = "reembed-controller",
    ) -> PostgresStore:
        """Connections are opened when they are first needed, so this never fails for the database's sake."""
        limits = {
            "application_name": application_name,
            "default_transaction_isolation": "read committed",
            "statement_timeout": _milliseconds(statement_timeout_seconds),
            "lock_timeout": _milliseconds(lock_timeout_seconds),
            # A replica that hangs in mid-transaction must not keep its locks.
            "idle_in_transaction_session_timeout": _milliseconds(statement_timeout_seconds),
            "jit": "off",  # compiling costs more than our short statements
        }
        engine = create_async_engine(
            async_url(url),
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=connect_timeout_seconds,
            pool_use_lifo=True,
            connect_args={
                "server_settings": limits,
                "timeout": connect_timeout_seconds,
                # Ours ends a call whose connection went silent; the server's own limit comes first otherwise.
                "command_timeout": statement_timeout_seconds + connect_timeout_seconds,
            },
        )
        return cls(engine)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        connection = self._engine.connect()
        with connecting():
            await connection.start()
        try:
            transaction = SqlTransaction(Connection(connection))
            yield transaction
            await transaction.totals.write()
            with port_errors():
                await connection.commit()
        finally:
            # Rolls back what was not committed; a cancellation here must not leave a connection half returned.
            await asyncio.shield(connection.close())

    async def ping(self) -> str:
        connection = self._engine.connect()
        with connecting():
            await connection.start()
        try:
            row = await Connection(connection).row(REVISION)
        except ProgrammingError as error:
            raise Unavailable("the database has no schema yet") from error
        finally:
            await asyncio.shield(connection.close())
        if row is None:
            raise Unavailable("the database has no schema yet")
        return row.version_num

    async def close(self) -> None:
        await self._engine.dispose()


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))
