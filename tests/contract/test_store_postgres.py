"""The store and its database: transactions, lost connections, limits, plans, and the house rules of its SQL."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Executable, Select, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.dml import UpdateBase

import controller.store
from controller.core.records import QueueState
from controller.ports import Unavailable
from controller.store import PostgresStore
from controller.store.attempts import CLAIM_DUE
from controller.store.shards import DUE, UNINDEXED
from deploy.local.processes import free_port
from schema.migrations.run import head
from schema.states import RequestState
from tests.builders import NOW, request, shard
from tests.postgres import TestServer, until_one_waits_for_a_lock
from tests.store_rows import fill


async def queue_names(store: PostgresStore) -> list[str]:
    async with store.transaction() as tx:
        return list(await tx.queues.all())


async def put(store: PostgresStore, **values: Any) -> None:
    async with store.transaction() as tx:
        await tx.queues.put(QueueState(name="g6e", **values))


def execute(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url.replace("+asyncpg", ""), autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


async def test_a_transaction_happens_as_a_whole_or_not(store: PostgresStore) -> None:
    async def fail() -> None:
        async with store.transaction() as tx:
            await tx.queues.put(QueueState(name="lost"))
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    async with store.transaction() as tx:
        await tx.queues.put(QueueState(name="kept"))
    assert await queue_names(store) == ["kept"]


async def test_a_cancelled_transaction_leaves_neither_rows_nor_a_broken_connection(database_url: str) -> None:
    store = PostgresStore.connect(database_url, pool_size=1)
    reached = asyncio.Event()

    async def stall() -> None:
        async with store.transaction() as tx:
            await tx.queues.put(QueueState(name="lost"))
            reached.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(stall())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await queue_names(store) == []
    await store.close()


async def test_a_statement_cancelled_while_it_waits_leaves_a_usable_store(database_url: str) -> None:
    store = PostgresStore.connect(database_url, pool_size=2)

    async with store.transaction() as tx:
        await tx.queues.put(QueueState(name="g6e"))
        waiting = asyncio.create_task(put(store, cooldown_seconds=1))
        await until_one_waits_for_a_lock(database_url, waiting)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with store.transaction() as tx:
        assert await tx.queues.all() == {"g6e": QueueState(name="g6e")}
    await store.close()


async def test_no_server_is_unavailable(database_url: str) -> None:
    address = database_url.split("@")[1].split("/")[0]
    store = PostgresStore.connect(database_url.replace(address, f"127.0.0.1:{free_port()}"))
    with pytest.raises(Unavailable, match="Postgres"):
        await queue_names(store)
    with pytest.raises(Unavailable):
        await store.ping()
    await store.close()


@pytest.mark.parametrize("wrong", ["reembed:wrong@", "nobody:x@"])
async def test_no_entry_is_unavailable_too(database_url: str, wrong: str) -> None:
    store = PostgresStore.connect(f"postgresql://{wrong}{database_url.split('@')[1]}")
    with pytest.raises(Unavailable, match="password authentication failed"):
        await queue_names(store)
    await store.close()


async def test_no_such_database_is_unavailable_too(database_url: str) -> None:
    store = PostgresStore.connect(database_url.rsplit("/", 1)[0] + "/nothing")
    with pytest.raises(Unavailable, match="does not exist"):
        await store.ping()
    await store.close()


@pytest.mark.parametrize("at_commit", [False, True])
async def test_a_lost_connection_costs_one_transaction(database_url: str, at_commit: bool) -> None:
    store = PostgresStore.connect(database_url, pool_size=1)
    others = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    async def lose_it() -> None:
        async with store.transaction() as tx:
            await tx.queues.put(QueueState(name="lost"))
            execute(database_url, others)
            if not at_commit:
                await tx.queues.put(QueueState(name="lost"))

    with pytest.raises(Unavailable):
        await lose_it()
    assert await queue_names(store) == []
    await store.close()


async def test_a_restart_of_the_server_is_survived(postgres_server: TestServer, database_url: str) -> None:
    store = PostgresStore.connect(database_url, pool_size=1)
    async with store.transaction() as tx:
        await tx.queues.put(QueueState(name="kept"))
    await asyncio.to_thread(postgres_server.cluster.stop, immediate=True)
    with pytest.raises(Unavailable):
        await queue_names(store)
    await asyncio.to_thread(postgres_server.cluster.start)
    assert await queue_names(store) == ["kept"]
    await store.close()


async def test_waiting_for_a_lock_has_a_limit(database_url: str) -> None:
    store = PostgresStore.connect(database_url, lock_timeout_seconds=0.1)
    async with store.transaction() as one:
        await one.queues.put(QueueState(name="g6e"))
        with pytest.raises(Unavailable, match="lock timeout"):
            await put(store)
    assert await queue_names(store) == ["g6e"]
    await store.close()


async def test_a_statement_has_a_limit(store: PostgresStore, database_url: str) -> None:
    hurried = PostgresStore.connect(database_url, statement_timeout_seconds=0.1, lock_timeout_seconds=10)
    async with store.transaction() as one:
        await one.queues.put(QueueState(name="g6e"))
        with pytest.raises(Unavailable, match="statement timeout"):
            await put(hurried)
    await hurried.close()


async def test_waiting_for_a_free_connection_has_a_limit(database_url: str) -> None:
    store = PostgresStore.connect(database_url, pool_size=1, connect_timeout_seconds=0.1)
    async with store.transaction() as tx:
        await tx.queues.all()
        with pytest.raises(Unavailable):
            await queue_names(store)
    await store.close()


async def test_a_deadlock_is_unavailable(store: PostgresStore, database_url: str) -> None:
    async with store.transaction() as tx:
        await tx.queues.put(QueueState(name="a"))
        await tx.queues.put(QueueState(name="b"))

    async def other() -> None:
        async with store.transaction() as two:
            await two.queues.put(QueueState(name="b", cooldown_seconds=2))
            locked.set()
            await two.queues.put(QueueState(name="a", cooldown_seconds=2))

    locked = asyncio.Event()
    failures: list[BaseException] = []
    try:
        async with store.transaction() as one:
            await one.queues.put(QueueState(name="a", cooldown_seconds=1))
            task = asyncio.create_task(other())
            await locked.wait()
            await until_one_waits_for_a_lock(database_url, task)
            await one.queues.put(QueueState(name="b", cooldown_seconds=1))
    except Unavailable as error:
        failures.append(error)
    failures += [found for found in await asyncio.gather(task, return_exceptions=True) if found is not None]
    assert [type(failure) for failure in failures] == [Unavailable]
    assert "deadlock" in str(failures[0])


async def test_what_goes_wrong_never_repeats_what_was_sent(database_url: str) -> None:
    store = PostgresStore.connect(database_url, lock_timeout_seconds=0.1)
    async with store.transaction() as one:
        await one.queues.put(QueueState(name="g6e"))
        with pytest.raises(Unavailable) as failure:
            await put(store, blocked_reason="secret")
    assert "secret" not in str(failure.value)
    await store.close()


async def test_ping_tells_the_revision(store: PostgresStore) -> None:
    assert await store.ping() == head()


async def test_connections_say_who_they_are_and_how_they_read(store: PostgresStore, database_url: str) -> None:
    async with store.transaction() as tx:
        await tx.queues.all()
        query = "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() ORDER BY 1"
        assert ("reembed-controller",) in execute(database_url, query)
    async with store._engine.connect() as connection:
        assert (await connection.execute(text("SHOW transaction_isolation"))).scalar_one() == "read committed"


# --- plans -------------------------------------------------------------------------------------------------------


class Explain(Executable, ClauseElement):
    """EXPLAIN ANALYZE of a statement as it really runs, with its parameters."""

    inherit_cache = False

    def __init__(self, statement: ClauseElement) -> None:
        self.statement = statement


@compiles(Explain)
def _explain(element: Explain, compiler: Any, **options: Any) -> str:
    return f"EXPLAIN (ANALYZE, FORMAT JSON) {compiler.process(element.statement, **options)}"


async def plan_of(store: PostgresStore, statement: ClauseElement, **values: Any) -> list[dict[str, Any]]:
    """Every node of the plan that Postgres ran, with the rows it read. The transaction is rolled back."""
    async with store._engine.connect() as connection:
        explained = (await connection.execute(Explain(statement), values)).scalar_one()
    return list(_nodes(explained[0]["Plan"]))


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)


def rows_read(plan: list[dict[str, Any]], table: str) -> int:
    scans = [node for node in plan if node.get("Relation Name") == table]
    return sum((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in scans)


async def many_shards(store: PostgresStore, database_url: str) -> None:
    """Six requests of 5,000 shards; four run. Half of the shards of each have succeeded, and most are indexed."""
    states = [RequestState.RUNNING] * 4 + [RequestState.SUCCEEDED, RequestState.ATTENTION]
    requests = [request(id=f"r-{i}", idempotency_key=str(i), state=state) for i, state in enumerate(states)]
    await fill(store, *requests, *(shard(0, request_id=one.id) for one in requests))
    execute(
        database_url,
        "INSERT INTO shards (request_id, shard, state, eligible_at, updated_at, key, sha256, assets, bytes, chunks, "
        "marker_digest, indexed_digest) SELECT r.id, n, CASE WHEN n % 2 = 0 THEN 'succeeded' ELSE 'pending' END, "
        "'2026-01-01', '2026-01-01', 'k', 'd', 1, 1, 1, 'm', CASE WHEN n < 4900 THEN 'm' END "
        "FROM requests r, generate_series(1, 5000) n",
    )
    execute(database_url, "ANALYZE shards, requests")


async def test_the_loops_questions_read_about_what_they_return(store: PostgresStore, database_url: str) -> None:
    await many_shards(store, database_url)
    due = await plan_of(store, DUE, now=NOW, limit=100)
    assert rows_read(due, "shards") <= 4 * 100
    unindexed = await plan_of(store, UNINDEXED, of_request="r-0", limit=20)
    assert rows_read(unindexed, "shards") <= 20
    claims = {"holder": "one", "now": NOW, "until": NOW + timedelta(seconds=60), "limit": 100}
    assert rows_read(await plan_of(store, CLAIM_DUE, **claims), "attempts") == 0


# --- house rules -------------------------------------------------------------------------------------------------


def statements() -> Iterator[tuple[str, str]]:
    """Every named statement of the store and its SQL."""
    for module in pkgutil.iter_modules(controller.store.__path__, "controller.store."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if name[0].isupper() and name.isupper() and isinstance(value, Select | UpdateBase):
                yield f"{module.name}.{name}", sql(value)


def sql(statement: ClauseElement) -> str:
    return str(statement.compile(dialect=postgresql.dialect()))


def test_statements_take_times_and_ids_from_the_caller() -> None:
    found = dict(statements())
    assert len(found) > 40
    for name, statement in found.items():
        for banned in ("now()", "current_timestamp", "random()", "gen_random_uuid", "nextval"):
            assert banned not in statement.lower(), name


def test_every_select_has_an_order_or_a_single_row() -> None:
    single = {"GET", "GET_LOCKED", "FENCE", "FREEZE", "COUNT_LIVE"}
    for name, statement in statements():
        if statement.startswith(("SELECT", "WITH")) and name.rpartition(".")[2] not in single:
            assert "ORDER BY" in statement, name
