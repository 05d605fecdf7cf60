"""Chunk files: one row an asset, equal bytes for equal rows, and what reads them back."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schema.states import RowStatus
from worker import chunks
from worker.rows import Picture, Row, add, bad_rows, count, ok_rows, retryable_rows

DIMENSIONS = 5


def ok_row(ordinal: int, vector: list[float] | None = None) -> Row:
    embedding = np.asarray(vector or np.linspace(-1, 1, DIMENSIONS), np.float32)
    picture = Picture(640, 480, "JPEG")
    return Row(b"k%d" % ordinal, ordinal, RowStatus.OK, None, None, 99, picture, "etag", embedding)


def bad_row(ordinal: int, status: RowStatus = RowStatus.MISSING) -> Row:
    return Row(b"\xff\x00k%d" % ordinal, ordinal, status, "NoSuchKey", 404, 7)


def same(one: Row, other: Row) -> bool:
    plain = all(
        getattr(one, name) == getattr(other, name)
        for name in ("key", "ordinal", "status", "error", "http_status", "bytes", "picture", "etag")
    )
    if one.embedding is None or other.embedding is None:
        return plain and one.embedding is other.embedding
    return plain and np.allclose(one.embedding, other.embedding, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rows_come_back_as_they_were_in_order_of_ordinals(dtype: str) -> None:
    rows = [bad_row(3), ok_row(1), ok_row(2), bad_row(0, RowStatus.THROTTLED)]
    back = chunks.decode(chunks.encode(rows, DIMENSIONS, dtype))
    assert [row.ordinal for row in back] == [0, 1, 2, 3]
    for row, returned in zip(sorted(rows, key=lambda row: row.ordinal), back, strict=True):
        assert same(row, returned)


@given(st.permutations(range(6)), st.sets(st.integers(0, 5)))
def test_equal_rows_give_equal_bytes_in_any_order(order: list[int], bad: set[int]) -> None:
    rows = [bad_row(ordinal) if ordinal in bad else ok_row(ordinal) for ordinal in range(6)]
    shuffled = [rows[place] for place in order]
    assert chunks.encode(rows, DIMENSIONS, "float16") == chunks.encode(shuffled, DIMENSIONS, "float16")


def test_the_file_is_what_the_documentation_says() -> None:
    file = pq.ParquetFile(io.BytesIO(chunks.encode([ok_row(0), bad_row(1)], DIMENSIONS, "float16")))
    assert file.num_row_groups == 1
    assert file.schema_arrow.names == [
        "key", "part", "ordinal", "status", "error", "http_status", "bytes", "width", "height", "format", "etag",
        "embedding",
    ]  # fmt: skip
    assert str(file.schema_arrow.field("embedding").type) == "fixed_size_list<element: halffloat>[5]"
    table = file.read().to_pylist()
    assert table[1]["embedding"] is None
    assert [row["part"] for row in table] == [0, 0]


def test_half_precision_survives_a_second_writing() -> None:
    """A partial is read and written again: vectors must not drift."""
    once = chunks.encode([ok_row(0, [0.1, 0.2, 0.3, 0.4, 0.5])], DIMENSIONS, "float16")
    assert chunks.encode(chunks.decode(once), DIMENSIONS, "float16") == once


def test_a_chunk_with_retryable_rows_is_a_partial_unless_final() -> None:
    rows = [ok_row(0), bad_row(1, RowStatus.DENIED)]
    body = chunks.encode(rows, DIMENSIONS, "float16")
    partial = chunks.describe(3, 7, body, rows, final=False)
    assert partial.partial
    assert partial.key == f"chunks/0000003/00007/{partial.sha256}.partial.parquet"
    final = chunks.describe(3, 7, body, rows, final=True)
    assert not final.partial
    assert final.key == f"chunks/0000003/00007/{final.sha256}.parquet"
    committed = final.committed()
    assert (committed.rows, committed.ok, committed.bad) == (2, 1, 1)
    assert chunks.Stored(**final.to_json()) == final


def test_counts_of_statuses() -> None:
    statuses = count([RowStatus.OK, RowStatus.OK, RowStatus.THROTTLED, RowStatus.MISSING])
    assert statuses == {"missing": 1, "ok": 2, "throttled": 1}
    assert (ok_rows(statuses), retryable_rows(statuses)) == (2, 1)
    assert (bad_rows(statuses, with_retryable=False), bad_rows(statuses, with_retryable=True)) == (1, 2)
    assert add(statuses, {"ok": 1}) == {"missing": 1, "ok": 3, "throttled": 1}


class FakeS3:
    """Objects in a dictionary, as far as `chunks.find` looks."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects

    def get_paginator(self, _name: str) -> Any:
        return self

    def paginate(self, Bucket: str, Prefix: str) -> list[dict[str, Any]]:
        return [{"Contents": [{"Key": key} for key in sorted(self.objects) if key.startswith(Prefix)]}, {}]

    def get_object(self, Bucket: str, Key: str) -> dict[str, Any]:
        return {"Body": io.BytesIO(self.objects[Key])}


def test_only_whole_objects_of_this_shard_are_found_and_final_ones_first() -> None:
    output = chunks.Location("b", "out/digest")
    objects: dict[str, bytes] = {}

    def put(shard: int, chunk: int, rows: list[Row], body: bytes | None = None) -> chunks.Stored:
        encoded = chunks.encode(rows, DIMENSIONS, "float16")
        stored = chunks.describe(shard, chunk, encoded, rows, final=False)
        objects[output.join(stored.key).key] = encoded if body is None else body
        return stored

    final = put(1, 0, [ok_row(0), ok_row(1)])
    put(1, 0, [ok_row(0), bad_row(1, RowStatus.DENIED)])
    put(1, 1, [ok_row(2), bad_row(3, RowStatus.DENIED)], body=b"cut short")
    put(1, 2, [ok_row(4)])  # a row short
    worse = put(1, 3, [bad_row(6, RowStatus.DENIED), bad_row(7, RowStatus.DENIED)])
    better = put(1, 3, [ok_row(6), bad_row(7, RowStatus.DENIED)])
    put(1, 9, [ok_row(0), ok_row(1)])  # the shard has no such chunk
    put(2, 0, [ok_row(0), ok_row(1)])
    objects["out/digest/chunks/0000001/00000/README"] = b""

    found = chunks.find(FakeS3(objects), output, 1, [2, 2, 2, 2])
    assert found == {0: final, 3: better}
    assert worse.retryable > better.retryable
