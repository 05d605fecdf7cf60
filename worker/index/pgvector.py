"""The index in Postgres with pgvector. All its statements are in `worker.index.sql`.

float16 vectors are `halfvec`; float32 ones are `vector` up to the 2,000 dimensions that HNSW takes of it, and
`halfvec` above. One transaction a shard holds its rows and its ledger line. Fails with `ConfigError` where the
database lacks pgvector or rights, and with psycopg's errors where it is away: then the attempt is run again.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from itertools import chain
from typing import LiteralString

import psycopg
from pgvector import HalfVector, Vector
from pgvector.psycopg import register_vector
from psycopg.sql import SQL, Composed, Identifier

from worker.context import ConfigError
from worker.index import sql
from worker.index.writer import Batch

URL_VARIABLE = "REEMBED_INDEX_URL"
CONNECT_SECONDS = 15
#: Below, reading every row is fast and exact; above, HNSW is built.
HNSW_ROWS = 10_000
HNSW_VECTOR_DIMENSIONS, HNSW_HALFVEC_DIMENSIONS = 2_000, 4_000


class PgvectorWriter:
    """An `IndexWriter` on one connection."""

    def __init__(self, url: str, *, hnsw_rows: int = HNSW_ROWS) -> None:
        self._hnsw_rows = hnsw_rows
        self._connection = psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_SECONDS)
        try:
            with self._transaction():
                self._connection.execute(sql.LOCK_DEFINITIONS)
                self._connection.execute(sql.CREATE_EXTENSION)
                for statement in (sql.CREATE_LEDGER, sql.CREATE_ALIASES, sql.CREATE_ALIAS_CHANGES):
                    self._connection.execute(statement)
            register_vector(self._connection)
        except BaseException:
            self._connection.close()
            raise

    @classmethod
    def from_environment(cls) -> PgvectorWriter:
        """The index named by `REEMBED_INDEX_URL`, which Batch takes from a secret of the job definition."""
        url = os.environ.get(URL_VARIABLE)
        if not url:
            raise ConfigError(f"{URL_VARIABLE} is not set: the index job needs the URL of the index database")
        return cls(url)

    def close(self) -> None:
        self._connection.close()

    def ledger(self, table: str) -> dict[int, str]:
        return dict(self._connection.execute(sql.LEDGER, {"table": table}).fetchall())

    def load_shard(self, table: str, shard: int, marker_digest: str, batches: Iterable[Batch]) -> int:
        this = {"table": table, "shard": shard, "digest": marker_digest}
        batches = iter(batches)
        first = next(batches)
        kind = self._create(table, first)
        rows, low, high = 0, first.first, first.last
        with self._transaction():
            self._connection.execute(sql.LOCK_SHARD, this)
            self._connection.execute(_composed(sql.CREATE_INCOMING, type=SQL(kind)))
            with self._connection.cursor().copy(sql.COPY_INCOMING) as copy:
                copy.set_types(["bytea", "int4", kind.partition("(")[0]])
                vector = HalfVector if kind.startswith("halfvec") else Vector
                for batch in chain([first], batches):
                    for key, part, values in zip(batch.keys, batch.parts, batch.vectors, strict=True):
                        copy.write_row((key, part, vector(values)))
                    rows += len(batch.keys)
                    low, high = min(low, batch.first), max(high, batch.last)
            if self._connection.execute(sql.LEDGER_OF_SHARD, this).fetchone() is not None:
                of_table = _composed(sql.DELETE_SHARD_IN_RANGE, table=Identifier(table))
                self._connection.execute(of_table, this | {"first": low, "last": high})
            self._connection.execute(_composed(sql.MERGE_INCOMING, table=Identifier(table)), this)
            self._connection.execute(sql.WRITE_LEDGER, this | {"rows": rows})
        return rows

    def drop_shard(self, table: str, shard: int) -> None:
        this = {"table": table, "shard": shard}
        with self._transaction():
            self._connection.execute(sql.LOCK_SHARD, this)
            self._connection.execute(_composed(sql.DELETE_SHARD, table=Identifier(table)), this)
            self._connection.execute(sql.DELETE_LEDGER, this)

    def build(self, table: str) -> None:
        found = self._connection.execute(sql.ROWS, {"table": table}).fetchone()
        kind = self._type(table)
        if found is None or found[0] < self._hnsw_rows or kind is None or not _fits_hnsw(kind):
            return
        name = table[:58] + "_hnsw"  # identifiers end at 63 bytes
        statement = _composed(
            sql.CREATE_HNSW,
            index=Identifier(name),
            table=Identifier(table),
            operators=SQL("halfvec_cosine_ops" if kind.startswith("halfvec") else "vector_cosine_ops"),
        )
        with self._transaction():
            self._connection.execute(sql.LOCK_DEFINITIONS)
            self._connection.execute(statement)

    def activate(self, alias: str, table: str, request_id: str) -> None:
        change: dict[str, str | None] = {"alias": alias, "table": table, "request": request_id}
        with self._transaction():
            self._connection.execute(sql.LOCK_ALIAS, change)
            if self._connection.execute(sql.CHANGED_BY_REQUEST, change).fetchone() is not None:
                return
            found = self._connection.execute(sql.ALIAS, change).fetchone()
            change["previous"] = found[0] if found else None
            self._connection.execute(sql.WRITE_ALIAS, change)
            self._connection.execute(sql.WRITE_ALIAS_CHANGE, change)

    def _create(self, table: str, batch: Batch) -> LiteralString:
        """Make the table if need be; the type of its vectors."""
        wanted = vector_type(batch.vectors.shape[1], half=batch.vectors.dtype.itemsize == 2)
        with self._transaction():
            self._connection.execute(sql.LOCK_DEFINITIONS)
            self._connection.execute(_composed(sql.CREATE_TABLE, table=Identifier(table), type=SQL(wanted)))
        if (found := self._type(table)) != wanted:
            raise ConfigError(f"index table {table} holds {found}; this output has {wanted}")
        return wanted

    def _type(self, table: str) -> str | None:
        quoted = Identifier(table).as_string(self._connection)
        found = self._connection.execute(sql.VECTOR_TYPE, {"table": quoted}).fetchone()
        return found[0] if found else None

    @contextmanager
    def _transaction(self) -> Generator[None]:
        try:
            with self._connection.transaction():
                yield
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedFile) as error:
            raise ConfigError(f"the index database refuses: {error}".strip()) from error


def vector_type(dimensions: int, *, half: bool) -> LiteralString:
    """The Postgres type of vectors."""
    kind: LiteralString = "halfvec" if half or dimensions > HNSW_VECTOR_DIMENSIONS else "vector"
    if not 0 < dimensions <= 16_000:
        raise ConfigError(f"pgvector stores 1 to 16,000 dimensions, not {dimensions}")
    return f"{kind}({int(dimensions)})"  # type: ignore[return-value]


def _fits_hnsw(kind: str) -> bool:
    name, _, dimensions = kind.rstrip(")").partition("(")
    return int(dimensions) <= (HNSW_HALFVEC_DIMENSIONS if name == "halfvec" else HNSW_VECTOR_DIMENSIONS)


def _composed(statement: LiteralString, **parts: Identifier | SQL) -> Composed:
    return SQL(statement).format(**parts)
