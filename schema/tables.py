"""SQLAlchemy tables of the control database. Only `controller.store` and the migrations use them.

Every time is `timestamptz`, every id text made by the caller (never by the database), so that a run can be
replayed. `claimed_by`/`claim_until` mark rows that one replica works on; `epoch` joins leader-only writes.

Indexes serve the loops' own questions with a million shards: those of one state are partial, so that finished work,
which is most of every table, is neither in them nor in the way.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from schema.states import AttemptState, JobKind, JobState, RequestState, ShardState

metadata = MetaData()


def _time(name: str, *, null: bool = True) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=null)


def _one_of(column: str, values: type) -> CheckConstraint:
    allowed = ", ".join(f"'{value}'" for value in values)  # type: ignore[attr-defined]
    return CheckConstraint(f"{column} IN ({allowed})", name=f"{column}_known")


requests = Table(
    "requests",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("idempotency_key", Text, nullable=False),
    Column("body_digest", Text, nullable=False),
    Column("body", JSONB, nullable=False, comment="RequestSubmit as accepted; amendments are applied to it"),
    Column("state", Text, nullable=False),
    Column("reason", Text, comment="why it is paused, in attention, failed or cancelled"),
    Column("paused", Boolean, nullable=False, server_default="false"),
    Column("priority", Integer, nullable=False, server_default="0"),
    _time("deadline"),
    _time("created_at", null=False),
    _time("updated_at", null=False),
    _time("finished_at"),
    _time("progress_sent_at"),
    Column("plan_digest", Text),
    Column("output_uri", Text, comment="output prefix with the digest; set when planned"),
    Column("preprocessing_digest", Text),
    Column("chunk_assets", Integer),
    Column("assets", BigInteger, nullable=False, server_default="0"),
    Column("bytes", BigInteger, nullable=False, server_default="0"),
    Column("shards", Integer, nullable=False, server_default="0"),
    Column("accept_failures", Boolean, nullable=False, server_default="false"),
    _time("reopened_at"),
    Column("manifest_uri", Text),
    Column("failures_uri", Text),
    Column("index_active", Boolean, nullable=False, server_default="false"),
    Column("claimed_by", Text),
    _time("claim_until"),
    _one_of("state", RequestState),
    Index("requests_idempotency", "tenant", "idempotency_key", unique=True),
    Index("requests_by_state", "state", "priority", "created_at"),
    Index("requests_by_age", "created_at", "id"),
)

shards = Table(
    "shards",
    metadata,
    Column("request_id", Text, ForeignKey("requests.id"), primary_key=True),
    Column("shard", Integer, primary_key=True),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("generation", Integer, nullable=False, server_default="1"),
    _time("eligible_at", null=False),
    _time("updated_at", null=False),
    Column("key", Text, nullable=False, comment="the packed address file in the control bucket"),
    Column("sha256", Text, nullable=False),
    Column("assets", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("chunks", Integer, nullable=False),
    Column("attempt_id", Text, comment="the live attempt, if any"),
    Column("last_outcome", Text),
    Column("last_queue", Text),
    Column("isolate", JSONB, nullable=False, server_default=text("'[]'::jsonb"), comment="chunks"),
    Column("poison", JSONB, nullable=False, server_default=text("'[]'::jsonb"), comment="ordinals"),
    Column("marker_digest", Text),
    Column("marker_key", Text),
    Column("ok", Integer),
    Column("bad", Integer),
    Column("statuses", JSONB(none_as_null=True)),
    Column("indexed_digest", Text, comment="marker digest in the index's ledger"),
    Column("avoid_queue", Text, comment="the next run goes elsewhere if it can"),
    _one_of("state", ShardState),
    Index("shards_by_state", "request_id", "state", "shard"),
    Index(
        "shards_due",
        "request_id",
        "shard",
        "eligible_at",
        postgresql_where=text("state = 'pending'"),
    ),
    Index(
        "shards_unindexed",
        "request_id",
        "shard",
        postgresql_where=text("state = 'succeeded' AND indexed_digest IS DISTINCT FROM marker_digest"),
    ),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("kind", Text, nullable=False),
    Column("request_id", Text, ForeignKey("requests.id"), nullable=False),
    Column("queue", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("size", Integer, nullable=False),
    Column("multi_node", Boolean, nullable=False, server_default="false"),
    Column("assignment", JSONB, nullable=False, comment="schema.assignment document, written before SubmitJob"),
    _time("created_at", null=False),
    _time("submit_started_at"),
    _time("submitted_at"),
    _time("closed_at"),
    Column("batch_job_id", Text),
    Column("submit_epoch", BigInteger),
    Column("reason", Text),
    Column("claimed_by", Text),
    _time("claim_until"),
    _one_of("state", JobState),
    _one_of("kind", JobKind),
    Index("jobs_open", "state", "created_at"),
    Index("jobs_batch_id", "batch_job_id"),
    Index("jobs_by_request", "request_id"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", Text, primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("array_index", Integer, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("shard", Integer, comment="infer only"),
    Column("generation", Integer, nullable=False, server_default="1"),
    Column("token", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("outcome", Text),
    Column("reason", Text),
    Column("stop_intent", Text),
    _time("stop_requested_at"),
    _time("created_at", null=False),
    _time("queued_at"),
    _time("started_at"),
    _time("ended_at"),
    _time("last_contact_at", null=False),
    _time("next_check_at", null=False),
    Column("misses", Integer, nullable=False, server_default="0"),
    Column("batch_job_id", Text, comment="bound to the first AWS_BATCH_JOB_ID that reports, or to ours:index"),
    Column("batch_status", Text),
    Column("batch_status_reason", Text),
    Column("container_reason", Text),
    Column("batch_exit_code", Integer),
    _time("batch_ended_at"),
    Column("worker_exit_code", Integer),
    Column("worker_error", Text),
    _time("worker_ended_at"),
    Column("last_seq", Integer, nullable=False, server_default=text("-1")),
    Column("open_chunks", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("poison", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("figures", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("instance_type", Text),
    Column("compute_environment", Text),
    Column("claimed_by", Text),
    _time("claim_until"),
    ForeignKeyConstraint(["request_id", "shard"], ["shards.request_id", "shards.shard"]),
    _one_of("state", AttemptState),
    # I2: at most one live attempt a shard, held by the database itself.
    Index(
        "attempts_one_live",
        "request_id",
        "shard",
        unique=True,
        postgresql_where=text("state <> 'ended' AND shard IS NOT NULL"),
    ),
    Index("attempts_due", "next_check_at", postgresql_where=text("state <> 'ended'")),
    Index("attempts_by_job", "job_id", "array_index", unique=True),
    Index("attempts_by_shard", "request_id", "kind", "shard"),
    Index("attempts_by_batch_id", "batch_job_id"),
    Index("attempts_live", "request_id", "created_at", "id", postgresql_where=text("state <> 'ended'")),
    Index("attempts_live_by_job", "job_id", postgresql_where=text("state <> 'ended'")),
    Index(
        "attempts_to_stop",
        "stop_requested_at",
        postgresql_where=text("state <> 'ended' AND stop_intent IS NOT NULL"),
    ),
    Index("attempts_started", "queue", "started_at", postgresql_where=text("kind = 'infer'")),
    Index("attempts_measured", "ended_at", postgresql_where=text("outcome = 'succeeded' AND kind = 'infer'")),
)

leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    _time("until", null=False),
)

queues = Table(
    "queues",
    metadata,
    Column("name", Text, primary_key=True),
    Column("circuit", Text, nullable=False, server_default="closed"),
    _time("circuit_changed_at"),
    _time("retry_at"),
    Column("cooldown_seconds", Float, nullable=False, server_default="0"),
    Column("blocked_reason", Text),
    _time("blocked_since"),
    Column("paused", Boolean, nullable=False, server_default="false"),
)

freezes = Table(
    "freezes",
    metadata,
    Column("name", Text, primary_key=True, comment="what is frozen; submissions"),
    Column("frozen", Boolean, nullable=False),
    Column("actor", Text, nullable=False),
    Column("reason", Text, nullable=False),
    _time("changed_at", null=False),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", Text, primary_key=True, comment="also the CloudEvent id"),
    Column("request_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("body", Text, nullable=False),
    _time("created_at", null=False),
    _time("sent_at"),
    Column("claimed_by", Text),
    _time("claim_until"),
    Index("outbox_unsent", "created_at", postgresql_where=text("sent_at IS NULL")),
    Index("outbox_sent", "sent_at", postgresql_where=text("sent_at IS NOT NULL")),
    Index("outbox_by_request", "request_id", "created_at"),
)

totals = Table(
    "totals",
    metadata,
    Column("name", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("queue", Text, primary_key=True),
    Column("label", Text, primary_key=True, server_default="", comment="outcome or row status"),
    Column("value", Float, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Text, primary_key=True),
    _time("at", null=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("detail", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Index("audit_by_target", "target", "at"),
)

operations = Table(
    "operations",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False, comment="requeue_shards, cancel_request, accept_failures, fail_request"),
    Column("request_id", Text, ForeignKey("requests.id"), nullable=False),
    Column("selector", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("actor", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("state", Text, nullable=False, server_default="pending"),
    Column("moved", Integer, nullable=False, server_default="0"),
    Column("skipped", Integer, nullable=False, server_default="0"),
    _time("created_at", null=False),
    _time("finished_at"),
    Index("operations_pending", "created_at", postgresql_where=text("state = 'pending'")),
)
