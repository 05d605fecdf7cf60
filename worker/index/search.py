"""Searching what finished requests have indexed: the reading side of an alias.

A search sees one table: the one that its alias names when it begins. Fails with `UnknownAlias` before the first
request of an alias has finished, and with `ValueError` for a vector of another model's dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.index import sql

CONNECT_SECONDS = 10
#: pgvector's own bounds of hnsw.ef_search, and its default.
_WIDEST_SEARCH, _USUAL_SEARCH = 1000, 40


class UnknownAlias(LookupError):
    """No finished request has given this alias a table."""


@dataclass(frozen=True, slots=True)
class Hit:
    """An asset near the query; `distance` is cosine distance, 0 for the same direction, 2 for the opposite."""

    key: bytes
    distance: float


def nearest(url: str, alias: str, vector: Sequence[float], k: int) -> list[Hit]:
    """The `k` nearest assets, nearest first."""
    import psycopg
    from psycopg.sql import SQL, Identifier

    literal = "[" + ",".join(repr(float(value)) for value in vector) + "]"
    with psycopg.connect(url, connect_timeout=CONNECT_SECONDS) as connection:
        try:
            found = connection.execute(sql.ALIAS, {"alias": alias}).fetchone()
        except psycopg.errors.UndefinedTable:
            found = None
        if found is None:
            raise UnknownAlias(f"no index {alias!r}: no request that names it has finished")
        width = str(min(_WIDEST_SEARCH, max(_USUAL_SEARCH, k)))
        connection.execute(sql.SET_SEARCH_WIDTH, {"width": width})
        statement = SQL(sql.NEAREST).format(table=Identifier(found[0]))
        try:
            rows = connection.execute(statement, {"vector": literal, "k": k}).fetchall()
        except psycopg.errors.DataException as error:
            raise ValueError(f"the vector does not fit index {alias!r}: {error}".strip()) from error
    return [Hit(bytes(key), float(distance)) for key, distance in rows]
