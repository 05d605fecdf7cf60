"""CancelJob and TerminateJob by state. The rules of aws-facts 1.8.

    state                    CancelJob                             TerminateJob
    SUBMITTED, RUNNABLE      FAILED at once                        the same
    PENDING                  FAILED when its dependencies end      the same
    STARTING, RUNNING        answers 200 and does nothing          SIGTERM, SIGKILL after the grace, FAILED
    SUCCEEDED, FAILED        answers 200 and does nothing          the same

On an array both go to every child, and the parent ends when the last child has.
"""

from __future__ import annotations

from deploy.local.batch.lifecycle import Lifecycle
from deploy.local.batch.model import Job, Kind, Status
from deploy.local.batch.stops import StopCause, StopOrder, stop_running

_STARTED = frozenset({Status.STARTING, Status.RUNNING})


def cancel(lifecycle: Lifecycle, job: Job, reason: str) -> None:
    if job.terminal:
        return
    if job.kind is Kind.ARRAY:
        job.is_cancelled, job.stop_reason = True, reason
        for child in job.members:
            cancel(lifecycle, child, reason)
    elif job.status not in _STARTED and job.kind is not Kind.NODE:
        _cancel_waiting(lifecycle, job, reason)


def terminate(lifecycle: Lifecycle, job: Job, reason: str) -> None:
    if job.terminal:
        return
    if job.kind is Kind.ARRAY:
        job.is_terminated, job.stop_reason = True, reason
        for child in job.members:
            terminate(lifecycle, child, reason)
    elif job.status in _STARTED:
        job.is_terminated, job.stop_reason = True, reason
        stop_running(job, StopOrder(StopCause.TERMINATED, reason))
    elif job.kind is not Kind.NODE:
        job.is_terminated = True
        _cancel_waiting(lifecycle, job, reason)


def _cancel_waiting(lifecycle: Lifecycle, job: Job, reason: str) -> None:
    job.is_cancelled, job.stop_reason = True, reason
    if job.status is not Status.PENDING:
        lifecycle.finish(job, Status.FAILED, reason)
