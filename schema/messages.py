"""Every message on SQS: a CloudEvents 1.0 structured-mode JSON body around one of the payloads below.

Upstream sends `request.submit`, `request.cancel`, `request.amend`; the controller answers with the `status.*`
events and puts what it cannot take on the reject queue; workers send `worker.*` reports. Consumers ignore unknown
fields (a newer producer may add some) and producers add only optional ones; a breaking change gets new types.
Defaults never change inside a major version: an omitted field means the same for ever.
Source of the envelope: CloudEvents 1.0.2, JSON event format.

Owns the shape of messages only. Whether a well-formed one is allowed is `controller.core.admission`'s business.
`schema.export` turns this file into JSON Schema; the descriptions below are the ones that upstream teams read.
"""

from __future__ import annotations

import json
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from schema.exit_codes import ExitCode
from schema.fields import (
    Bucket,
    Deadline,
    IdempotencyKey,
    Key,
    Model,
    Name,
    Prefix,
    Priority,
    Queues,
    S3Uri,
    Tenant,
    unique,
)
from schema.plan import Figures

MAX_INLINE_KEYS = 1000
MAX_BODY_BYTES = 256 * 1024


class Payload(BaseModel):
    """Base of every `data`: immutable, and unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


# --- upstream → controller -------------------------------------------------------------------------------------


class PrefixSource(Payload):
    """Every object whose key begins with `prefix`; end it with `/` to mean a folder."""

    kind: Literal["prefix"] = Field(description="every object below a prefix")
    bucket: Bucket = Field(description="bucket of the assets")
    prefix: Prefix = Field(default="", description="byte prefix of the keys; empty: the whole bucket")


class ManifestSource(Payload):
    """A Parquet or CSV file of keys (column `key`, optional `size`, `etag`), all in `bucket`."""

    kind: Literal["manifest"] = Field(description="the keys stand in a file on S3")
    bucket: Bucket = Field(description="bucket of the assets that the file lists")
    uri: S3Uri = Field(description="the file: .parquet or .csv with column `key`, optionally `size` and `etag`")
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        default=None, description="of the file; a file with another is not read"
    )


class InlineSource(Payload):
    """Up to 1,000 keys in the message itself."""

    kind: Literal["keys"] = Field(description="the keys stand in the message")
    bucket: Bucket = Field(description="bucket of the assets")
    keys: Annotated[list[Key], AfterValidator(unique)] = Field(
        min_length=1,
        max_length=MAX_INLINE_KEYS,
        description="whole keys, each once; more than 1,000 go in a manifest",
        json_schema_extra={"uniqueItems": True},
    )


Source = Annotated[PrefixSource | ManifestSource | InlineSource, Field(discriminator="kind")]


class Output(Payload):
    """Where the Parquet goes. The controller adds a digest, so unlike requests never share a prefix."""

    uri: S3Uri = Field(description="s3://bucket/prefix under which the output is written")
    dtype: Literal["float16", "float32"] = Field(default="float16", description="type of the stored vectors")


class Mode(StrEnum):
    """`array`: arrays of single-node jobs; `multi_node`: one multi-node job a group of shards, on-demand only."""

    ARRAY = "array"
    MULTI_NODE = "multi_node"


class RequestSubmit(Payload):
    """Re-embed a source with a model. (tenant, idempotency_key) names the request for ever."""

    idempotency_key: IdempotencyKey
    tenant: Tenant
    source: Source = Field(description="what to embed: a prefix, a manifest file or inline keys")
    model: Model
    output: Output = Field(description="where the Parquet goes")
    index: Name | None = Field(default=None, description="search alias to switch when done; none: Parquet only")
    priority: Priority = 0
    deadline: Deadline | None = None
    max_cost_usd: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="the request pauses when its forecast exceeds this"
    )
    tolerance: float = Field(
        default=0.05, ge=0, le=1, allow_inf_nan=False, description="share of bad assets a shard may have"
    )
    queues: Queues | None = None
    mode: Mode = Field(default=Mode.ARRAY, description="how Batch jobs are formed; leave it out unless told to")
    since_request: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="only what was added or changed since that request's plan; refused as unsupported for now",
    )
    labels: dict[Name, Annotated[str, Field(max_length=128)]] = Field(
        default={},
        max_length=16,
        description="the sender's own tags, returned in every status event; names like `index`, values up to 128 long",
        json_schema_extra={"additionalProperties": False},
    )


class RequestCancel(Payload):
    """Stop a request; running work is stopped too."""

    tenant: Tenant
    idempotency_key: IdempotencyKey
    reason: str = Field(default="cancelled by upstream", max_length=500, description="kept in the audit log")


class RequestAmend(Payload):
    """Change priority, deadline or queues of a request that is not finished; a field left out stays."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": [name]} for name in ("priority", "deadline", "queues")]}
    )

    tenant: Tenant
    idempotency_key: IdempotencyKey
    priority: Priority | None = None
    deadline: Deadline | None = None
    queues: Queues | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> RequestAmend:
        if self.priority is None and self.deadline is None and self.queues is None:
            raise PydanticCustomError("nothing_to_change", "Give at least one of priority, deadline and queues")
        return self


