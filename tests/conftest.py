"""Fixtures that every kind of test may use. What is heavy is imported where it is first needed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from controller.store import PostgresStore
    from tests.postgres import TestServer

# A machine may be busy, and the first draw in a new checkout builds tables: no test depends on a time.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    """One Postgres for the session."""
    from tests.postgres import postgres_server

    with postgres_server(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture
def database_url(postgres_server: TestServer) -> Iterator[str]:
    """An asyncpg URL of a database of the test's own, migrated to the newest revision."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[PostgresStore]:
    """The real store on `database_url`."""
    from controller.store import PostgresStore

    store = PostgresStore.connect(database_url, pool_size=5)
    yield store
    await store.close()
