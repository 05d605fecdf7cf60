"""New jobs as records: the row, its attempts and the assignment the workers will read. Ids and tokens are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controller.core.records import Attempt, Job, Request, Shard
from controller.core.retry import batch_size, fetch_concurrency, must_finalise, needs_large_memory
from schema.assignment import Entry, IndexAssignment, IndexedShard, InferAssignment, PrepareAssignment
from schema.layout import Location, inline_keys_key
from schema.states import AttemptState, JobKind, JobState


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Ids made outside of core: one job, and an (attempt id, token) pair for each entry."""

    job_id: str
    attempts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What every assignment repeats, from the settings."""

    control_bucket: str
    report_queue_url: str
    heartbeat_seconds: float
    fetch_concurrency: int
    list_concurrency: int = 16
    bucket_owners: Mapping[str, str] = field(default_factory=dict[str, str])
    """Bucket → account id; a bucket that changed hands is then an error, not a leak."""


@dataclass(frozen=True, kw_only=True)
class NewJob:
    job: Job
    attempts: tuple[Attempt, ...]


def job_name(request_id: str, kind: JobKind, job_id: str) -> str:
    """Unique by the job id, and lower-case: ListJobs compares names without regard to case."""
    return f"reembed-{request_id}-{kind.value}-{job_id}".lower()


def index_table(request: Request) -> str:
    """One table a (dataset, model, preprocessing): named by the output digest."""
    return "e_" + (request.output_uri or "").rstrip("/").rsplit("/", 1)[-1]


def prepare_job(
    request: Request, queue: str, who: Identity, terms: Terms, sizes: tuple[int, int, int], now: datetime
) -> NewJob:
    """`sizes`: assets a shard, assets a chunk, most assets of a request."""
    source = request.body["source"]
    kind = source["kind"]
    inline = Location(terms.control_bucket, inline_keys_key(request.id)).uri if kind == "keys" else None
    shard_assets, chunk_assets, max_assets = sizes
    assignment = PrepareAssignment(
        **_common(request, who, terms, [_entry(who)]),
        model=request.model,
        source_bucket=source["bucket"],
        source_owner=terms.bucket_owners.get(source["bucket"]),
        prefix=source.get("prefix", "") if kind == "prefix" else None,
        manifest_uri=source.get("uri") if kind == "manifest" else None,
        manifest_sha256=source.get("sha256") if kind == "manifest" else None,
        inline_keys_uri=inline,
        shard_assets=shard_assets,
        chunk_assets=chunk_assets,
        max_assets=max_assets,
        list_concurrency=terms.list_concurrency,
    )
    return _new(request, JobKind.PREPARE, queue, who, assignment.model_dump(mode="json"), now)


def index_job(
    request: Request,
    queue: str,
    who: Identity,
    terms: Terms,
    shards: Sequence[Shard],
    now: datetime,
    *,
    finalise: bool,
    gaps: Sequence[int] = (),
    rows_per_second: int | None = None,
) -> NewJob:
    assignment = IndexAssignment(
        **_common(request, who, terms, [_entry(who)]),
        action="finalise" if finalise else "load",
        output_uri=request.output_uri or "",
        model=request.model,
        dtype=request.body["output"].get("dtype", "float16"),
        index=request.index,
        index_table=index_table(request),
        shards=[
            IndexedShard(shard=s.shard, marker_key=s.marker_key or "", marker_digest=s.marker_digest or "")
            for s in shards
        ],
        gaps=list(gaps),
        assets=request.assets,
        rows_per_second=rows_per_second,
    )
    return _new(request, JobKind.INDEX, queue, who, assignment.model_dump(mode="json"), now)


def infer_job(
    request: Request,
    queue: str,
    who: Identity,
    terms: Terms,
    shards: Sequence[Shard],
    histories: Sequence[Sequence[Attempt]],
    now: datetime,
) -> NewJob:
    """One entry a shard; `histories[i]`: ended attempts of `shards[i]` in its generation, oldest first."""
    entries = [
        _infer_entry(shard, history, attempt_id, token, terms.fetch_concurrency)
        for shard, history, (attempt_id, token) in zip(shards, histories, who.attempts, strict=True)
    ]
    assignment = InferAssignment(
        **_common(request, who, terms, entries),
        source_bucket=request.body["source"]["bucket"],
        source_owner=terms.bucket_owners.get(request.body["source"]["bucket"]),
        output_uri=request.output_uri or "",
        model=request.model,
        preprocessing_digest=request.preprocessing_digest or "",
        dtype=request.body["output"].get("dtype", "float16"),
        chunk_assets=request.chunk_assets or 1,
        tolerance=request.body.get("tolerance", 0.05),
        fetch_concurrency=terms.fetch_concurrency,
        nodes=len(shards) if request.multi_node and len(shards) > 1 else None,
    )
    return _new(request, JobKind.INFER, queue, who, assignment.model_dump(mode="json"), now, shards)


def _infer_entry(
    shard: Shard, history: Sequence[Attempt], attempt_id: str, token: str, usual_concurrency: int
) -> Entry:
    """Hints come from how the last attempts ended: throttled ones fetch slower, short of memory ones batch smaller."""
    return Entry(
        attempt_id=attempt_id,
        token=token,
        shard=shard.shard,
        generation=shard.generation,
        shard_key=shard.key,
        shard_sha256=shard.sha256,
        chunks=shard.chunks,
        isolate=list(shard.isolate),
        skip=list(shard.poison),
        finalise_retryable=must_finalise(history),
        fetch_concurrency=fetch_concurrency(history, usual_concurrency),
        batch_size=batch_size(history),
        large_memory=needs_large_memory(history),
    )


def _entry(who: Identity) -> Entry:
    attempt_id, token = who.attempts[0]
    return Entry(attempt_id=attempt_id, token=token)


def _common(request: Request, who: Identity, terms: Terms, entries: list[Entry]) -> dict[str, Any]:
    source = request.body["source"]
    uris = [uri for uri in (source.get("uri"), request.output_uri) if uri]
    touched = {terms.control_bucket, source["bucket"], *(Location.parse(uri).bucket for uri in uris)}
    return {
        "request_id": request.id,
        "job_id": who.job_id,
        "tenant": request.tenant,
        "control_bucket": terms.control_bucket,
        "report_queue_url": terms.report_queue_url,
        "heartbeat_seconds": terms.heartbeat_seconds,
        "bucket_owners": {name: owner for name, owner in terms.bucket_owners.items() if name in touched},
        "entries": entries,
    }


def _new(
    request: Request,
    kind: JobKind,
    queue: str,
    who: Identity,
    assignment: dict[str, Any],
    now: datetime,
    shards: Sequence[Shard] = (),
) -> NewJob:
    job = Job(
        id=who.job_id,
        name=job_name(request.id, kind, who.job_id),
        kind=kind,
        request_id=request.id,
        queue=queue,
        state=JobState.INTENDED,
        size=len(who.attempts),
        multi_node=request.multi_node and kind is JobKind.INFER and len(who.attempts) > 1,
        assignment=assignment,
        created_at=now,
    )
    attempts = tuple(
        Attempt(
            id=attempt_id,
            job_id=job.id,
            array_index=index,
            request_id=request.id,
            kind=kind,
            shard=shards[index].shard if shards else None,
            generation=shards[index].generation if shards else 1,
            token=token,
            queue=queue,
            state=AttemptState.SUBMITTING,
            created_at=now,
            last_contact_at=now,
            next_check_at=now,
        )
        for index, (attempt_id, token) in enumerate(who.attempts)
    )
    return NewJob(job=job, attempts=attempts)
