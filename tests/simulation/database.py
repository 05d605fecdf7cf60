"""The real Postgres behind gates: an engine whose connections park before each statement and each commit.

Transactions of all loops and controllers are open side by side, but only one statement runs at a time. One that would
have to wait for a lock is undone to a savepoint, parked until some transaction has ended, and run again: so the seed
decides who gets the lock, and not the operating system. A crash ends the connections of its process in mid-transaction.
After each transaction that wrote something, the rows it wrote are read back, by the age of their transactions, so that
every change can be checked. A transaction is begun at its first statement that writes or locks: at READ COMMITTED
nothing before that can tell the difference, and most never come so far.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import asyncpg
from sqlalchemy import Executable, Select, UpdateBase
from sqlalchemy.exc import DBAPIError, ResourceClosedError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.sql import visitors

from controller.store import attempts, events, jobs, leases, measures, operations, queues, requests, shards, totals
from controller.store.rows import Shape
from tests.simulation.scheduler import ACTOR, Actor, Crashed, Process, Scheduler

BEFORE, AFTER = "connection lost", "answer of the commit lost"
LOCK_NOT_AVAILABLE = "55P03"
#: Virtual; as the store's own lock_timeout.
LOCK_SECONDS = 10.0
_MODULES = (attempts, events, jobs, leases, measures, operations, queues, requests, shards, totals)
_OLDEST_OPEN = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
SHAPES: Mapping[str, Shape[Any]] = {
    "requests": requests.SHAPE,
    "shards": shards.SHAPE,
    "attempts": attempts.SHAPE,
    "jobs": jobs.SHAPE,
    "leases": leases.SHAPE,
    "totals": totals.SHAPE,
    "operations": operations.SHAPE,
}


def _names(modules: tuple[ModuleType, ...]) -> dict[int, str]:
    return {
        id(value): f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Executable)
    }


_NAMED = _names(_MODULES)


def statement_name(statement: Executable) -> str:
    """The constant of the store that it is, or what it does to which table."""
    known = _NAMED.get(id(statement))
    if known is not None:
        return known
    table = getattr(statement, "table", None)
    return f"{type(statement).__name__.upper()} {table}" if table is not None else type(statement).__name__.upper()


@functools.cache
def kind_of(statement: Executable) -> tuple[bool, bool]:
    """Whether it writes rows, and whether it writes or locks any, if only in a part of it."""
    parts = list(visitors.iterate(statement))  # type: ignore[arg-type]
    writes = any(isinstance(part, UpdateBase) for part in parts)
    return writes, writes or any(isinstance(part, Select) and part._for_update_arg is not None for part in parts)


@dataclass(frozen=True)
class Written:
    """The rows that one transaction wrote, as records, by table; some older ones may be among them, unchanged."""

    actor: Actor
    rows: Mapping[str, list[Any]]


class Server:
    """One database and one pool for many seeds; `attach` binds it to a scheduler."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.engine: AsyncEngine = create_async_engine(
            url,
            pool_size=60,
            max_overflow=0,
            pool_use_lifo=True,
            isolation_level="AUTOCOMMIT",
            connect_args={
                "server_settings": {"jit": "off", "lock_timeout": "1", "plan_cache_mode": "force_generic_plan"}
            },
        )
        self._monitor: asyncpg.Connection[Any] | None = None

    async def open(self) -> None:
        self._monitor = await asyncpg.connect(self._url.replace("+asyncpg", ""))
        found = await self._monitor.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
        self._tables = [row[0] for row in found if row[0] != "alembic_version"]
        # Inside of rows asyncpg reads binary formats only; that of jsonb is the text behind one byte.
        await self._monitor.set_type_codec(
            "jsonb", schema="pg_catalog", encoder=bytes, decoder=lambda body: json.loads(body[1:]), format="binary"
        )
        self._reads: dict[tuple[str, ...], Any] = {}
        self._horizon = self._oldest_open = 0

    async def close(self) -> None:
        assert self._monitor is not None
        await self._monitor.close()
        await self.engine.dispose()

    def attach(self, scheduler: Scheduler, on_write: Callable[[Written], None]) -> Database:
        database = Database(self, scheduler, on_write)
        scheduler.database_settled = database.settled
        return database

    async def empty(self) -> None:
        await self.monitor.execute(f"TRUNCATE {', '.join(self._tables)}")

    @property
    def monitor(self) -> asyncpg.Connection[Any]:
        assert self._monitor is not None
        return self._monitor

    async def written(self, tables: Iterable[str]) -> dict[str, list[Any]]:
        """Rows of these tables that may have changed since the last `forget`, in one round trip."""
        names = tuple(sorted(tables))
        if names not in self._reads:
            self._reads[names] = await self.monitor.prepare(f"SELECT {_OLDEST_OPEN}, {', '.join(map(_changed, names))}")
        self._oldest_open, *found = await self._reads[names].fetchrow(self._horizon)
        return {name: [_record(name, row) for row in rows] for name, rows in zip(names, found, strict=True)}

    def forget(self) -> None:
        """All that was committed has been looked at: from now on only what was open then or comes has to be."""
        self._horizon = self._oldest_open


def _changed(table: str) -> str:
    return f"ARRAY(SELECT changed FROM {table} AS changed WHERE xmin::text::bigint >= $1)"


def _record(table: str, row: asyncpg.Record) -> Any:
    """A record of the core; of a total the key and its value."""
    values = {column.name: row[column.name] for column in SHAPES[table].columns}
    record = SHAPES[table].read(SimpleNamespace(_mapping=values))  # type: ignore[arg-type]
    return (record, row["value"]) if table == "totals" else record


