"""Applies the migrations: from the code, from a checkout or from an installed wheel alike.

Owns the connection, the lock and the limits; what changes is in `versions/`. One caller migrates at a time, the
others wait for it and then find nothing to do, so several controllers may start at once. Every wait for a table is
bounded, so that a migration behind a long transaction fails instead of holding up everybody who queues behind it.

These functions block and run an event loop of their own: call them from a thread (`asyncio.to_thread`) where one
runs already. They fail with what SQLAlchemy, asyncpg or Alembic raises; a failed migration leaves nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from schema.database_url import async_url

#: Any number that nothing else locks in this database ("reemb" in ASCII).
ADVISORY_LOCK = 0x7265656D62
#: For another migrator to finish.
TURN_SECONDS = 300
#: For a table that is in use.
LOCK_SECONDS = 10


def upgrade(database_url: str, revision: str = "head") -> None:
    """Migrate up to `revision`; nothing happens when the database is there already."""
    _run(database_url, lambda connection: command.upgrade(_config(connection), revision))


def downgrade(database_url: str, revision: str) -> None:
    """Migrate down to `revision`; `base` drops every table."""
    _run(database_url, lambda connection: command.downgrade(_config(connection), revision))


def current(database_url: str) -> str | None:
    """The revision the database is at, or None before the first migration."""
    found: list[str | None] = []
    _run(database_url, lambda connection: found.append(MigrationContext.configure(connection).get_current_revision()))
    return found[0]


def head() -> str:
    """The newest revision this code knows."""
    revision = ScriptDirectory.from_config(_config(None)).get_current_head()
    assert revision is not None
    return revision


def _config(connection: Connection | None) -> Config:
    config = Config()
    # Alembic reads the value through configparser, where a percent sign is special.
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _run(database_url: str, work: Callable[[Connection], object]) -> None:
    asyncio.run(_run_async(database_url, work))


async def _run_async(database_url: str, work: Callable[[Connection], object]) -> None:
    engine = create_async_engine(async_url(database_url), poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_in_turn, work)
    finally:
        await engine.dispose()


def _in_turn(connection: Connection, work: Callable[[Connection], object]) -> None:
    """Hold the advisory lock meanwhile. It belongs to the session, so it ends with the connection at the latest."""
    connection.execute(text(f"SET lock_timeout = '{TURN_SECONDS}s'"))
    connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": ADVISORY_LOCK})
    connection.execute(text(f"SET lock_timeout = '{LOCK_SECONDS}s'"))
    connection.commit()
    try:
        work(connection)
    finally:
        # After a lost connection there is nothing to unlock, and the first error is the one to tell.
        with suppress(Exception):
            connection.rollback()
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": ADVISORY_LOCK})
            connection.commit()
