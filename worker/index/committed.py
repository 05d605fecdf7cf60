"""Reading what commit markers name: markers and chunk objects, believed only with the digests they were promised by.

Fails with `ConfigError` (its `Refused` where S3 says so) for whatever is not as the marker says: reading it again will
not mend it, and an operator has to know.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ValidationError

from schema.assignment import IndexAssignment, IndexedShard
from schema.layout import Location
from schema.plan import CommitMarker, CommittedChunk
from schema.states import RowStatus
from worker.context import ConfigError, Context
from worker.index.writer import Batch
from worker.patience import get

#: Chunks read ahead of their use; a chunk is some tens of megabytes.
READ_AHEAD = 4

_T = TypeVar("_T")
_R = TypeVar("_R")


class NotAsPromised(ConfigError):
    """A marker or a chunk object is not what the commit says it is."""


@dataclass(frozen=True)
class Committed:
    """The output prefix of a request, for reading."""

    context: Context
    output: Location

    @classmethod
    def of(cls, assignment: IndexAssignment, context: Context) -> Committed:
        return cls(context, Location.parse(assignment.output_uri))

    def marker(self, shard: IndexedShard) -> CommitMarker:
        """The commit that decides the rows of a shard."""
        body = self._get(shard.marker_key)
        try:
            marker = CommitMarker.model_validate_json(body)
        except ValidationError as error:
            raise NotAsPromised(f"{shard.marker_key} is not a commit marker: {error}") from error
        if marker.digest != shard.marker_digest or marker.shard != shard.shard:
            raise NotAsPromised(
                f"{shard.marker_key} is of shard {marker.shard} with digest {marker.digest}; "
                f"asked for was shard {shard.shard} with {shard.marker_digest}"
            )
        return marker

    def table(self, chunk: CommittedChunk) -> pa.Table:
        """All rows of one chunk object."""
        body = self._get(chunk.key)
        if (found := hashlib.sha256(body).hexdigest()) != chunk.sha256:
            raise NotAsPromised(f"{chunk.key} has sha256 {found}; its commit says {chunk.sha256}")
        try:
            table = pq.read_table(pa.BufferReader(body))
        except pa.ArrowException as error:
            raise NotAsPromised(f"{chunk.key} is not Parquet: {error}") from error
        if table.num_rows != chunk.rows:
            raise NotAsPromised(f"{chunk.key} has {table.num_rows} rows; its commit says {chunk.rows}")
        return table

    def tables(self, chunks: Sequence[CommittedChunk]) -> Generator[tuple[CommittedChunk, pa.Table]]:
        """Chunks with their rows, in order, read ahead."""
        return ahead(lambda chunk: (chunk, self.table(chunk)), chunks)

    def _get(self, key: str) -> bytes:
        location = self.output.join(key)
        return get(self.context.s3, location.bucket, location.key, self.context.stop)


def batch(chunk: CommittedChunk, table: pa.Table) -> Batch:
    """The ok rows of a chunk, as the index wants them."""
    ok = table.filter(pc.equal(table.column("status"), str(RowStatus.OK)))
    vectors = ok.column("embedding").combine_chunks()
    if vectors.null_count:
        raise NotAsPromised(f"{chunk.key} has {vectors.null_count} ok rows without a vector")
    span = pc.min_max(table.column("key")).as_py()
    values = vectors.flatten().to_numpy(zero_copy_only=False)
    return Batch(
        keys=ok.column("key").to_pylist(),
        parts=ok.column("part").to_pylist(),
        vectors=np.ascontiguousarray(values.reshape(len(vectors), vectors.type.list_size)),
        first=span["min"],
        last=span["max"],
    )


def ahead(work: Callable[[_T], _R], items: Iterable[_T], *, depth: int = READ_AHEAD) -> Generator[_R]:
    """`map` in threads, in order, at most `depth` results ahead of the one in use."""
    pending: deque[Future[_R]] = deque()
    with ThreadPoolExecutor(depth, thread_name_prefix="read-ahead") as pool:
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > depth:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def describe_counts(counts: dict[str, Any]) -> str:
    """`ok 5, missing 1`"""
    return ", ".join(f"{name} {number}" for name, number in counts.items()) or "nothing"
