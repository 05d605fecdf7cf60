"""One chunk, one immutable Parquet object named by its own sha256; and what earlier attempts have left.

Equal rows give equal bytes (one row group, fixed writer settings, nothing of the time or the host), rows stand in the
order of their ordinals, and there is exactly one for each asset of the chunk. A chunk that still has retryable rows
is a `partial`: the next pass fetches only those, and no commit marker may name it.

An object is believed only if its content has the digest in its name; others are ignored.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from schema import layout
from schema.layout import Location
from schema.plan import CommittedChunk
from schema.states import RowStatus
from worker.rows import Picture, Row, bad_rows, count, ok_rows, retryable_rows

PART = 0
READERS = 8
_NAME = re.compile(r"chunks/(\d{7})/(\d{5,})/([0-9a-f]{64})(\.partial)?\.parquet")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stored:
    """A chunk object on S3. `key` is below the output prefix."""

    chunk: int
    key: str
    sha256: str
    bytes: int
    statuses: dict[str, int]
    partial: bool

    @property
    def rows(self) -> int:
        return sum(self.statuses.values())

    @property
    def retryable(self) -> int:
        return retryable_rows(self.statuses)

    def committed(self) -> CommittedChunk:
        ok = ok_rows(self.statuses)
        bad = bad_rows(self.statuses, with_retryable=True)
        return CommittedChunk(
            chunk=self.chunk, key=self.key, sha256=self.sha256, bytes=self.bytes, rows=self.rows, ok=ok, bad=bad
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def table_schema(dimensions: int, dtype: str) -> pa.Schema:
    """Columns of every chunk; documented in docs/reading-the-output.md."""
    element = pa.float16() if dtype == "float16" else pa.float32()
    return pa.schema(
        [
            pa.field("key", pa.binary(), nullable=False),
            pa.field("part", pa.int32(), nullable=False),
            pa.field("ordinal", pa.int32(), nullable=False),
            pa.field("status", pa.string(), nullable=False),
            pa.field("error", pa.string()),
            pa.field("http_status", pa.int32()),
            pa.field("bytes", pa.int64(), nullable=False),
            pa.field("width", pa.int32()),
            pa.field("height", pa.int32()),
            pa.field("format", pa.string()),
            pa.field("etag", pa.string(), nullable=False),
            pa.field("embedding", pa.list_(element, dimensions)),
        ]
    )


def encode(rows: Sequence[Row], dimensions: int, dtype: str) -> bytes:
    """The Parquet file of a chunk's rows, in the order of their ordinals."""
    ordered = sorted(rows, key=lambda row: row.ordinal)
    schema = table_schema(dimensions, dtype)
    pictures = [row.picture for row in ordered]
    columns: list[Any] = [
        [row.key for row in ordered],
        [PART] * len(ordered),
        [row.ordinal for row in ordered],
        [str(row.status) for row in ordered],
        [row.error for row in ordered],
        [row.http_status for row in ordered],
        [row.bytes for row in ordered],
        [picture.width if picture else None for picture in pictures],
        [picture.height if picture else None for picture in pictures],
        [picture.format if picture else None for picture in pictures],
        [row.etag for row in ordered],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=False)]
    arrays.append(_embeddings(ordered, dimensions, dtype))
    sink = io.BytesIO()
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=schema),
        sink,
        row_group_size=max(1, len(ordered)),
        # Vectors do not compress and have no repeats; the other columns do, a little.
        compression={name: "NONE" if name == "embedding" else "ZSTD" for name in schema.names},
        use_dictionary=["status", "error", "format"],
        store_schema=True,
    )
    return sink.getvalue()


def _embeddings(rows: Sequence[Row], dimensions: int, dtype: str) -> pa.Array:
    values = np.zeros((len(rows), dimensions), np.dtype(dtype))
    missing = np.ones(len(rows), bool)
    for place, row in enumerate(rows):
        if row.embedding is not None:
            values[place] = row.embedding
            missing[place] = False
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), dimensions, mask=pa.array(missing))


def decode(body: bytes) -> list[Row]:
    """The rows of a chunk file."""
    table = pq.read_table(io.BytesIO(body))
    embeddings = table.column("embedding").combine_chunks()
    dimensions = embeddings.type.list_size
    values = embeddings.values.to_numpy(zero_copy_only=False).reshape(-1, dimensions).astype(np.float32)
    present = embeddings.is_valid().to_pylist()
    plain = table.drop_columns(["embedding"]).to_pylist()
    return [
        Row(
            key=line["key"],
            ordinal=line["ordinal"],
            status=RowStatus(line["status"]),
            error=line["error"],
            http_status=line["http_status"],
            bytes=line["bytes"],
            picture=Picture(line["width"], line["height"], line["format"]) if line["format"] is not None else None,
            etag=line["etag"],
            embedding=values[place] if present[place] else None,
        )
        for place, line in enumerate(plain)
    ]


def describe(shard: int, chunk: int, body: bytes, rows: Iterable[Row], *, final: bool) -> Stored:
    """What the object of these bytes is called and holds. `final`: retryable rows are final now."""
    statuses = count(row.status for row in rows)
    sha256 = hashlib.sha256(body).hexdigest()
    partial = not final and retryable_rows(statuses) > 0
    key = (layout.partial_key if partial else layout.chunk_key)(shard, chunk, sha256)
    return Stored(chunk, key, sha256, len(body), statuses, partial)


def find(s3: Any, output: Location, shard: int, rows_of: Sequence[int]) -> dict[int, Stored]:
    """One valid object of each chunk that has one, final ones before partials. `rows_of[k]`: rows chunk k must have."""
    listed: dict[int, list[tuple[bool, str, str]]] = {}
    for key in _keys(s3, output.join(layout.chunk_prefix(shard))):
        name = key[len(output.join("").key) :]
        match = _NAME.fullmatch(name)
        if match is not None and int(match[1]) == shard and int(match[2]) < len(rows_of):
            listed.setdefault(int(match[2]), []).append((match[4] is not None, name, match[3]))
    with ThreadPoolExecutor(READERS) as readers:
        found = readers.map(lambda item: _first_valid(s3, output, item, rows_of[item[0]]), sorted(listed.items()))
        return {stored.chunk: stored for stored in found if stored is not None}


def _keys(s3: Any, prefix: Location) -> Iterator[str]:
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=prefix.bucket, Prefix=prefix.key):
        for item in page.get("Contents", []):
            yield item["Key"]


def _first_valid(s3: Any, output: Location, item: tuple[int, list[tuple[bool, str, str]]], rows: int) -> Stored | None:
    chunk, candidates = item
    valid: list[Stored] = []
    for partial, name, sha256 in sorted(candidates):
        body = s3.get_object(Bucket=output.bucket, Key=output.join(name).key)["Body"].read()
        if hashlib.sha256(body).hexdigest() != sha256:
            log.warning("chunk object ignored: its content has another digest", extra={"key": name})
            continue
        statuses = count(pq.read_table(io.BytesIO(body), columns=["status"]).column("status").to_pylist())
        if sum(statuses.values()) != rows:
            log.warning("chunk object ignored: wrong number of rows", extra={"key": name})
            continue
        if not partial:
            return Stored(chunk, name, sha256, len(body), statuses, partial)
        valid.append(Stored(chunk, name, sha256, len(body), statuses, partial))
    return min(valid, key=lambda stored: stored.retryable, default=None)
