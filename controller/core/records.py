"""What the controller knows, as frozen values: one record a row of schema.tables.

The store reads rows into these; everything that decides takes them. Times are aware UTC datetimes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from schema.plan import Figures
from schema.states import AttemptState, JobKind, JobState, Outcome, RequestState, ShardState, StopIntent


@dataclass(frozen=True, kw_only=True)
class Request:
    """One re-embedding request. `body` is the RequestSubmit payload with amendments applied, as JSON."""

    id: str
    tenant: str
    idempotency_key: str
    body_digest: str
    body: Mapping[str, Any]
    state: RequestState
    created_at: datetime
    updated_at: datetime
    reason: str | None = None
    paused: bool = False
    priority: int = 0
    deadline: datetime | None = None
    finished_at: datetime | None = None
    progress_sent_at: datetime | None = None
    plan_digest: str | None = None
    output_uri: str | None = None
    preprocessing_digest: str | None = None
    chunk_assets: int | None = None
    assets: int = 0
    bytes: int = 0
    shards: int = 0
    accept_failures: bool = False
    reopened_at: datetime | None = None
    """When an operator last sent it on from attention: budgets of its prepare and index jobs count from then."""
    manifest_uri: str | None = None
    failures_uri: str | None = None
    index_active: bool = False

    @property
    def model(self) -> str:
        return self.body["model"]

    @property
    def index(self) -> str | None:
        return self.body.get("index")

    @property
    def queues(self) -> tuple[str, ...] | None:
        """The queues the request allows, in its own order; None: every queue in the order of the settings."""
        named: list[str] | None = self.body.get("queues")
        return tuple(named) if named else None

    @property
    def multi_node(self) -> bool:
        return self.body.get("mode") == "multi_node"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A fixed slice of a request's assets."""

    request_id: str
    shard: int
    state: ShardState
    generation: int
    eligible_at: datetime
    updated_at: datetime
    key: str
    sha256: str
    assets: int
    bytes: int
    chunks: int
    reason: str | None = None
    attempt_id: str | None = None
    last_outcome: Outcome | None = None
    last_queue: str | None = None
    avoid_queue: str | None = None
    isolate: tuple[int, ...] = ()
    poison: tuple[int, ...] = ()
    marker_digest: str | None = None
    marker_key: str | None = None
    ok: int | None = None
    bad: int | None = None
    statuses: Mapping[str, int] | None = None
    indexed_digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One run of one shard on one queue; for prepare and index jobs `shard` is None."""

    id: str
    job_id: str
    array_index: int
    request_id: str
    kind: JobKind
    token: str
    queue: str
    state: AttemptState
    created_at: datetime
    last_contact_at: datetime
    next_check_at: datetime
    shard: int | None = None
    generation: int = 1
    outcome: Outcome | None = None
    reason: str | None = None
    stop_intent: StopIntent | None = None
    stop_requested_at: datetime | None = None
    queued_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    misses: int = 0
    batch_job_id: str | None = None
    batch_status: str | None = None
    batch_status_reason: str | None = None
    container_reason: str | None = None
    batch_exit_code: int | None = None
    batch_ended_at: datetime | None = None
    worker_exit_code: int | None = None
    worker_error: str | None = None
    worker_ended_at: datetime | None = None
    last_seq: int = -1
    open_chunks: tuple[int, ...] = ()
    poison: tuple[int, ...] = ()
    figures: Figures = field(default_factory=Figures)
    instance_type: str | None = None
    compute_environment: str | None = None


@dataclass(frozen=True, kw_only=True)
class Job:
    """One SubmitJob: an array, a lone job or a multi-node job."""

    id: str
    name: str
    kind: JobKind
    request_id: str
    queue: str
    state: JobState
    size: int
    assignment: Mapping[str, Any]
    created_at: datetime
    multi_node: bool = False
    submit_started_at: datetime | None = None
    submitted_at: datetime | None = None
    closed_at: datetime | None = None
    batch_job_id: str | None = None
    submit_epoch: int | None = None
    reason: str | None = None


class Circuit(StrEnum):
    """Capacity of a queue: closed lets work through, open does not, half_open has a probe out."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, kw_only=True)
class QueueState:
    """What is remembered of a queue between cycles."""

    name: str
    circuit: Circuit = Circuit.CLOSED
    circuit_changed_at: datetime | None = None
    retry_at: datetime | None = None
    cooldown_seconds: float = 0.0
    blocked_reason: str | None = None
    blocked_since: datetime | None = None
    paused: bool = False


@dataclass(frozen=True, kw_only=True)
class QueueLoad:
    """Live attempts of a queue, counted from rows (GPU work only, kind infer)."""

    name: str
    submitting: int = 0
    queued: int = 0
    running: int = 0
    oldest_queued_at: datetime | None = None
    last_started_at: datetime | None = None
    stopping: int = 0
    """Of those submitting and queued, how many are meant to stop."""
    last_busy_at: datetime | None = None
    """When the leader last saw something run there; not from rows."""

    @property
    def waiting(self) -> int:
        """Sent, not started, and not on its way back."""
        return self.submitting + self.queued - self.stopping

    def stalled(self, seconds: float, now: datetime) -> bool:
        """Whether its head waits for so long that instances cannot be coming up for it any more."""
        return self.oldest_queued_at is not None and now - self.oldest_queued_at >= timedelta(seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Unstarted attempts of one request in one queue that nobody has asked to stop."""

    queue: str
    request_id: str
    attempts: int


#: The one thing that can be frozen.
SUBMISSIONS = "submissions"


@dataclass(frozen=True, kw_only=True)
class Freeze:
    """Whether every submission is stopped, in every replica, and who did it when and why."""

    name: str = SUBMISSIONS
    frozen: bool = False
    actor: str = ""
    reason: str = ""
    changed_at: datetime | None = None


class OperationKind(StrEnum):
    """What an operator may ask for."""

    REQUEUE_SHARDS = "requeue_shards"
    CANCEL_REQUEST = "cancel_request"
    ACCEPT_FAILURES = "accept_failures"
    FAIL_REQUEST = "fail_request"
    RESUME_REQUEST = "resume_request"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operator's order, applied in bounded batches by the operations loop and audited."""

    id: str
    kind: OperationKind
    request_id: str
    selector: Mapping[str, Any]
    actor: str
    reason: str
    created_at: datetime
    state: str = "pending"
    moved: int = 0
    skipped: int = 0
    finished_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class OutboxEvent:
    """A status event that must reach upstream at least once."""

    id: str
    request_id: str
    type: str
    body: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Lease:
    """Leadership: `epoch` grows at every change of holder and joins every leader-only write."""

    holder: str
    epoch: int
    until: datetime


@dataclass(frozen=True, kw_only=True)
class ShardCounts:
    """Shards of one request by state, and sums over the succeeded ones."""

    by_state: Mapping[ShardState, int]
    ok: int = 0
    bad: int = 0
    assets_done: int = 0
    indexed: int = 0
    statuses: Mapping[str, int] = field(default_factory=dict[str, int])

    def __getitem__(self, state: ShardState) -> int:
        return self.by_state.get(state, 0)

    @property
    def total(self) -> int:
        return sum(self.by_state.values())


@dataclass(frozen=True, kw_only=True)
class TotalKey:
    """Labels of one exported counter; never an id."""

    name: str
    model: str = ""
    queue: str = ""
    label: str = ""
