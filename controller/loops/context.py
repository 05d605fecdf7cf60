"""What every loop is given: the ports, the settings and this replica's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

import structlog

from controller.core.admission import Policy
from controller.core.jobs import Identity, Terms
from controller.core.outcome import Rule
from controller.core.placement import PlacementLimits, QueueSpec
from controller.core.retry import Limits
from controller.ports import Batch, Clock, Entropy, Inbox, ObjectStore, Outbox, Recorder, Store
from controller.settings import GpuQueue, Settings
from schema.layout import Location

log: structlog.stdlib.BoundLogger = structlog.get_logger("reembed.controller")

#: Speeds are measured over so long: older ones say little about today's assets and hosts.
RATE_WINDOW = timedelta(days=30)
#: Every Batch job of ours starts so; anything else in the queues is not ours to touch.
JOB_NAME_PREFIX = "reembed-"


@dataclass(frozen=True, kw_only=True)
class Inboxes:
    requests: Inbox
    reports: Inbox
    batch_events: Inbox


@dataclass(frozen=True, kw_only=True)
class Outboxes:
    requests: Outbox
    rejects: Outbox
    status: Outbox


@dataclass(frozen=True, kw_only=True)
class Context:
    settings: Settings
    store: Store
    clock: Clock
    entropy: Entropy
    batch: Batch
    objects: ObjectStore
    inboxes: Inboxes
    outboxes: Outboxes
    recorder: Recorder
    holder: str
    policy: Policy

    def claim_until(self, now: datetime) -> datetime:
        return now + timedelta(seconds=self.settings.loops.claim_seconds)

    @property
    def retry_limits(self) -> Limits:
        return self.settings.retries.limits()

    @cached_property
    def outcome_table(self) -> tuple[Rule, ...]:
        return self.settings.outcome_table()

    @property
    def placement_limits(self) -> PlacementLimits:
        return PlacementLimits(**self.settings.placement.model_dump(include=set(PlacementLimits.__dataclass_fields__)))

    @property
    def gpu_queues(self) -> Mapping[str, GpuQueue]:
        return {queue.name: queue for queue in self.settings.gpu_queues}

    @property
    def queue_specs(self) -> list[QueueSpec]:
        return self.settings.queue_specs()

    @property
    def terms(self) -> Terms:
        return Terms(
            control_bucket=self.settings.storage.control_bucket,
            report_queue_url=self.settings.sqs.reports,
            heartbeat_seconds=self.settings.work.heartbeat_seconds,
            fetch_concurrency=self.settings.work.fetch_concurrency,
            bucket_owners=self.settings.storage.bucket_owners,
        )

    def identity(self, size: int) -> Identity:
        """Fresh ids and tokens for a job of `size` attempts."""
        pairs = tuple((self.entropy.new_id("a"), self.entropy.token()) for _ in range(size))
        return Identity(job_id=self.entropy.new_id("j"), attempts=pairs)

    def control(self, key: str) -> Location:
        return Location(self.settings.storage.control_bucket, key)

    @property
    def prices_usd_per_hour(self) -> Mapping[str, float]:
        return self.settings.prices_usd_per_hour()
