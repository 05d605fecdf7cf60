"""A real Postgres for tests: one server a session, one migrated template, a copy of it for each test."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import make_url

from deploy.local.postgres import Database, Driver, PostgresCluster
from schema.migrations.run import upgrade

_TEMPLATE = "reembed_template"
_BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


class TestServer:
    """Databases that cost a few milliseconds each. `cluster` is there for tests that crash or restart it."""

    __test__ = False

    def __init__(self, cluster: PostgresCluster) -> None:
        self.cluster = cluster
        self._numbers = itertools.count(1)
        self._migrated = False

    @contextmanager
    def database(self, *, migrated: bool = True) -> Iterator[str]:
        """The asyncpg URL of a new database; dropped at the end, whoever is still connected."""
        if migrated and not self._migrated:
            self._execute(f"CREATE DATABASE {_TEMPLATE}")
            upgrade(self._url(_TEMPLATE))
            self._migrated = True
        name = f"test_{next(self._numbers)}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE if migrated else 'template0'}")
        try:
            yield self._url(name)
        finally:
            self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _url(self, database: str) -> str:
        url = make_url(self.cluster.url(Database.CONTROL, Driver.ASYNCPG)).set(database=database)
        return url.render_as_string(hide_password=False)

    def _execute(self, statement: str) -> None:
        url = self.cluster.url(Database.CONTROL, Driver.PSYCOPG)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement.encode())


async def until_one_waits_for_a_lock(url: str, waiting: asyncio.Task[Any], *, deadline_seconds: float = 30) -> None:
    """Returns once a connection of this database waits for a lock; fails if `waiting` ends before, or never waits."""
    async with asyncio.timeout(deadline_seconds):
        async with await psycopg.AsyncConnection.connect(url.replace("+asyncpg", ""), autocommit=True) as connection:
            while True:
                found = await connection.execute(_BLOCKED)
                if await found.fetchone() != (0,):
                    return
                assert not waiting.done(), "it did not wait"


@contextmanager
def postgres_server(directory: Path) -> Iterator[TestServer]:
    """A running cluster whose owner of the control database may create databases."""
    cluster = PostgresCluster(directory / "postgres", log_path=directory / "postgres.log")
    cluster.start()
    try:
        _allow_databases(cluster, (directory / "postgres" / "password").read_text())
        yield TestServer(cluster)
    finally:
        cluster.stop()


def _allow_databases(cluster: PostgresCluster, superuser_password: str) -> None:
    owner = make_url(cluster.url(Database.CONTROL, Driver.PSYCOPG))
    superuser = owner.set(username="postgres", password=superuser_password, database="postgres")
    with psycopg.connect(superuser.render_as_string(hide_password=False), autocommit=True) as connection:
        connection.execute(f"ALTER ROLE {owner.username} CREATEDB".encode())
        # DROP … WITH (FORCE) has to end an autovacuum worker that is there by chance.
        connection.execute(f"GRANT pg_signal_backend TO {owner.username}".encode())
