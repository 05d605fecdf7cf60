"""What AWS Batch says happened, as frozen values. They are read, never decided on, here.

`controller.core.job_views` and `controller.core.batch_events` make them; loops and the pure core take them. A missing
field is None: Batch leaves out what it does not know (yet), so no consumer may count on one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class JobView:
    """One job, child or node as DescribeJobs, ListJobs or an event shows it. A reason or code may be missing."""

    batch_job_id: str
    name: str
    queue: str
    status: str
    """As Batch spells it; a status that it invents later passes through."""
    status_reason: str | None = None
    container_reason: str | None = None
    exit_code: int | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    stopped_at: datetime | None = None
    is_cancelled: bool = False
    array_size: int | None = None
    status_summary: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def terminal(self) -> bool:
        return self.status in ("SUCCEEDED", "FAILED")


@dataclass(frozen=True, kw_only=True)
class QueueBlocked:
    """The job at the head of a queue cannot start. `reason` is Batch's text; its prefix before ` - ` is stable."""

    queue: str
    reason: str
