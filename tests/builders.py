"""Records for tests: a valid default of each, changed by keyword."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from controller.core.records import Attempt, Job, QueueLoad, Request, Shard
from schema.plan import CommitMarker, CommittedChunk
from schema.states import AttemptState, JobKind, JobState, RequestState, ShardState

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def request(**changes: Any) -> Request:
    body = {
        "source": {"kind": "prefix", "bucket": "photos", "prefix": "p/"},
        "output": {"uri": "s3://embeddings/out/", "dtype": "float16"},
        "model": "tiny@1",
    }
    body |= changes.pop("body", {})
    base: dict[str, Any] = {
        "id": "r-1",
        "tenant": "stock",
        "idempotency_key": "k",
        "body_digest": "d",
        "body": body,
        "state": RequestState.RUNNING,
        "created_at": NOW,
        "updated_at": NOW,
        "output_uri": "s3://embeddings/out/0011223344556677/",
        "preprocessing_digest": "p",
        "chunk_assets": 10,
        "assets": 40,
        "shards": 1,
    }
    return Request(**{**base, **changes})


def shard(number: int = 0, **changes: Any) -> Shard:
    base: dict[str, Any] = {
        "request_id": "r-1",
        "shard": number,
        "state": ShardState.PENDING,
        "generation": 1,
        "eligible_at": NOW,
        "updated_at": NOW,
        "key": f"shards/{number}",
        "sha256": "00" * 32,
        "assets": 40,
        "bytes": 4000,
        "chunks": 4,
    }
    return Shard(**{**base, **changes})


def attempt(number: int = 0, **changes: Any) -> Attempt:
    base: dict[str, Any] = {
        "id": f"a-{number}",
        "job_id": "j-1",
        "array_index": number,
        "request_id": "r-1",
        "kind": JobKind.INFER,
        "shard": number,
        "token": f"t-{number}",
        "queue": "g6e",
        "state": AttemptState.RUNNING,
        "created_at": NOW,
        "last_contact_at": NOW,
        "next_check_at": NOW,
        "started_at": NOW,
    }
    return Attempt(**{**base, **changes})


def job(**changes: Any) -> Job:
    base: dict[str, Any] = {
        "id": "j-1",
        "name": "reembed-r-1-infer-j-1",
        "kind": JobKind.INFER,
        "request_id": "r-1",
        "queue": "g6e",
        "state": JobState.INTENDED,
        "size": 1,
        "assignment": {},
        "created_at": NOW,
    }
    return Job(**{**base, **changes})


def load(name: str = "g6e", **changes: Any) -> QueueLoad:
    return QueueLoad(name=name, **changes)


def marker(of: Shard, **changes: Any) -> CommitMarker:
    rows = of.assets // of.chunks
    chunks = [
        CommittedChunk(chunk=k, key=f"chunks/{k}", sha256="00" * 32, bytes=100, rows=rows, ok=rows, bad=0)
        for k in range(of.chunks)
    ]
    base: dict[str, Any] = {
        "request_id": of.request_id,
        "shard": of.shard,
        "generation": of.generation,
        "attempt_id": "a-0",
        "rows": of.assets,
        "ok": of.assets,
        "bad": 0,
        "statuses": {"ok": of.assets},
        "chunks": chunks,
    }
    return CommitMarker(**{**base, **changes})


def settings() -> dict[str, Any]:
    """The least that the settings need, as JSON: three queues in their order of preference."""
    return {
        "database": {"url": "postgresql+asyncpg://nobody@127.0.0.1/none"},
        "sqs": {name: f"sqs://{name}" for name in ("requests", "reports", "batch_events", "rejects", "status")},
        "storage": {"control_bucket": "control"},
        "cpu": {"queue": "cpu", "prepare_definition": "prepare:1", "index_definition": "index:1"},
        "gpu_queues": [{"name": name, "job_definition": "infer:1"} for name in ("g6e", "g6", "g5")],
        "models": ["tiny@1"],
        "tenants": {"stock": {"inputs": ["s3://photos/"], "outputs": ["s3://embeddings/"]}},
    }
