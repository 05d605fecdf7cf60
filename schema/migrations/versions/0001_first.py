"""The first schema: requests, shards, jobs and attempts; leadership; the outbox, totals, orders and their audit.

A migration is a frozen record: it repeats the tables instead of importing them, and is never edited after a release.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_requests()
    _create_shards()
    _create_jobs()
    _create_attempts()
    _create_leases()
    _create_queues()
    _create_outbox()
    _create_totals()
    _create_audit()
    _create_operations()


def downgrade() -> None:
    for table in (
        "operations",
        "audit",
        "totals",
        "outbox",
        "queues",
        "leases",
        "attempts",
        "jobs",
        "shards",
        "requests",
    ):
        op.drop_table(table)


def _time(name: str, *, null: bool = True) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=null)


def _create_requests() -> None:
    op.create_table(
        "requests",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("body_digest", sa.Text(), nullable=False),
        sa.Column("body", JSONB(), nullable=False, comment="RequestSubmit as accepted; amendments are applied to it"),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), comment="why it is paused, in attention, failed or cancelled"),
        sa.Column("paused", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        _time("deadline"),
        _time("created_at", null=False),
        _time("updated_at", null=False),
        _time("finished_at"),
        _time("progress_sent_at"),
        sa.Column("plan_digest", sa.Text()),
        sa.Column("output_uri", sa.Text(), comment="output prefix with the digest; set when planned"),
        sa.Column("preprocessing_digest", sa.Text()),
        sa.Column("chunk_assets", sa.Integer()),
        sa.Column("assets", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("shards", sa.Integer(), server_default="0", nullable=False),
        sa.Column("accept_failures", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("reopened_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("manifest_uri", sa.Text()),
        sa.Column("failures_uri", sa.Text()),
        sa.Column("index_active", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("claimed_by", sa.Text()),
        _time("claim_until"),
        sa.CheckConstraint(
            "state IN ('accepted', 'preparing', 'running', 'attention', 'finishing', 'succeeded', 'failed', "
            "'cancelling', 'cancelled')",
            name="state_known",
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("requests_by_age", "requests", ["created_at", "id"])
    op.create_index("requests_by_state", "requests", ["state", "priority", "created_at"])
    op.create_index("requests_idempotency", "requests", ["tenant", "idempotency_key"], unique=True)


def _create_shards() -> None:
    op.create_table(
        "shards",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("generation", sa.Integer(), server_default="1", nullable=False),
        _time("eligible_at", null=False),
        _time("updated_at", null=False),
        sa.Column("key", sa.Text(), nullable=False, comment="the packed address file in the control bucket"),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("assets", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("chunks", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Text(), comment="the live attempt, if any"),
        sa.Column("last_outcome", sa.Text()),
        sa.Column("last_queue", sa.Text()),
        sa.Column("isolate", JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False, comment="chunks"),
        sa.Column("poison", JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False, comment="ordinals"),
        sa.Column("marker_digest", sa.Text()),
        sa.Column("marker_key", sa.Text()),
        sa.Column("ok", sa.Integer()),
        sa.Column("bad", sa.Integer()),
        sa.Column("statuses", JSONB()),
        sa.Column("indexed_digest", sa.Text(), comment="marker digest in the index's ledger"),
        sa.CheckConstraint("state IN ('pending', 'assigned', 'succeeded', 'failed', 'cancelled')", name="state_known"),
        sa.ForeignKeyConstraint(
            ["request_id"],
            ["requests.id"],
        ),
        sa.PrimaryKeyConstraint("request_id", "shard"),
    )
    op.create_index("shards_by_state", "shards", ["request_id", "state", "shard"])
    op.create_index(
        "shards_due", "shards", ["request_id", "shard", "eligible_at"], postgresql_where=sa.text("state = 'pending'")
    )
    op.create_index(
        "shards_unindexed",
        "shards",
        ["request_id", "shard"],
        postgresql_where=sa.text("state = 'succeeded' AND indexed_digest IS DISTINCT FROM marker_digest"),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("multi_node", sa.Boolean(), server_default="false", nullable=False),
        sa.Column(
            "assignment", JSONB(), nullable=False, comment="schema.assignment document, written before SubmitJob"
        ),
        _time("created_at", null=False),
        _time("submit_started_at"),
        _time("submitted_at"),
        _time("closed_at"),
        sa.Column("batch_job_id", sa.Text()),
        sa.Column("submit_epoch", sa.BigInteger()),
        sa.Column("reason", sa.Text()),
        sa.Column("claimed_by", sa.Text()),
        _time("claim_until"),
        sa.CheckConstraint("kind IN ('prepare', 'infer', 'index')", name="kind_known"),
        sa.CheckConstraint("state IN ('intended', 'submitted', 'closed')", name="state_known"),
        sa.ForeignKeyConstraint(
            ["request_id"],
            ["requests.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_index("jobs_batch_id", "jobs", ["batch_job_id"])
    op.create_index("jobs_by_request", "jobs", ["request_id"])
    op.create_index("jobs_open", "jobs", ["state", "created_at"])


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("array_index", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("shard", sa.Integer(), comment="infer only"),
        sa.Column("generation", sa.Integer(), server_default="1", nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.Column("stop_intent", sa.Text()),
        _time("stop_requested_at"),
        _time("created_at", null=False),
        _time("queued_at"),
        _time("started_at"),
        _time("ended_at"),
        _time("last_contact_at", null=False),
        _time("next_check_at", null=False),
        sa.Column("misses", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "batch_job_id", sa.Text(), comment="bound to the first AWS_BATCH_JOB_ID that reports, or to ours:index"
        ),
        sa.Column("batch_status", sa.Text()),
        sa.Column("batch_status_reason", sa.Text()),
        sa.Column("container_reason", sa.Text()),
        sa.Column("batch_exit_code", sa.Integer()),
        _time("batch_ended_at"),
        sa.Column("worker_exit_code", sa.Integer()),
        sa.Column("worker_error", sa.Text()),
        _time("worker_ended_at"),
        sa.Column("last_seq", sa.Integer(), server_default=sa.text("-1"), nullable=False),
        sa.Column("open_chunks", JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("poison", JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("figures", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("instance_type", sa.Text()),
        sa.Column("compute_environment", sa.Text()),
        sa.Column("claimed_by", sa.Text()),
        _time("claim_until"),
        sa.CheckConstraint("state IN ('submitting', 'queued', 'running', 'ended')", name="state_known"),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.ForeignKeyConstraint(
            ["request_id", "shard"],
            ["shards.request_id", "shards.shard"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("attempts_by_batch_id", "attempts", ["batch_job_id"])
    op.create_index("attempts_by_job", "attempts", ["job_id", "array_index"], unique=True)
    op.create_index("attempts_by_shard", "attempts", ["request_id", "kind", "shard"])
    op.create_index("attempts_due", "attempts", ["next_check_at"], postgresql_where=sa.text("state <> 'ended'"))
    op.create_index(
        "attempts_live", "attempts", ["request_id", "created_at", "id"], postgresql_where=sa.text("state <> 'ended'")
    )
    op.create_index("attempts_live_by_job", "attempts", ["job_id"], postgresql_where=sa.text("state <> 'ended'"))
    op.create_index(
        "attempts_measured",
        "attempts",
        ["ended_at"],
        postgresql_where=sa.text("outcome = 'succeeded' AND kind = 'infer'"),
    )
    op.create_index(
        "attempts_one_live",
        "attempts",
        ["request_id", "shard"],
        unique=True,
        postgresql_where=sa.text("state <> 'ended' AND shard IS NOT NULL"),
    )
    op.create_index("attempts_started", "attempts", ["queue", "started_at"], postgresql_where=sa.text("kind = 'infer'"))
    op.create_index(
        "attempts_to_stop",
        "attempts",
        ["stop_requested_at"],
        postgresql_where=sa.text("state <> 'ended' AND stop_intent IS NOT NULL"),
    )


def _create_leases() -> None:
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        _time("until", null=False),
        sa.PrimaryKeyConstraint("name"),
    )


def _create_queues() -> None:
    op.create_table(
        "queues",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("circuit", sa.Text(), server_default="closed", nullable=False),
        _time("circuit_changed_at"),
        _time("retry_at"),
        sa.Column("cooldown_seconds", sa.Float(), server_default="0", nullable=False),
        sa.Column("blocked_reason", sa.Text()),
        _time("blocked_since"),
        sa.Column("paused", sa.Boolean(), server_default="false", nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def _create_outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", sa.Text(), nullable=False, comment="also the CloudEvent id"),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        _time("created_at", null=False),
        _time("sent_at"),
        sa.Column("claimed_by", sa.Text()),
        _time("claim_until"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("outbox_by_request", "outbox", ["request_id", "created_at"])
    op.create_index("outbox_sent", "outbox", ["sent_at"], postgresql_where=sa.text("sent_at IS NOT NULL"))
    op.create_index("outbox_unsent", "outbox", ["created_at"], postgresql_where=sa.text("sent_at IS NULL"))


def _create_totals() -> None:
    op.create_table(
        "totals",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), server_default="", nullable=False, comment="outcome or row status"),
        sa.Column("value", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", "model", "queue", "label"),
    )


def _create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.Text(), nullable=False),
        _time("at", null=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("detail", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("audit_by_target", "audit", ["target", "at"])


def _create_operations() -> None:
    op.create_table(
        "operations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column(
            "kind", sa.Text(), nullable=False, comment="requeue_shards, cancel_request, accept_failures, fail_request"
        ),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("selector", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column("moved", sa.Integer(), server_default="0", nullable=False),
        sa.Column("skipped", sa.Integer(), server_default="0", nullable=False),
        _time("created_at", null=False),
        _time("finished_at"),
        sa.ForeignKeyConstraint(
            ["request_id"],
            ["requests.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("operations_pending", "operations", ["created_at"], postgresql_where=sa.text("state = 'pending'"))
