"""The head of a queue that cannot start: its reason, the "Job Queue Blocked" event and the state time limits.

Only the head ever carries a reason, and only after it has been stuck for a while, since a reason at first sight
would be wrong while an environment scales from zero. One watch a queue; timers are dropped when the head changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from deploy.local.batch.capacity import Refusal, Verdict
from deploy.local.batch.clock import Clock
from deploy.local.batch.model import Job, JobQueue

_TIME_LIMIT_TEXT = "Canceled by JobStateTimeLimit action due to reason: "
_REASONS = {
    Refusal.TOO_BIG: (
        "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - The job resource requirement (vCPU/memory/GPU) is higher than "
        "that can be met by the CE(s) attached to the job queue."
    ),
    Refusal.ABOVE_MAXIMUM: (
        "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE - CE(s) associated with the job queue cannot meet the "
        "CPU requirement of the job."
    ),
    Refusal.NO_ENVIRONMENT: "ACTION_REQUIRED - CE(s) associated with the job queue are invalid.",
}


def blocked_reason(queue: JobQueue, verdict: Verdict) -> str | None:
    """The literal text for a verdict; None when Batch would say nothing."""
    if verdict.refusal is not Refusal.DRY:
        return _REASONS.get(verdict.refusal)
    if verdict.dry_spell is not None and verdict.dry_spell.silent:
        return None
    if verdict.dry_spell is not None and verdict.dry_spell.reason is not None:
        return verdict.dry_spell.reason
    instance_types = ", ".join(environment.family for environment in queue.environments)
    return (
        "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity requested for instance type "
        f"[{instance_types}]"
    )


@dataclass(slots=True)
class _Watch:
    job: Job
    reason: str | None
    timers: list[asyncio.TimerHandle] = field(default_factory=list)


class HeadWatch:
    def __init__(
        self,
        clock: Clock,
        blocked_after_seconds: float,
        announce_blocked: Callable[[Job], None],
        cancel: Callable[[Job, str], None],
    ) -> None:
        self._clock = clock
        self._blocked_after_seconds = blocked_after_seconds
        self._announce_blocked = announce_blocked
        self._cancel = cancel
        self._watches: dict[str, _Watch] = {}

    def observe(self, queue: JobQueue, head: Job, verdict: Verdict) -> None:
        reason = blocked_reason(queue, verdict)
        watch = self._watches.get(queue.name)
        if watch is not None and watch.job is head and watch.reason == reason:
            return
        self.clear(queue)
        watch = self._watches[queue.name] = _Watch(head, reason)
        if reason is not None:
            watch.timers.append(
                self._clock.call_later(self._blocked_after_seconds, self._declare, queue, watch, reason)
            )

    def clear(self, queue: JobQueue) -> None:
        """The head moved on, or is no longer stuck for that reason."""
        watch = self._watches.pop(queue.name, None)
        if watch is None:
            return
        for timer in watch.timers:
            timer.cancel()
        if not watch.job.terminal:
            watch.job.status_reason = None

    def _declare(self, queue: JobQueue, watch: _Watch, reason: str) -> None:
        watch.job.status_reason = reason
        self._announce_blocked(watch.job)
        for limit in queue.state_time_limits:
            if reason.startswith(limit["reason"]):
                watch.timers.append(
                    self._clock.call_later(limit["maxTimeSeconds"], self._expire, watch.job, limit["reason"])
                )

    def _expire(self, job: Job, reason: str) -> None:
        self._cancel(job, _TIME_LIMIT_TEXT + reason)
