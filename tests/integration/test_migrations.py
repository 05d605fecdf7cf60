"""Migrations on a real Postgres: up, down, up; equal to the tables of the code; in turn; from any directory."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from controller.ports import Unavailable
from controller.store import PostgresStore
from schema.database_url import async_url
from schema.migrations.run import ADVISORY_LOCK, current, downgrade, head, upgrade
from schema.tables import metadata
from tests.postgres import TestServer

ROOT = Path(__file__).parents[2]

#: Everything that a table is, as Postgres itself words it; the names of tables and the order of columns included.
CATALOGUE = """
SELECT 'column', table_name, format('%s %s %s %s default %s', ordinal_position, column_name, data_type,
                                    is_nullable, column_default)
FROM information_schema.columns WHERE table_schema = 'public'
UNION ALL
SELECT 'index', tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL
SELECT 'constraint', conrelid::regclass::text, conname || ' ' || pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
UNION ALL
SELECT 'comment', objoid::regclass::text, objsubid || ' ' || description
FROM pg_description WHERE classoid = 'pg_class'::regclass AND objoid::regclass::text IN
    (SELECT tablename FROM pg_tables WHERE schemaname = 'public')
ORDER BY 1, 2, 3
"""


@pytest.fixture
def empty_url(postgres_server: TestServer) -> Iterator[str]:
    with postgres_server.database(migrated=False) as url:
        yield url


def plain(url: str) -> str:
    return url.replace("+asyncpg", "")


def catalogue(url: str) -> list[Any]:
    with psycopg.connect(plain(url)) as connection:
        return [row for row in connection.execute(CATALOGUE).fetchall() if row[1] != "alembic_version"]


async def on(url: str, work: Callable[[Connection], Any]) -> Any:
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        found = await connection.run_sync(work)
    await engine.dispose()
    return found


def test_up_down_up(empty_url: str) -> None:
    assert current(empty_url) is None
    upgrade(empty_url)
    assert current(empty_url) == head()
    first = catalogue(empty_url)
    assert {"requests", "shards", "attempts", "jobs"} <= {table for _, table, _ in first}
    downgrade(empty_url, "base")
    assert current(empty_url) is None
    assert catalogue(empty_url) == []
    upgrade(empty_url)
    assert catalogue(empty_url) == first


async def test_the_migrations_make_the_tables_of_the_code(database_url: str) -> None:
    def differences(connection: Connection) -> Any:
        options = {"compare_type": True, "compare_server_default": True}
        return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)

    assert await on(database_url, differences) == []


async def test_checks_partial_indexes_and_comments_are_those_of_the_code_too(database_url: str, empty_url: str) -> None:
    """Alembic's own comparison passes over check constraints and the WHERE of an index."""
    await on(empty_url, metadata.create_all)
    assert catalogue(database_url) == catalogue(empty_url)


def test_an_upgrade_of_what_is_up_to_date_keeps_everything(database_url: str) -> None:
    with psycopg.connect(plain(database_url), autocommit=True) as connection:
        connection.execute("INSERT INTO leases VALUES ('leader', 'me', 1, '2026-12-01T12:00:00Z')")
        upgrade(database_url)
        assert connection.execute("SELECT holder FROM leases").fetchall() == [("me",)]


@pytest.mark.parametrize("spelling", ["postgresql+asyncpg", "postgresql", "postgres"])
def test_urls_in_any_spelling(empty_url: str, spelling: str) -> None:
    url = empty_url.replace("postgresql+asyncpg", spelling)
    upgrade(url)
    assert current(url) == head()


def test_another_database_system_is_refused() -> None:
    with pytest.raises(ValueError, match="sqlite"):
        upgrade("sqlite:///x.db")


def test_ssl_modes_of_libpq_are_understood() -> None:
    url = async_url("postgresql://u:p@h/d?sslmode=require")
    assert (url.drivername, dict(url.query)) == ("postgresql+asyncpg", {"ssl": "require"})


def test_migrators_that_start_together_take_turns(empty_url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(upgrade, empty_url) for _ in range(4)]:
            done.result()
    assert current(empty_url) == head()


def test_a_migrator_waits_for_the_one_at_work(empty_url: str) -> None:
    """The lock is held from outside; the migration is seen waiting for it, and goes on when it is let go."""
    with psycopg.connect(plain(empty_url), autocommit=True) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SELECT pg_advisory_lock(%s)", [ADVISORY_LOCK])
        waiting = pool.submit(upgrade, empty_url)
        query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while other.execute(query).fetchone() == (0,):
            assert not waiting.done()
        assert other.execute("SELECT to_regclass('requests')").fetchone() == (None,)
        other.execute("SELECT pg_advisory_unlock(%s)", [ADVISORY_LOCK])
        waiting.result()
    assert current(empty_url) == head()


def test_a_migration_does_not_wait_for_ever_behind_a_long_transaction(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("schema.migrations.run.LOCK_SECONDS", 1)
    before = catalogue(database_url)
    with psycopg.connect(plain(database_url)) as reader:
        reader.execute("SELECT count(*) FROM requests")
        with pytest.raises(DBAPIError, match="lock timeout"):
            downgrade(database_url, "base")
    assert catalogue(database_url) == before
    assert current(database_url) == head()


async def test_the_store_says_where_the_schema_is(empty_url: str) -> None:
    store = PostgresStore.connect(empty_url)
    with pytest.raises(Unavailable, match="no schema"):
        await store.ping()
    await asyncio.to_thread(upgrade, empty_url)
    assert await store.ping() == head()
    await asyncio.to_thread(downgrade, empty_url, "base")
    with pytest.raises(Unavailable, match="no schema"):
        await store.ping()
    await store.close()


def test_they_run_from_wherever_the_package_is_installed(empty_url: str, tmp_path: Path) -> None:
    """Another process, from another directory, whose name has a percent sign, and no alembic.ini anywhere."""
    site = tmp_path / "100% site"
    shutil.copytree(ROOT / "schema", site / "schema", ignore=shutil.ignore_patterns("__pycache__"))
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import schema.migrations.run as run; "
        "assert run.__file__.startswith(sys.argv[1]), run.__file__; run.upgrade(sys.argv[2]); print(run.head())"
    )
    arguments = [sys.executable, "-c", program, str(site), empty_url]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == head(), done.stderr
    assert current(empty_url) == head()
