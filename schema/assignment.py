"""What a worker is told. One object a Batch job, by reference: all children of an array share one environment.

The environment holds only `REEMBED_ASSIGNMENT`, the S3 URI of this document. Child *i* of an array (or node *i* of
a multi-node job, or the lone job as 0) takes `entries[i]`. An assignment overwritten with `void: true` must not be
run: the worker checks at its start and again before its commit, and exits `ExitCode.VOID`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from schema.plan import Document

ENVIRONMENT_VARIABLE = "REEMBED_ASSIGNMENT"


class Entry(Document):
    """One attempt: its identity, and for `infer` its shard and what is left to do."""

    attempt_id: str
    token: str
    shard: int | None = None
    generation: int = 1
    shard_key: str = ""
    shard_sha256: str = ""
    chunks: int = 0
    isolate: list[int] = Field(default=[], description="chunks to run asset by asset until the poison is found")
    skip: list[int] = Field(default=[], description="ordinals of known poison, written as rows without a decode")
    finalise_retryable: bool = Field(
        default=False, description="at the cap: retryable rows become final and count as bad"
    )
    fetch_concurrency: int | None = None
    batch_size: int | None = None
    large_memory: bool = Field(default=False, description="the job asks for the queue's large memory")


class Common(Document):
    """Fields of every assignment. URIs are S3; `output_uri` already ends in the output digest for infer and index."""

    version: Literal[1] = 1
    request_id: str
    job_id: str
    tenant: str
    void: bool = False
    control_bucket: str
    report_queue_url: str
    heartbeat_seconds: float = 15.0
    bucket_owners: dict[str, str] = Field(
        default={}, description="account id by bucket that the job touches, if known; another owner is an error"
    )
    entries: list[Entry]


class PrepareAssignment(Common):
    """List a prefix, read a manifest or take inline keys; write shard files; publish `plan.json` once."""

    kind: Literal["prepare"] = "prepare"
    model: str
    source_bucket: str
    source_owner: str | None = Field(default=None, description="as in bucket_owners, for workers of release 0.1.0")
    prefix: str | None = None
    manifest_uri: str | None = None
    manifest_sha256: str | None = None
    inline_keys_uri: str | None = None
    shard_assets: int
    chunk_assets: int
    max_assets: int
    list_concurrency: int = 16


class InferAssignment(Common):
    """Embed shards: fetch, decode, embed, write chunks, commit."""

    kind: Literal["infer"] = "infer"
    source_bucket: str
    source_owner: str | None = Field(default=None, description="as in bucket_owners, for workers of release 0.1.0")
    output_uri: str
    model: str
    dtype: Literal["float16", "float32"] = "float16"
    preprocessing_digest: str
    chunk_assets: int
    tolerance: float = Field(default=0.05, description="share of bad rows in a shard over which it is `bad_data`")
    max_image_bytes: int = 64 * 1024 * 1024
    max_image_pixels: int = 100_000_000
    decode_seconds: float = 30.0
    fetch_concurrency: int = 64
    nodes: int | None = Field(default=None, description="size of a multi-node job, checked against the environment")


class IndexedShard(Document):
    """A committed shard to load: the marker decides the rows."""

    shard: int
    marker_key: str
    marker_digest: str


class IndexAssignment(Common):
    """Load committed shards into the request's own index table, or finalise: manifest, failures, alias change."""

    kind: Literal["index"] = "index"
    action: Literal["load", "finalise"]
    output_uri: str
    model: str
    dtype: Literal["float16", "float32"] = "float16"
    index: str | None = Field(default=None, description="alias that search uses; None: Parquet only")
    index_table: str
    shards: list[IndexedShard]
    gaps: list[int] = []
    assets: int = 0
    rows_per_second: int | None = None


Assignment = Annotated[PrepareAssignment | InferAssignment | IndexAssignment, Field(discriminator="kind")]
_adapter: TypeAdapter[Assignment] = TypeAdapter(Assignment)


def parse(body: bytes) -> Assignment:
    """The typed assignment; pydantic.ValidationError when it is not one."""
    return _adapter.validate_json(body)