class Database:
    """One seed's view: which connections are in a transaction now, and whose."""

    def __init__(self, server: Server, scheduler: Scheduler, on_write: Callable[[Written], None]) -> None:
        self.server = server
        self.scheduler = scheduler
        #: Statements that wait for a lock.
        self.waiting: list[asyncio.Future[None]] = []
        self._on_write = on_write
        #: Those inside a transaction, which may hold locks.
        self.begun: set[SimConnection] = set()
        self._open: dict[SimConnection, Process] = {}
        self._inside = 0
        self._left = asyncio.Event()
        self._unread: list[tuple[Actor, set[str]]] = []

    def connect(self) -> SimConnection:
        """As AsyncEngine.connect: not started yet."""
        return SimConnection(self, self.server.engine.connect())

    async def settled(self) -> bool:
        """Called when no task can go on by itself: True if nobody is inside Postgres either."""
        if self._inside:
            self._left.clear()
            await self._left.wait()
            return False
        unread, self._unread = self._unread, []
        for actor, tables in unread:
            self._on_write(Written(actor, await self.server.written(tables)))
        if unread:
            self.server.forget()
        return True

    async def inside(self, work: Awaitable[Any]) -> Any:
        self._inside += 1
        try:
            return await work
        finally:
            self._inside -= 1
            self._left.set()

    def opened(self, connection: SimConnection, process: Process) -> None:
        self._open[connection] = process

    def ended(self, connection: SimConnection) -> None:
        """Its locks are free: whoever waits may try again."""
        self.begun.discard(connection)
        if self._open.pop(connection, None) is not None:
            for waiter in self.waiting:
                if not waiter.done():
                    waiter.set_result(None)

    def wrote(self, actor: Actor, tables: set[str]) -> None:
        self._unread.append((actor, tables))

    async def kill(self, process: Process) -> None:
        """End the connections of a dead process, and wait until Postgres has rolled them back."""
        mine = [connection for connection, owner in self._open.items() if owner is process]
        for connection in mine:
            connection.gone = True
        for connection in mine:
            await self.server.monitor.fetchval("SELECT pg_terminate_backend($1, 5000)", connection.pid)
            self.ended(connection)
            await connection.forget()


class SimConnection:
    """The part of AsyncConnection that the store uses."""

    def __init__(self, database: Database, raw: AsyncConnection) -> None:
        self._database = database
        self._raw = raw
        self._driver: Any = None
        self.gone = False
        self._tables: set[str] = set()

    @property
    def pid(self) -> int:
        return self._driver.get_server_pid()

    async def start(self) -> None:
        actor = ACTOR.get()
        if actor.process.dead:
            raise Crashed
        await self._database.inside(self._raw.start())
        self._driver = (await self._raw.get_raw_connection()).driver_connection
        self._database.opened(self, actor.process)

    async def execute(self, statement: Executable, values: Any = None) -> Any:
        point = f"sql {statement_name(statement)}"
        deadline = self._database.scheduler.time + LOCK_SECONDS
        while True:
            fault = await self._database.scheduler.gate(point)
            self._check()
            if fault is not None:
                raise ConnectionResetError(fault)
            try:
                return await self._database.inside(self._attempt(statement, values))
            except DBAPIError as error:
                left = deadline - self._database.scheduler.time
                if getattr(error.orig, "sqlstate", None) != LOCK_NOT_AVAILABLE or left <= 0:
                    raise
            await self._database.scheduler.sleep(left, self._database.waiting)

    async def _attempt(self, statement: Executable, values: Any) -> Any:
        """Run it; when a lock is taken, leave the transaction as it was before."""
        writes, locks = kind_of(statement)
        if not locks:
            return await self._raw.execute(statement, values)
        alone = self._database.begun <= {self}
        preparation = [] if self in self._database.begun else ["BEGIN"]
        preparation += [] if alone else ["SAVEPOINT s"]
        if preparation:
            await self._driver.execute("; ".join(preparation))
        self._database.begun.add(self)
        try:
            result = await self._raw.execute(statement, values)
        except DBAPIError:
            if not alone:
                await self._driver.execute("ROLLBACK TO SAVEPOINT s")
            raise
        if writes and result.rowcount != 0:
            self._tables |= {name for name in SHAPES if name in statement_name(statement)}
        return result

    async def commit(self) -> None:
        if not self._tables:  # nothing was written, and nothing can go wrong
            self._check()
            await self._end("COMMIT")
            return
        fault = await self._database.scheduler.gate("sql commit")
        self._check()
        if fault == BEFORE:
            raise ConnectionResetError(fault)
        await self._end("COMMIT")
        self._database.wrote(ACTOR.get(), self._tables)
        if fault == AFTER:
            raise ConnectionResetError(fault)

    async def _end(self, how: str) -> None:
        if self in self._database.begun:
            await self._database.inside(self._driver.execute(how))
        self._database.ended(self)

    async def close(self) -> None:
        if self.gone:
            return
        self.gone = True
        await self._end("ROLLBACK")
        await self._database.inside(self._raw.close())

    async def forget(self) -> None:
        """The server has closed it."""
        self.gone = True
        with suppress(ResourceClosedError):
            await self._raw.invalidate()
            await self._raw.close()

    def _check(self) -> None:
        if self.gone or ACTOR.get().process.dead:
            raise Crashed
