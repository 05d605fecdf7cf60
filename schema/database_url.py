"""Reads the URL of the control database, in any spelling that Postgres tools take, for asyncpg."""

from __future__ import annotations

from sqlalchemy import URL, make_url

_DRIVER = "postgresql+asyncpg"
_SPELLINGS = frozenset({_DRIVER, "postgresql", "postgres", "postgresql+psycopg", "postgresql+psycopg2"})


def async_url(database_url: str) -> URL:
    """The same database through asyncpg; ValueError for anything but Postgres. libpq's `sslmode` is asyncpg's `ssl`."""
    url = make_url(database_url)
    if url.drivername not in _SPELLINGS:
        raise ValueError(f"the control database is Postgres; {url.drivername!r} is not")
    query = {"ssl" if name == "sslmode" else name: value for name, value in url.query.items()}
    return url.set(drivername=_DRIVER, query=query)
