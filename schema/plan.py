"""The published plan and the commit marker: the two JSON documents that decide what exists.

`plan.json` turns a source into shards once and for all; a commit marker makes one shard's chunks the output.
Both are written with If-None-Match, so whoever comes second reads the first one's.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """Immutable JSON document; unknown fields of a newer minor version are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def to_bytes(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()


class AskedRequest(Document):
    """What makes a request's row anew when the database has forgotten it: written before its first job."""

    version: Literal[1] = 1
    request_id: str
    tenant: str
    idempotency_key: str
    body_digest: str
    body: dict[str, Any]
    created_at: datetime
    priority: int = 0
    deadline: datetime | None = None


class PlannedShard(Document):
    """One packed address file: `assets` addresses cut into `chunks` fixed runs."""

    shard: int
    key: str
    sha256: str
    assets: int
    bytes: int
    chunks: int
    first_key_hex: str = ""
    last_key_hex: str = ""


class Plan(Document):
    """What preparation found. Shards are in global byte order of their keys; `skipped` counts folder markers."""

    version: Literal[1] = 1
    request_id: str
    attempt_id: str
    bucket: str
    model: str
    preprocessing_digest: str
    chunk_assets: int
    assets: int
    bytes: int
    skipped: int = 0
    shards: list[PlannedShard]

    @property
    def digest(self) -> str:
        """sha256 over what decides the output: the bucket, the chunk size and every shard file's own digest."""
        parts = [self.bucket, str(self.chunk_assets), *(shard.sha256 for shard in self.shards)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class CommittedChunk(Document):
    """One immutable Parquet object and its row counts; ok + bad = rows."""

    chunk: int
    key: str
    sha256: str
    bytes: int
    rows: int
    ok: int
    bad: int


class Figures(Document):
    """Cumulative numbers of one attempt since its start; seconds are summed over processes of a stage."""

    assets: int = 0
    ok: int = 0
    bad: int = 0
    bytes_fetched: int = 0
    throttled: int = 0
    fetch_seconds: float = 0.0
    decode_seconds: float = 0.0
    wait_seconds: float = 0.0
    compute_seconds: float = 0.0
    write_seconds: float = 0.0
    wall_seconds: float = 0.0
    chunks_done: int = 0
    chunks_reused: int = 0
    peak_memory_bytes: int = 0
    gpu_utilisation: float | None = None


class CommitMarker(Document):
    """The fact that a shard is done: exact objects with digests, whoever wrote them."""

    version: Literal[1] = 1
    request_id: str
    shard: int
    generation: int
    attempt_id: str
    rows: int
    ok: int
    bad: int
    statuses: dict[str, int]
    chunks: list[CommittedChunk]
    figures: Figures = Figures()
    model: str = ""
    preprocessing_digest: str = ""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()


class Manifest(Document):
    """The finished output of a request: every committed shard, and the accepted gaps."""

    version: Literal[1] = 1
    request_id: str
    model: str
    dtype: str
    assets: int
    ok: int
    bad: int
    statuses: dict[str, int]
    shards: list[ManifestShard]
    gaps: list[int] = []
    failures: str
    index: str | None = None


class ManifestShard(Document):
    """One shard of the manifest; `marker` is the key of its commit marker below the output digest."""

    shard: int
    marker: str
    marker_digest: str
    rows: int
    ok: int
    bad: int
    chunks: list[CommittedChunk]


Manifest.model_rebuild()
