"""What goes wrong in Postgres, in the words of the ports.

A failure that may pass by itself (connection lost, time-out, deadlock, no room) is `Unavailable`: the transaction
did not happen, or its commit got no answer, and every caller can run it again. Anything else, a violated
constraint above all, is our own bug and passes through unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from controller.ports import Unavailable

#: SQLSTATE classes and codes, see appendix A of the Postgres manual.
_PASSING = (
    "08",  # connection exception
    "25P03",  # idle in transaction for too long
    "40",  # transaction rollback: serialization failure, deadlock
    "53",  # insufficient resources: too many connections, disk full
    "55P03",  # lock not available: lock_timeout
    "57",  # operator intervention: statement_timeout, shutdown, starting up
    "58",  # system error outside of Postgres
)
#: The first use of a prepared statement after a migration; it is prepared anew at the next one.
_STALE_PLANS = (asyncpg.InvalidCachedStatementError, asyncpg.exceptions.OutdatedSchemaCacheError)


@contextmanager
def port_errors() -> Iterator[None]:
    """Wraps calls to the database and nothing else: it takes every OSError for a lost connection."""
    try:
        yield
    except DBAPIError as error:
        if not _passes(error):
            raise
        raise Unavailable(_message(error.orig or error)) from error
    except (OSError, PoolTimeoutError) as error:
        raise Unavailable(_message(error)) from error


@contextmanager
def connecting() -> Iterator[None]:
    """As `port_errors`, for opening a connection: whatever Postgres says then, there is no database for us."""
    try:
        with port_errors():
            yield
    except (DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise Unavailable(_message(error)) from error


def _passes(error: DBAPIError) -> bool:
    if error.connection_invalidated or isinstance(getattr(error.orig, "__cause__", None), _STALE_PLANS):
        return True
    return (getattr(error.orig, "sqlstate", None) or "").startswith(_PASSING)


def _message(error: BaseException) -> str:
    """Never the statement or its parameters, which SQLAlchemy's own text repeats."""
    if isinstance(error, DBAPIError):
        return _message(error.orig or ConnectionError("no answer"))
    lines = str(error).splitlines()
    return f"Postgres: {lines[0] if lines else type(error).__name__}"