class RejectCode(StrEnum):
    """Why a message was refused; docs/contracts.md has one paragraph and one fix for each."""

    NOT_JSON = "not_json"
    TOO_LARGE = "too_large"
    NOT_CLOUDEVENT = "not_cloudevent"
    UNKNOWN_TYPE = "unknown_type"
    INVALID_FIELD = "invalid_field"
    UNKNOWN_TENANT = "unknown_tenant"
    FORBIDDEN_BUCKET = "forbidden_bucket"
    FORBIDDEN_MODEL = "forbidden_model"
    UNKNOWN_MODEL = "unknown_model"
    UNKNOWN_QUEUE = "unknown_queue"
    UNSUPPORTED = "unsupported"
    DEADLINE_PASSED = "deadline_passed"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    UNKNOWN_REQUEST = "unknown_request"
    TOO_LATE = "too_late"


# --- controller → upstream -------------------------------------------------------------------------------------


class Status(Payload):
    """Fields of every status event."""

    request_id: str = Field(description="the controller's name for the request; follows from tenant and key")
    tenant: str = Field(description="as submitted")
    idempotency_key: str = Field(description="as submitted")
    labels: dict[str, str] = Field(default={}, description="as submitted")


class Accepted(Status):
    """The request is recorded and will be worked on."""

    duplicate: bool = Field(default=False, description="it had been accepted before; nothing new was started")


class Rejected(Payload):
    """The message was not taken. `event_id` and `event_type` are the refused message's own."""

    code: RejectCode = Field(description="one word for the cause; see the list of codes")
    reason: str = Field(description="what is wrong with this message; for people")
    field: str | None = Field(default=None, description="path from the top of the body, such as data.source.bucket")
    fix: str = Field(description="what the sender has to change; for people")
    original: str = Field(description="the message as it came; cut where it would not fit in one of ours")
    tenant: str | None = Field(default=None, description="of the refused message, where it could be read")
    idempotency_key: str | None = Field(default=None, description="of the refused message, where it could be read")
    event_id: str | None = Field(default=None, description="`id` of the refused message, where it could be read")
    event_type: str | None = Field(default=None, description="`type` of the refused message, where it could be read")


class Planned(Status):
    """The source is listed and cut into shards; GPU work begins."""

    assets: int = Field(description="objects to embed")
    bytes: int = Field(description="their size, as far as the listing or manifest told it")
    shards: int = Field(description="parts the work was cut into")
    eta_seconds: float | None = Field(default=None, description="estimate of the time left; absent: nothing to go by")
    cost_usd: float | None = Field(default=None, description="estimate of the whole cost")


class Progress(Status):
    """At most one a minute a request."""

    assets: int = Field(description="objects to embed")
    done: int = Field(description="objects with a result, ok + bad")
    ok: int = Field(description="objects with a vector")
    bad: int = Field(description="objects with a final status other than ok")
    shards: int = Field(description="parts the work was cut into")
    shards_done: int = Field(description="parts committed")
    eta_seconds: float | None = Field(default=None, description="estimate of the time left")
    eta_low_seconds: float | None = Field(default=None, description="lower end of its interval")
    eta_high_seconds: float | None = Field(default=None, description="upper end of its interval")
    cost_usd: float | None = Field(default=None, description="estimate of the whole cost")


class Paused(Status):
    """No new work is started; what runs goes on."""

    reason: str = Field(description="why, for people")


class Attention(Status):
    """The request waits for an operator of the controller; upstream need not act."""

    reason: str = Field(description="why, for people")
    failed_shards: int = Field(default=0, description="parts that failed for good")


class Finished(Status):
    """The last event of a request: succeeded, failed or cancelled. URIs are absent when there is no output."""

    assets: int = Field(default=0, description="objects to embed")
    ok: int = Field(default=0, description="objects with a vector")
    bad: int = Field(default=0, description="objects with a final status other than ok")
    statuses: dict[str, int] = Field(default={}, description="objects by final status: ok, missing, unreadable, …")
    shards: int = Field(default=0, description="parts the work was cut into")
    failed_shards: int = Field(default=0, description="parts without output: gaps that an operator accepted")
    manifest_uri: str | None = Field(default=None, description="JSON that names every Parquet object of the output")
    failures_uri: str | None = Field(default=None, description="Parquet with one row an object that is not ok")
    index: str | None = Field(default=None, description="search alias that now answers with this output")
    cost_usd: float | None = Field(default=None, description="estimate of what was spent")
    reason: str | None = Field(default=None, description="why it failed or was cancelled, for people")


