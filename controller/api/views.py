"""What the API shows of the records. A view lists its fields itself, so that no token or claim gets out by accident."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from controller.core.progress import Summary
from controller.core.records import Circuit, OperationKind
from schema.plan import Figures
from schema.states import AttemptState, JobKind, Outcome, RequestState, ShardState, StopIntent


class View(BaseModel):
    model_config = ConfigDict(from_attributes=True, frozen=True)


class RequestRow(View):
    """One request in a list."""

    id: str
    tenant: str
    idempotency_key: str
    state: RequestState
    reason: str | None = Field(description="why it is paused, in attention, failed or cancelled")
    paused: bool
    priority: int
    deadline: datetime | None
    model: str
    index: str | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    assets: int = Field(description="0 until it is planned")
    bytes: int
    shards: int


class ProgressView(View):
    """Estimates are null while nothing was measured, while the request is paused, and when it is over."""

    assets: int
    done: int = Field(description="assets of committed shards")
    ok: int
    bad: int
    shards: int
    shards_done: int
    eta_seconds: float | None
    eta_low_seconds: float | None
    eta_high_seconds: float | None
    cost_usd: float | None = Field(description="measured attempt time at the configured prices")
    wasted_usd: float | None = Field(description="the part of it that attempts without a commit took")

    @classmethod
    def of(cls, summary: Summary, *, moving: bool) -> ProgressView:
        view = cls.model_validate(summary)
        nothing = dict.fromkeys(("eta_seconds", "eta_low_seconds", "eta_high_seconds"))
        return view if moving else view.model_copy(update=nothing)


class RequestView(RequestRow):
    """One request with its progress."""

    body: Mapping[str, Any] = Field(description="RequestSubmit as accepted, with amendments applied")
    plan_digest: str | None
    preprocessing_digest: str | None
    chunk_assets: int | None
    output_uri: str | None = Field(description="the output prefix with its digest, once planned")
    accept_failures: bool
    manifest_uri: str | None
    failures_uri: str | None
    index_active: bool
    shard_states: Mapping[ShardState, int]
    statuses: Mapping[str, int] = Field(description="rows of committed shards by status")
    outcomes: Mapping[Outcome, int] = Field(description="ended GPU attempts by outcome")
    progress: ProgressView


class ShardView(View):
    """One shard."""

    request_id: str
    shard: int
    state: ShardState
    reason: str | None
    generation: int
    eligible_at: datetime
    updated_at: datetime
    assets: int
    bytes: int
    chunks: int
    attempt_id: str | None = Field(description="the live attempt")
    last_outcome: Outcome | None
    last_queue: str | None
    isolate: tuple[int, ...] = Field(description="chunks that run asset by asset next time")
    poison: tuple[int, ...] = Field(description="ordinals of assets that kill a worker")
    marker_key: str | None
    ok: int | None
    bad: int | None
    statuses: Mapping[str, int] | None


class AttemptView(View):
    """One run of one shard; of the worker's token nothing is shown."""

    id: str
    job_id: str
    array_index: int
    request_id: str
    kind: JobKind
    shard: int | None
    generation: int
    queue: str
    state: AttemptState
    outcome: Outcome | None
    reason: str | None
    stop_intent: StopIntent | None
    stop_requested_at: datetime | None
    created_at: datetime
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    last_contact_at: datetime
    next_check_at: datetime
    misses: int
    batch_job_id: str | None
    batch_status: str | None
    batch_status_reason: str | None
    container_reason: str | None
    batch_exit_code: int | None
    batch_ended_at: datetime | None
    worker_exit_code: int | None
    worker_error: str | None
    worker_ended_at: datetime | None
    open_chunks: tuple[int, ...]
    poison: tuple[int, ...]
    figures: Figures
    instance_type: str | None
    compute_environment: str | None


class ShardDetail(ShardView):
    """One shard with its attempts, oldest first, of every generation."""

    attempts: list[AttemptView]


class FactView(View):
    """One thing that happened to an attempt: when, who says so, and what."""

    at: datetime | None = Field(description="null: derived from the facts above it")
    source: str = Field(description="controller, batch, worker or policy")
    fact: str


class Explanation(View):
    """The chain of facts and reasons, in the order in which they happened."""

    attempt: AttemptView
    facts: list[FactView]


class OperationView(View):
    """An operator's order and how far it has come."""

    id: str
    kind: OperationKind
    request_id: str
    selector: Mapping[str, Any]
    actor: str
    reason: str
    state: str = Field(description="pending, done or refused")
    moved: int = Field(description="shards (or the request) that changed")
    skipped: int = Field(description="had moved on meanwhile")
    created_at: datetime
    finished_at: datetime | None


class AuditView(View):
    """One line of the audit trail."""

    id: str
    at: datetime
    actor: str
    action: str
    target: str
    reason: str
    detail: Mapping[str, Any]


class EventView(View):
    """A status event of the request; `body` is the CloudEvent."""

    id: str
    type: str
    created_at: datetime
    body: Mapping[str, Any]


class FreezeView(View):
    """Whether every submission is stopped."""

    frozen: bool
    actor: str = Field(description="who changed it last; empty: nobody ever did")
    reason: str
    changed_at: datetime | None


class QueueView(View):
    """A GPU queue: configuration, circuit and load."""

    name: str
    on_demand: bool
    max_live: int
    backlog: int
    price_usd_per_hour: float
    circuit: Circuit
    circuit_changed_at: datetime | None
    retry_at: datetime | None
    blocked_reason: str | None
    blocked_since: datetime | None
    paused: bool
    submitting: int
    queued: int
    running: int
    oldest_queued_at: datetime | None
    last_started_at: datetime | None


class RequestPage(View):
    items: list[RequestRow]
    next: str | None = Field(description="value of `before` for the next page; null on the last")


class ShardPage(View):
    items: list[ShardView]
    next: int | None = Field(description="value of `after` for the next page; null on the last")


class SubmitAnswer(View):
    """Accepted for the requests queue. Whether it becomes a request is told by its status events."""

    request_id: str
    duplicate: bool = Field(description="a request with the same content is on record already")
    event_id: str | None = Field(description="id of the CloudEvent that was sent")


class ValidAnswer(View):
    """Admission would take it now."""

    valid: bool
    request_id: str
    duplicate: bool


class Preview(View):
    """What a requeue would do: `eligible` would get a new generation; `skipped` matches but is in another state."""

    matched: int
    eligible: int
    skipped: Mapping[ShardState, int]
    exact: bool = Field(description="false: more match than were counted")
    prepares_again: bool = Field(default=False, description="nothing was planned yet: preparation runs again")


class Requeued(View):
    """`operation` is null for a dry run."""

    operation: OperationView | None
    preview: Preview
