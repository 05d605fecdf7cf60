"""Reads a finished request's output through its manifest, as a consumer would.

Owns nothing but reading. `rows` keeps what is there, doubles included, so that whoever compares can find them.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as parquet

from schema.layout import Location
from schema.plan import Manifest


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One row of one chunk object. `place` is (shard, chunk, row of the chunk)."""

    place: tuple[int, int, int]
    key: str
    status: str
    vector: npt.NDArray[np.float32] | None


@dataclass(frozen=True)
class Output:
    """`chunks` maps (shard, chunk) to the digest of its object."""

    manifest: Manifest
    rows: list[OutputRow]
    chunks: Mapping[tuple[int, int], str]

    @property
    def statuses(self) -> dict[str, str]:
        """Key → status."""
        return {row.key: row.status for row in self.rows}

    def not_exactly_once(self, keys: set[str]) -> set[str]:
        """Which of these keys, or of those found, have no row or several."""
        counts = Counter(row.key for row in self.rows)
        return {key for key in keys | set(counts) if counts[key] != 1 or key not in keys}


def read_output(s3: Any, manifest_uri: str) -> Output:
    """Every row of every chunk that the manifest names, in the order of the manifest."""
    place = Location.parse(manifest_uri)
    manifest = Manifest.model_validate_json(_get(s3, place))
    prefix = Location(place.bucket, place.key.rpartition("/")[0])
    rows: list[OutputRow] = []
    digests: dict[tuple[int, int], str] = {}
    for shard in manifest.shards:
        for chunk in shard.chunks:
            digests[shard.shard, chunk.chunk] = chunk.sha256
            table = parquet.read_table(
                io.BytesIO(_get(s3, prefix.join(chunk.key))), columns=["key", "status", "embedding"]
            )
            for number, (key, status, vector) in enumerate(zip(*(c.to_pylist() for c in table.columns), strict=True)):
                embedding = None if vector is None else np.asarray(vector, np.float32)
                rows.append(OutputRow((shard.shard, chunk.chunk, number), key.decode(), status, embedding))
    return Output(manifest, rows, digests)


def _get(s3: Any, place: Location) -> bytes:
    return s3.get_object(Bucket=place.bucket, Key=place.key)["Body"].read()