# --- worker → controller ---------------------------------------------------------------------------------------


class ReportKind(StrEnum):
    STARTED = "started"
    HEARTBEAT = "heartbeat"
    ENDED = "ended"


class WorkerReport(Payload):
    """What a worker says of its attempt. Figures are cumulative, so the highest `seq` says all.

    `ended` with exit_code OK means: look at the commit marker (infer), plan.json (prepare) or `loaded` (index).
    """

    attempt_id: str
    token: str
    kind: ReportKind
    seq: int = Field(ge=0)
    batch_job_id: str | None = None
    queue: str | None = None
    compute_environment: str | None = None
    instance_type: str | None = None
    request_id: str
    shard: int | None = None
    open_chunks: list[int] = []
    chunks_left: int | None = None
    figures: Figures = Figures()
    exit_code: ExitCode | None = None
    error: str | None = Field(default=None, max_length=4000)
    poison: list[int] = Field(default=[], description="ordinals found by isolation")
    retryable_rows: int = 0
    loaded: dict[int, str] = Field(default={}, description="index: shard → marker digest in the index's ledger")
    manifest_uri: str | None = None
    failures_uri: str | None = None


# --- envelope --------------------------------------------------------------------------------------------------


class MessageType(StrEnum):
    """`type` of the CloudEvent."""

    REQUEST_SUBMIT = "request.submit"
    REQUEST_CANCEL = "request.cancel"
    REQUEST_AMEND = "request.amend"
    STATUS_ACCEPTED = "status.accepted"
    STATUS_REJECTED = "status.rejected"
    STATUS_PLANNED = "status.planned"
    STATUS_PROGRESS = "status.progress"
    STATUS_PAUSED = "status.paused"
    STATUS_ATTENTION = "status.attention"
    STATUS_SUCCEEDED = "status.succeeded"
    STATUS_FAILED = "status.failed"
    STATUS_CANCELLED = "status.cancelled"
    WORKER_REPORT = "worker.report"


PAYLOADS: dict[MessageType, type[Payload]] = {
    MessageType.REQUEST_SUBMIT: RequestSubmit,
    MessageType.REQUEST_CANCEL: RequestCancel,
    MessageType.REQUEST_AMEND: RequestAmend,
    MessageType.STATUS_ACCEPTED: Accepted,
    MessageType.STATUS_REJECTED: Rejected,
    MessageType.STATUS_PLANNED: Planned,
    MessageType.STATUS_PROGRESS: Progress,
    MessageType.STATUS_PAUSED: Paused,
    MessageType.STATUS_ATTENTION: Attention,
    MessageType.STATUS_SUCCEEDED: Finished,
    MessageType.STATUS_FAILED: Finished,
    MessageType.STATUS_CANCELLED: Finished,
    MessageType.WORKER_REPORT: WorkerReport,
}


class Envelope(BaseModel):
    """CloudEvents 1.0 structured mode. `data` is validated by `PAYLOADS[type]` in a second step."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    specversion: Literal["1.0"] = Field(description='the string "1.0"')
    id: str = Field(
        min_length=1, max_length=256, description="unique within `source`; kept for logs, returned with a rejection"
    )
    source: str = Field(min_length=1, max_length=1024, description="who sent it, a URI reference; kept for logs")
    type: str = Field(min_length=1, max_length=128, description="what `data` is, such as request.submit")
    subject: str | None = Field(default=None, description="ignored")
    time: datetime | None = Field(default=None, description="when it was made; kept for logs")
    datacontenttype: str | None = Field(default="application/json", description="ignored: `data` is JSON")
    dataschema: str | None = Field(default=None, description="ignored")
    data: dict[str, Any] = Field(description="the payload")


def encode(kind: MessageType, payload: Payload, *, event_id: str, source: str, time: datetime | None = None) -> str:
    """The SQS body. ASCII only: S3 keys may hold characters that SQS refuses raw."""
    envelope = Envelope(
        specversion="1.0",
        id=event_id,
        source=source,
        type=kind,
        time=time,
        data=payload.model_dump(mode="json", exclude_none=True),
    )
    return json.dumps(envelope.model_dump(mode="json", exclude_none=True), ensure_ascii=True)
