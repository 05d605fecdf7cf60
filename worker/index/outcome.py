"""What upstream gets at the end: `failures.parquet`, every row that is not ok, and `manifest.json`, which names all.

Both are written once, with If-None-Match. Like requests share an output prefix, and a finalising job may be repeated:
what is there already is kept if it says the same. Only if it tells of earlier commits of the same shards, because an
operator had some redone, is it replaced, and then only if nobody else was quicker.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from schema.layout import FAILURES, MANIFEST, Location
from schema.plan import Manifest
from schema.states import RowStatus
from worker.context import ConfigError
from worker.index.audit import CheckedChunk
from worker.patience import Refused, get, patiently, put_once

FAILURE_COLUMNS = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("chunk", pa.int32(), nullable=False),
        pa.field("ordinal", pa.int32(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("error", pa.string()),
        pa.field("http_status", pa.int32()),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("etag", pa.string(), nullable=False),
    ]
)
_GENERATION = re.compile(r"/g(\d+)\.json$")


def collect(checked: Iterable[CheckedChunk]) -> bytes:
    """`failures.parquet` of all the chunks. In memory: some 20 bytes a failure once compressed."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, FAILURE_COLUMNS, compression="zstd") as writer:
        for chunk in checked:
            bad = chunk.table.filter(pc.not_equal(chunk.table.column("status"), str(RowStatus.OK)))
            if bad.num_rows:
                writer.write_table(_failures(bad, shard=chunk.shard, chunk=chunk.chunk.chunk))
    return sink.getvalue()


def _failures(bad: pa.Table, **constant: int) -> pa.Table:
    columns = [
        pa.array([constant[column.name]] * bad.num_rows, column.type)
        if column.name in constant
        else bad.column(column.name).cast(column.type)
        for column in FAILURE_COLUMNS
    ]
    return pa.table(columns, schema=FAILURE_COLUMNS)


def publish(client: Any, output: Location, manifest: Manifest, failures: bytes, stop: threading.Event) -> None:
    """Both objects, the manifest last: who reads it finds what it names."""
    at = output.join(MANIFEST)
    body = manifest.to_bytes()
    there = _read(client, at, stop)
    if there is not None and _same(Manifest.model_validate_json(there[0]), manifest):
        return
    if there is not None and not _succeeds(Manifest.model_validate_json(there[0]), manifest):
        raise ConfigError(f"{at.uri} exists and names later commits than this request; it is kept")
    _write_failures(client, output.join(FAILURES), failures, stop)
    if there is None:
        there_now = put_once(client, at.bucket, at.key, body, stop)
        if not _same(Manifest.model_validate_json(there_now), manifest):
            raise RuntimeError(f"{at.uri} was written by somebody else meanwhile; the next attempt looks again")
    else:
        _replace(client, at, body, there[1], stop)


def _same(one: Manifest, other: Manifest) -> bool:
    """Equal in all that the output decides; like requests differ in their ids and in the alias they asked for."""
    neutral = {"request_id": "", "index": None}
    return one.model_copy(update=neutral) == other.model_copy(update=neutral)


def _succeeds(earlier: Manifest, later: Manifest) -> bool:
    """Whether no shard of the earlier one would go back to an older commit or be lost."""
    before = {shard.shard: _generation(shard.marker) for shard in earlier.shards}
    after = {shard.shard: _generation(shard.marker) for shard in later.shards}
    return all(after.get(shard, 0) >= generation for shard, generation in before.items())


def _generation(marker_key: str) -> int:
    found = _GENERATION.search(marker_key)
    return int(found[1]) if found else 0


def _write_failures(client: Any, at: Location, body: bytes, stop: threading.Event) -> None:
    if put_once(client, at.bucket, at.key, body, stop) == body:
        return
    there = _read(client, at, stop)
    if there is None or there[0] != body:
        _replace(client, at, body, there[1] if there else "", stop)


def _read(client: Any, at: Location, stop: threading.Event) -> tuple[bytes, str] | None:
    """Content and ETag, or None."""

    def read() -> tuple[bytes, str]:
        answer = client.get_object(Bucket=at.bucket, Key=at.key)
        return answer["Body"].read(), answer["ETag"]

    try:
        return patiently(read, stop, f"read {at.uri}")
    except Refused as refused:
        if refused.status == 404:
            return None
        raise


def _replace(client: Any, at: Location, body: bytes, etag: str, stop: threading.Event) -> None:
    """Write over the object with that ETag, and no other."""
    try:
        patiently(
            lambda: client.put_object(Bucket=at.bucket, Key=at.key, Body=body, IfMatch=etag), stop, f"replace {at.uri}"
        )
    except Refused as refused:
        if refused.status not in (404, 409, 412) or get(client, at.bucket, at.key, stop) != body:
            raise
