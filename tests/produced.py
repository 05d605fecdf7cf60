"""A request's committed output, made without GPU or controller: plan, shard files, chunks and markers on S3."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg.sql import SQL, Identifier

from schema import layout, shardfile
from schema.assignment import Entry, IndexAssignment, IndexedShard
from schema.layout import Location
from schema.plan import CommitMarker, CommittedChunk, Figures, Plan, PlannedShard
from schema.shardfile import Address
from schema.states import RowStatus
from worker import chunks
from worker.context import Context, Ending
from worker.index import job
from worker.rows import Picture, Row
from worker.settings import BatchIdentity, Settings

DIMENSIONS = 8
KEYS = [*(b"images/%03d.jpg" % number for number in range(24)), b"odd/\0\n//\xc3\xa9"]
BAD = {KEYS[3]: RowStatus.MISSING, KEYS[4]: RowStatus.UNREADABLE, KEYS[23]: RowStatus.DENIED}
HTTP_STATUS = {RowStatus.MISSING: 404, RowStatus.DENIED: 403}


def unit_vector(seed: bytes, dimensions: int = DIMENSIONS) -> npt.NDArray[np.float32]:
    """Shape (dimensions,), length 1, the same for the same seed."""
    number = int.from_bytes(hashlib.sha256(seed).digest()[:4], "big")
    vector = np.random.default_rng(number).standard_normal(dimensions)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


class Figured:
    """A reporter that keeps what it was told."""

    def __init__(self) -> None:
        self.figures = Figures()

    def update(self, figures: Figures | None = None, **_: Any) -> None:
        self.figures = figures or self.figures


@dataclass
class Produced:
    """A request over `keys`; `bad` gives the status of those that are not ok."""

    client: Any
    keys: list[bytes]
    bad: dict[bytes, RowStatus] = field(default_factory=dict[bytes, RowStatus])
    shard_assets: int = 10
    chunk_assets: int = 4
    dtype: str = "float16"
    dimensions: int = DIMENSIONS
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self.control, self.bucket = (f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("control", "output"))
        self.output = Location(self.bucket, "embeddings/0011223344556677/")
        self.table = "e_" + uuid.uuid4().hex[:16]
        self.alias = "alias-" + uuid.uuid4().hex[:8]
        self.markers: dict[int, IndexedShard] = {}
        for bucket in (self.control, self.bucket):
            self.client.create_bucket(Bucket=bucket)
        self.runs = [self.keys[at : at + self.shard_assets] for at in range(0, len(self.keys), self.shard_assets)]
        self.plan = self._write_plan()
        for shard in range(len(self.runs)):
            self.commit(shard)

    def put(self, bucket: str, key: str, body: bytes) -> str:
        self.client.put_object(Bucket=bucket, Key=key, Body=body)
        return hashlib.sha256(body).hexdigest()

    def get(self, name: str) -> bytes:
        """An object below the output prefix."""
        return self.client.get_object(Bucket=self.bucket, Key=self.output.join(name).key)["Body"].read()

    def _write_plan(self) -> Plan:
        shards = []
        for number, keys in enumerate(self.runs):
            key = layout.shard_key(self.request_id, "a1", number)
            body = shardfile.write("photos", [Address(key, 100, "") for key in keys])
            shards.append(
                PlannedShard(
                    shard=number,
                    key=key,
                    sha256=self.put(self.control, key, body),
                    assets=len(keys),
                    bytes=100 * len(keys),
                    chunks=-(-len(keys) // self.chunk_assets),
                )
            )
        plan = Plan(
            request_id=self.request_id,
            attempt_id="a1",
            bucket="photos",
            model="tiny@1",
            preprocessing_digest="p",
            chunk_assets=self.chunk_assets,
            assets=len(self.keys),
            bytes=100 * len(self.keys),
            shards=shards,
        )
        self.put(self.control, layout.plan_key(self.request_id), plan.to_bytes())
        return plan

    def row(self, ordinal: int, key: bytes) -> Row:
        status = self.bad.get(key, RowStatus.OK)
        if status is RowStatus.OK:
            vector = unit_vector(key, self.dimensions)
            return Row(key, ordinal, status, bytes=100, picture=Picture(64, 48, "JPEG"), embedding=vector)
        return Row(key, ordinal, status, error=f"it is {status}", http_status=HTTP_STATUS.get(status))

    def commit(self, shard: int, generation: int = 1, *, keys: list[bytes] | None = None, **lies: Any) -> None:
        """Write the shard's chunks and marker. `keys` in place of the listed ones, and `lies`, spoil it."""
        run = self.runs[shard] if keys is None else keys
        rows = [self.row(ordinal, key) for ordinal, key in enumerate(run)]
        committed = []
        for number, at in enumerate(range(0, len(rows), self.chunk_assets)):
            part = rows[at : at + self.chunk_assets]
            body = chunks.encode(part, self.dimensions, self.dtype)
            key = layout.chunk_key(shard, number, hashlib.sha256(body).hexdigest())
            ok = sum(row.status is RowStatus.OK for row in part)
            sha256 = self.put(self.bucket, self.output.join(key).key, body)
            committed.append(
                CommittedChunk(
                    chunk=number, key=key, sha256=sha256, bytes=len(body), rows=len(part), ok=ok, bad=len(part) - ok
                )
            )
        statuses = Counter(str(row.status) for row in rows)
        marker = CommitMarker(
            request_id=self.request_id,
            shard=shard,
            generation=generation,
            attempt_id="a2",
            rows=len(rows),
            ok=statuses["ok"],
            bad=len(rows) - statuses["ok"],
            statuses=dict(statuses),
            chunks=committed,
        )
        self.publish_marker(marker.model_copy(update=lies))

    def publish_marker(self, marker: CommitMarker) -> None:
        key = layout.commit_key(marker.shard, marker.generation)
        self.put(self.bucket, self.output.join(key).key, marker.to_bytes())
        self.markers[marker.shard] = IndexedShard(shard=marker.shard, marker_key=key, marker_digest=marker.digest)

    def marker(self, shard: int) -> CommitMarker:
        return CommitMarker.model_validate_json(self.get(self.markers[shard].marker_key))

    def assignment(self, action: str, **changes: Any) -> IndexAssignment:
        given: dict[str, Any] = {
            "request_id": self.request_id,
            "job_id": uuid.uuid4().hex,
            "tenant": "stock",
            "control_bucket": self.control,
            "report_queue_url": "http://unused",
            "entries": [Entry(attempt_id="a3", token="t")],
            "action": action,
            "output_uri": self.output.uri,
            "model": "tiny@1",
            "dtype": self.dtype,
            "index": self.alias,
            "index_table": self.table,
            "shards": list(self.markers.values()),
            "assets": len(self.keys),
        }
        return IndexAssignment.model_validate(given | changes)

    def context(self, assignment: IndexAssignment, stop: threading.Event | None = None) -> Context:
        key = layout.assignment_key(assignment.job_id)
        self.put(self.control, key, assignment.to_bytes())
        settings = Settings(f"s3://{self.control}/{key}", BatchIdentity())
        return Context(self.client, Figured(), stop or threading.Event(), settings, settings.assignment_uri)  # type: ignore[arg-type]


MakeOutput = Callable[..., Produced]


def run(produced: Produced, action: str, stop: threading.Event | None = None, **changes: Any) -> Ending:
    """One index job over the output."""
    assignment = produced.assignment(action, **changes)
    return job.run(assignment, assignment.entries[0], produced.context(assignment, stop))


def indexed(database: psycopg.Connection, table: str) -> dict[bytes, tuple[int, list[float]]]:
    """Key → shard and vector."""
    rows = database.execute(SQL("SELECT key, shard, embedding::text FROM {}").format(Identifier(table))).fetchall()
    return {key: (shard, [float(value) for value in text.strip("[]").split(",")]) for key, shard, text in rows}


def ledger(database: psycopg.Connection, table: str) -> dict[int, tuple[str, int]]:
    """Shard → digest of its marker, and rows."""
    found = database.execute("SELECT shard, marker_digest, rows FROM reembed_ledger WHERE index_table = %s", [table])
    return {shard: (digest, rows) for shard, digest, rows in found.fetchall()}
