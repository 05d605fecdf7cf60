"""EventBridge envelopes for what happens to jobs, handed to a delivery at the moment it happens.

One event for every status change of parents, children and nodes alike, none for the initial SUBMITTED, and one when
the head of a queue is declared blocked. The content is a snapshot: a late event shows the past.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, Protocol

from deploy.local.batch.clock import Clock
from deploy.local.batch.model import Job, Kind
from deploy.local.batch.views import job_detail, refresh_summary

STATE_CHANGE = "Batch Job State Change"
QUEUE_BLOCKED = "Batch Job Queue Blocked"


class Delivery(Protocol):
    def send(self, event: dict[str, Any]) -> None: ...


class Events:
    def __init__(self, clock: Clock, account_id: str, region: str, delivery: Delivery | None) -> None:
        self._clock = clock
        self._account_id = account_id
        self._region = region
        self._delivery = delivery

    def state_changed(self, job: Job) -> None:
        self._send(STATE_CHANGE, job, [job.arn])

    def queue_blocked(self, job: Job) -> None:
        self._send(QUEUE_BLOCKED, job, [job.arn, job.spec.queue.arn])

    def _send(self, detail_type: str, job: Job, resources: list[str]) -> None:
        if self._delivery is None:
            return
        now_ms = self._clock.now_ms()
        if job.kind is Kind.ARRAY:
            refresh_summary(job, now_ms)
        detail = job_detail(job)
        detail["tags"] = {**detail["tags"], "resourceArn": job.arn}
        self._delivery.send(
            {
                "version": "0",
                "id": str(uuid.uuid4()),
                "detail-type": detail_type,
                "source": "aws.batch",
                "account": self._account_id,
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_ms / 1000)),
                "region": self._region,
                "resources": resources,
                "detail": detail,
            }
        )
