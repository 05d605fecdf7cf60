"""The RUNNABLE jobs of one queue in dispatch order.

FIFO, or with a fair-share policy: the share with the least in flight first, then priority, then age. Only the head
is ever considered for capacity, so a stuck head holds up its queue.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator

from deploy.local.batch.model import Job, JobQueue


class Backlog:
    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._waiting: OrderedDict[str, Job] = OrderedDict()  # not a dict: its front is O(n) after many removals
        self._in_flight: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, job: Job) -> None:
        self._waiting[job.job_id] = job

    def remove(self, job: Job) -> None:
        self._waiting.pop(job.job_id, None)

    def head(self) -> Job | None:
        return next(self.in_order(), None)

    def in_order(self) -> Iterator[Job]:
        if not self._queue.fair_share:
            return iter(self._waiting.values())
        return iter(sorted(self._waiting.values(), key=self._rank))

    def shares(self) -> set[str]:
        waiting = {job.spec.share_identifier or "" for job in self._waiting.values()}
        return waiting | {share for share, count in self._in_flight.items() if count}

    def started(self, job: Job) -> None:
        self._in_flight[job.spec.share_identifier or ""] += 1

    def ended(self, job: Job) -> None:
        self._in_flight[job.spec.share_identifier or ""] -= 1

    def _rank(self, job: Job) -> tuple[int, str, int, int]:
        share = job.spec.share_identifier or ""
        priority = job.spec.request.get("schedulingPriorityOverride")
        if priority is None:
            priority = job.spec.definition.request.get("schedulingPriority", 0)
        return (self._in_flight[share], share, -priority, job.sequence)
