"""AWS Batch as `controller.ports.Batch`: jobs, children, capacity, lag, oblivion and events.

It runs whatever `start_worker` gives as a generator of pauses in seconds, which returns the container's exit code. The
rules are those of aws-facts: SubmitJob removes no duplicates, ListJobs lags, cancel stops only what has not started,
terminate sends SIGTERM, finished jobs are forgotten, a reclaimed host leaves no exit code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from controller.core.facts import JobView
from controller.ports import Ambiguous, SubmitSpec, Throttled, Unavailable
from tests.simulation.messages import Queue
from tests.simulation.scheduler import Scheduler

NO_CAPACITY = "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - no instance of this kind"
Worker = Generator[float, None, int]
SECONDS_TO_START = 4.0
SECONDS_TO_STOP = 10.0
SECONDS_OF_SIGTERM = 5.0
BLOCKED_AFTER_SECONDS = 20.0


@dataclass(eq=False)
class Child:
    """What runs: a lone job, a child of an array, a node of a multi-node job."""

    job: SimJob
    index: int
    status: str = "RUNNABLE"
    reason: str | None = None
    container_reason: str | None = None
    exit_code: int | None = None
    started_at: datetime | None = None
    stopped_at: datetime | None = None
    cancelled: bool = False
    worker: Worker | None = None
    sigterm: bool = False
    runnable_since: float = 0.0

    @property
    def id(self) -> str:
        if self.job.spec.multi_node:
            return f"{self.job.id}#{self.index}"
        return self.job.id if self.job.spec.size == 1 else f"{self.job.id}:{self.index}"

    @property
    def terminal(self) -> bool:
        return self.status in ("SUCCEEDED", "FAILED")

    @property
    def alive(self) -> bool:
        """Whether its container could still do something."""
        return self.worker is not None


@dataclass(eq=False)
class SimJob:
    id: str
    spec: SubmitSpec
    created_at: datetime
    listed_from: float
    children: list[Child] = field(default_factory=list)
    forgotten: bool = False

    @property
    def status(self) -> str:
        states = {child.status for child in self.children}
        if states <= {"SUCCEEDED", "FAILED"}:
            return "FAILED" if "FAILED" in states else "SUCCEEDED"
        return "RUNNING" if "RUNNING" in states else "RUNNABLE"


class SimBatch:
    def __init__(
        self,
        scheduler: Scheduler,
        events: Queue,
        capacity: Mapping[str, int],
        start_worker: Callable[[Child], Worker],
    ) -> None:
        self.jobs: dict[str, SimJob] = {}
        #: Violations of what a caller of Batch owes: nothing is refused for them.
        self.complaints: list[str] = []
        self.capacity = dict(capacity)
        self.list_lag_seconds = 2.0
        self.oblivion_seconds = 600.0
        self.blocked: Callable[[str, str], None] = lambda _queue, _reason: None
        self._events = events
        self._scheduler = scheduler
        self._start_worker = start_worker
        self._tick()

    # -- the port --------------------------------------------------------------------------------------

    async def submit(self, spec: SubmitSpec) -> str:
        fault = await self._gate("submit", spec.name)
        if fault in ("429", "500"):
            # A 5xx of SubmitJob says nothing about whether the job exists.
            raise Throttled("429") if fault == "429" else Ambiguous("500")
        if any(job.spec.name == spec.name for job in self.jobs.values()):
            self.complaints.append(f"I6: SubmitJob was called again for {spec.name}, which Batch has")
        if fault == "not sent":
            raise Ambiguous("no answer")
        job = SimJob(
            f"b{len(self.jobs):04d}",
            spec,
            self._scheduler.now(),
            self._scheduler.time + self._scheduler.dice.uniform(0, self.list_lag_seconds),
        )
        job.children = [Child(job, index, runnable_since=self._scheduler.time) for index in range(spec.size)]
        self.jobs[job.id] = job
        for child in job.children:
            self._announce(child)
        if fault == "answer lost":
            raise Ambiguous("connection closed")
        return job.id

    async def describe(self, batch_job_ids: Sequence[str]) -> Mapping[str, JobView]:
        await self._failing("describe", str(len(batch_job_ids)))
        found = {name: self.child(name) for name in batch_job_ids}
        return {name: self.view(child) for name, child in found.items() if child and not child.job.forgotten}

    async def find(self, queue: str, name: str) -> Sequence[JobView]:
        await self._failing("find", name)
        return [self._whole(job) for job in self._listed(queue) if job.spec.name == name]

    async def list_named(self, queue: str, prefix: str) -> Sequence[JobView]:
        await self._failing("list_named", queue)
        return [self._whole(job) for job in reversed(self._listed(queue)) if job.spec.name.startswith(prefix)]

    async def cancel(self, batch_job_id: str, reason: str) -> None:
        await self._failing("cancel", batch_job_id)
        self._a_while_later(lambda: [self._cancel(child, reason) for child in self._meant(batch_job_id)])

    async def terminate(self, batch_job_id: str, reason: str) -> None:
        await self._failing("terminate", batch_job_id)
        self._a_while_later(lambda: [self._terminate(child, reason) for child in self._meant(batch_job_id)])

    def _a_while_later(self, stop: Callable[[], object]) -> None:
        """The answer is 200 before anything has stopped."""
        self._scheduler.later(self._scheduler.dice.uniform(0, SECONDS_TO_STOP), stop)

    def _cancel(self, child: Child, reason: str) -> None:
        if child.status == "RUNNABLE":
            child.cancelled = True
            self._end(child, reason, None)

    def _terminate(self, child: Child, reason: str) -> None:
        self._cancel(child, reason)
        if child.status == "STARTING":
            self._end(child, reason, None)
        elif child.alive:
            child.sigterm, child.reason = True, reason
            self._scheduler.later(SECONDS_OF_SIGTERM, lambda: self.kill(child, child.reason, 137))

    # -- what happens to jobs ----------------------------------------------------------------------------

    def child(self, batch_job_id: str) -> Child | None:
        for separator in (":", "#"):
            if separator in batch_job_id:
                parent, _, index = batch_job_id.partition(separator)
                job = self.jobs.get(parent)
                return job.children[int(index)] if job else None
        job = self.jobs.get(batch_job_id)
        return job.children[0] if job else None

    def children(self) -> list[Child]:
        return [child for job in self.jobs.values() for child in job.children]

    def running(self, queue: str | None = None) -> list[Child]:
        return [c for c in self.children() if c.status == "RUNNING" and queue in (None, c.job.spec.queue)]

    def kill(self, child: Child, reason: str | None, exit_code: int | None, container: str | None = None) -> None:
        """The container stops here, whatever it was doing."""
        if child.worker is None:
            return
        child.worker.close()
        child.worker = None
        child.container_reason = container
        self._end(child, reason, exit_code)

    def cut_off(self, child: Child, reason: str) -> None:
        """Batch gives the host up, and the container goes on: it can still reach S3 and SQS."""
        self._end(child, reason, None)

    def forget(self, job: SimJob) -> None:
        job.forgotten = True

    def _tick(self) -> None:
        """Start what fits; name the reason at the head of a queue that nothing fits in."""
        for queue, slots in self.capacity.items():
            waiting = [c for c in self.children() if c.status == "RUNNABLE" and c.job.spec.queue == queue]
            busy = [c for c in self.children() if c.status in ("STARTING", "RUNNING") and c.job.spec.queue == queue]
            for child in waiting[: max(0, slots - len(busy))]:
                child.status, child.reason = "STARTING", None
                self._announce(child)
                self._scheduler.later(SECONDS_TO_START, lambda child=child: self._start(child))
            head = waiting[0] if waiting and not slots else None
            if head and self._scheduler.time - head.runnable_since > BLOCKED_AFTER_SECONDS and head.reason is None:
                head.reason = NO_CAPACITY
                self.blocked(queue, NO_CAPACITY)
        self._scheduler.later(1.0, self._tick)

    def _start(self, child: Child) -> None:
        if child.status != "STARTING":
            return
        child.status, child.started_at = "RUNNING", self._scheduler.now()
        child.worker = self._start_worker(child)
        self._announce(child)
        self._go_on(child)

    def _go_on(self, child: Child) -> None:
        if child.worker is None:
            return
        try:
            pause = next(child.worker)
        except StopIteration as stop:
            child.worker = None
            # Batch sees the end a moment after the container's last words.
            code: int = stop.value
            self._scheduler.later(0.5, lambda: self._end(child, child.reason or "Essential container exited", code))
            return
        self._scheduler.later(pause, lambda: self._go_on(child))

    def _end(self, child: Child, reason: str | None, exit_code: int | None) -> None:
        if child.terminal:
            return
        child.status = "SUCCEEDED" if exit_code == 0 else "FAILED"
        child.reason, child.exit_code, child.stopped_at = reason, exit_code, self._scheduler.now()
        self._announce(child)
        if all(one.terminal for one in child.job.children):
            self._scheduler.later(self.oblivion_seconds, lambda: self.forget(child.job))

    # -- answers -------------------------------------------------------------------------------------------

    def view(self, child: Child) -> JobView:
        return JobView(
            batch_job_id=child.id,
            name=child.job.spec.name,
            queue=child.job.spec.queue,
            status=child.status,
            status_reason=child.reason,
            container_reason=child.container_reason,
            exit_code=child.exit_code,
            created_at=child.job.created_at,
            started_at=child.started_at,
            stopped_at=child.stopped_at,
            is_cancelled=child.cancelled,
        )

    def _whole(self, job: SimJob) -> JobView:
        size = None if job.spec.size == 1 else job.spec.size
        return JobView(
            batch_job_id=job.id,
            name=job.spec.name,
            queue=job.spec.queue,
            status=job.status,
            created_at=job.created_at,
            array_size=size,
        )

    def _listed(self, queue: str) -> list[SimJob]:
        now = self._scheduler.time
        return [j for j in self.jobs.values() if j.spec.queue == queue and j.listed_from <= now and not j.forgotten]

    def _meant(self, batch_job_id: str) -> list[Child]:
        job = self.jobs.get(batch_job_id)
        one = self.child(batch_job_id)
        return list(job.children) if job else [one] if one else []

    def _announce(self, child: Child) -> None:
        self._events.put(
            json.dumps({"source": "aws.batch", "detail-type": "Batch Job State Change", "detail": _detail(child)})
        )

    async def _failing(self, call: str, about: str) -> None:
        fault = await self._gate(call, about)
        if fault == "429":
            raise Throttled("429")
        if fault is not None:
            raise Unavailable(fault)

    async def _gate(self, call: str, about: str) -> str | None:
        return await self._scheduler.gate(f"batch {call} {about}")


def _detail(child: Child) -> dict[str, object]:
    def stamp(moment: datetime | None) -> int | None:
        return None if moment is None else int(moment.timestamp() * 1000)

    container = {"exitCode": child.exit_code, "reason": child.container_reason}
    detail = {
        "jobId": child.id,
        "jobName": child.job.spec.name,
        "jobQueue": f"arn:aws:batch:us-east-1:123456789012:job-queue/{child.job.spec.queue}",
        "status": child.status,
        "statusReason": child.reason,
        "createdAt": stamp(child.job.created_at),
        "startedAt": stamp(child.started_at),
        "stoppedAt": stamp(child.stopped_at),
        "isCancelled": child.cancelled,
        "container": {name: value for name, value in container.items() if value is not None},
    }
    return {name: value for name, value in detail.items() if value is not None}
