"""Searching what finished requests have indexed: the reading side of an alias.

A search sees one table: the one that its alias names when it begins. Fails with `UnknownAlias` before the first
request of an alias has finished, and with `ValueError` for a vector of another model's dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg.sql import SQL, Identifier

from worker.index import sql

CONNECT_SECONDS = 10
#: pgvector's own bounds of hnsw.ef_search, and its default.
_WIDEST_SEARCH, _USUAL_SEARCH = 1000, 40
#: What a database that is away or refuses raises here.
DATABASE_ERRORS = psycopg.Error


class UnknownAlias(LookupError):
    """No finished request has given this alias a table."""


class UnknownAsset(LookupError):
    """The index has no vector for this key."""


@dataclass(frozen=True, slots=True)
class Target:
    """A table of vectors, and the request that filled it."""

    table: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Hit:
    """An asset near the query; `distance` is cosine distance, 0 for the same direction, 2 for the opposite."""

    key: bytes
    distance: float


def find(url: str, name: str) -> Target:
    """What an alias names now, or what the request of this id was indexed into."""
    with psycopg.connect(url, connect_timeout=CONNECT_SECONDS) as connection:
        try:
            found = connection.execute(sql.TARGET, {"name": name}).fetchone()
        except psycopg.errors.UndefinedTable:
            found = None
    if found is None:
        raise UnknownAlias(f"no index {name!r}: no request that names it has finished")
    return Target(*found)


def nearest(url: str, alias: str, vector: Sequence[float], k: int) -> list[Hit]:
    """The `k` nearest assets, nearest first."""
    return nearest_in(url, find(url, alias), vector, k)


def nearest_in(url: str, target: Target, vector: Sequence[float], k: int) -> list[Hit]:
    """The same in a known table."""
    literal = "[" + ",".join(repr(float(value)) for value in vector) + "]"
    with psycopg.connect(url, connect_timeout=CONNECT_SECONDS) as connection:
        return _nearest(connection, target, literal, k)


def similar(url: str, target: Target, key: bytes, k: int) -> list[Hit]:
    """The `k` assets nearest to one that is in the index, without itself."""
    with psycopg.connect(url, connect_timeout=CONNECT_SECONDS) as connection:
        statement = SQL(sql.VECTOR_OF_KEY).format(table=Identifier(target.table))
        found = connection.execute(statement, {"key": key}).fetchone()
        if found is None:
            shown = key.decode("utf-8", "backslashreplace")
            raise UnknownAsset(f"the index has no vector for {shown!r}: not an asset of it, or not an ok one")
        hits = _nearest(connection, target, found[0], k + 1)
    return [hit for hit in hits if hit.key != key][:k]


def _nearest(connection: psycopg.Connection, target: Target, literal: str, k: int) -> list[Hit]:
    width = str(min(_WIDEST_SEARCH, max(_USUAL_SEARCH, k)))
    connection.execute(sql.SET_SEARCH_WIDTH, {"width": width})
    statement = SQL(sql.NEAREST).format(table=Identifier(target.table))
    try:
        rows = connection.execute(statement, {"vector": literal, "k": k}).fetchall()
    except psycopg.errors.DataException as error:
        raise ValueError(f"the vector does not fit index table {target.table}: {error}".strip()) from error
    return [Hit(bytes(key), float(distance)) for key, distance in rows]
