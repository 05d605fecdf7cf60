"""The only module that changes a status: one job at a time, then what follows for its parent and its dependents.

It never decides about capacity, retries or stops; others tell it what happened. Every change but the initial
SUBMITTED is announced. An illegal change is a bug of ours and raises.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from deploy.local.batch.clock import Clock
from deploy.local.batch.model import LEGAL_CHANGES, TERMINAL, Job, Kind, Status
from deploy.local.batch.registry import Registry

ARRAY_CHILD_FAILED = "Array Child Job failed"
DEPENDENCY_FAILED = "Dependent Job failed"


class Backlogs(Protocol):
    """Where RUNNABLE jobs wait for capacity."""

    def enqueue(self, job: Job) -> None: ...
    def withdraw(self, job: Job) -> None: ...


class Announcer(Protocol):
    def state_changed(self, job: Job) -> None: ...


class Lifecycle:
    def __init__(self, clock: Clock, registry: Registry, announcer: Announcer) -> None:
        self._clock = clock
        self._registry = registry
        self._announcer = announcer
        self._backlogs: Backlogs | None = None
        self._settled: deque[Job] = deque()
        self._settling = False

    def connect(self, backlogs: Backlogs) -> None:
        self._backlogs = backlogs

    # from submission to the backlog

    def admit(self, tree: Job) -> None:
        """Evaluate a submitted job: dependencies first, else into the backlog."""
        scheduled = tree.members if tree.kind is Kind.ARRAY else [tree]
        for job in scheduled:
            if job.status is not Status.SUBMITTED:
                continue  # cancelled meanwhile
            if job.doomed:
                self.finish(job, Status.FAILED, DEPENDENCY_FAILED)
            elif job.waiting_on:
                self._move(job, Status.PENDING)
            else:
                self.make_runnable(job)

    def make_runnable(self, job: Job) -> None:
        """Into the backlog: newly, after its dependencies, or again after a failed attempt."""
        job.started_ms = None
        self._move(job, Status.RUNNABLE)
        if job.kind is Kind.MULTI_NODE:
            for node in job.members:
                node.started_ms = node.stopped_ms = None
                self._move(node, Status.RUNNABLE)
        assert self._backlogs is not None, "connect() comes first"
        self._backlogs.enqueue(job)

    # while it holds capacity

    def starting(self, job: Job) -> None:
        self._move(job, Status.STARTING)

    def running(self, job: Job) -> None:
        job.started_ms = self._clock.now_ms()
        self._move(job, Status.RUNNING)

    # the end

    def finish(self, job: Job, status: Status, reason: str | None) -> None:
        """End a job, and everything whose fate that decides, without recursion: chains may be 10,000 long."""
        if job.status is Status.RUNNABLE and self._backlogs is not None:
            self._backlogs.withdraw(job)
        if job.kind is Kind.MULTI_NODE:
            for node in job.members:
                if not node.terminal:
                    self._end(node, status, reason)
        self._end(job, status, reason)
        self._settled.append(job)
        if self._settling:
            return
        self._settling = True
        try:
            while self._settled:
                self._settle(self._settled.popleft())
        finally:
            self._settling = False

    def finish_node(self, node: Job, status: Status, reason: str) -> None:
        """A node's end concerns nobody else: its parent's status is the main node's."""
        self._end(node, status, reason)

    def _end(self, job: Job, status: Status, reason: str | None) -> None:
        job.stopped_ms = self._clock.now_ms()
        self._move(job, status, reason)

    def _settle(self, job: Job) -> None:
        for dependent in job.dependents:
            dependent.waiting_on -= 1
            if job.status is Status.FAILED:
                dependent.doomed = True
            if dependent.status is not Status.PENDING:
                continue  # not evaluated yet, or ended
            if dependent.doomed:
                self.finish(dependent, Status.FAILED, dependent.stop_reason or DEPENDENCY_FAILED)
            elif dependent.waiting_on == 0 and dependent.stop_reason is not None:
                self.finish(dependent, Status.FAILED, dependent.stop_reason)
            elif dependent.waiting_on == 0:
                self.make_runnable(dependent)
        job.dependents = []
        if job.parent is not None and job.parent.kind is Kind.ARRAY:
            self._settle_parent(job.parent)
        elif job.parent is None:
            self._registry.age_later(job)

    def _settle_parent(self, parent: Job) -> None:
        counts = parent.member_counts
        if parent.terminal or counts[Status.SUCCEEDED] + counts[Status.FAILED] < len(parent.members):
            return
        if counts[Status.FAILED]:
            self.finish(parent, Status.FAILED, parent.stop_reason or ARRAY_CHILD_FAILED)
        else:
            self.finish(parent, Status.SUCCEEDED, None)

    def _move(self, job: Job, status: Status, reason: str | None = None) -> None:
        rerun = job.kind is Kind.NODE and job.status in TERMINAL and status is Status.RUNNABLE
        if status not in LEGAL_CHANGES[job.status] and not rerun:
            raise AssertionError(f"{job.job_id}: {job.status} → {status} is not a legal change")
        parent = job.parent
        if parent is not None and parent.kind is Kind.ARRAY:
            parent.member_counts[job.status] -= 1
            parent.member_counts[status] += 1
        job.status = status
        job.status_reason = reason
        job.head_since_ms = None
        self._announcer.state_changed(job)
        awakens = status in {Status.PENDING, Status.RUNNABLE}
        if awakens and parent is not None and parent.kind is Kind.ARRAY and parent.status is Status.SUBMITTED:
            self._move(parent, Status.PENDING)
