"""The loops' ports in memory, for tests in virtual time: strict where AWS is, and failing where a test says so.

They keep AWS's own rules: SubmitJob removes no duplicates and takes no array of one, DescribeJobs takes 100 ids and
leaves out what it does not know, CancelJob answers well and stops only what has not started, a message that was
received and not deleted comes again. A misuse of a port fails the test at once.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from controller.aws.submission import submit_parameters
from controller.core.facts import JobView
from controller.core.records import TotalKey
from controller.ports import Delivery, ObjectInfo, SubmitSpec
from schema.layout import Location

MOST_DESCRIBED = 100


class Faults:
    """What the next calls raise; `always` for every one until it is taken away."""

    def __init__(self) -> None:
        self.next: dict[str, deque[Exception | None]] = {}
        self.always: dict[str, Exception] = {}

    def add(self, call: str, *errors: Exception | None) -> None:
        self.next.setdefault(call, deque()).extend(errors)

    def strike(self, call: str) -> None:
        waiting = self.next.get(call)
        error = waiting.popleft() if waiting else self.always.get(call)
        if error is not None:
            raise error


class ManualClock:
    """Stands still until a test moves it."""

    def __init__(self, start: datetime) -> None:
        self._start, self.seconds = start, 0.0

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class CountedEntropy:
    """Ids in order; `name` keeps two replicas apart."""

    def __init__(self, name: str = "1") -> None:
        self._name, self._count = name, 0

    def _next(self) -> int:
        self._count += 1
        return self._count

    def new_id(self, prefix: str) -> str:
        return f"{prefix}-{self._name}{self._next():019x}"

    def token(self) -> str:
        return f"t-{self._name}-{self._next()}"

    def uniform(self) -> float:
        return 0.5


class CountingRecorder:
    """Counts by name, and by name with labels."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        text = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        self.counts[name] += int(amount)
        self.counts[f"{name}[{text}]"] += int(amount)

    def publish(self, states: Mapping[tuple[str, str], int], totals: Mapping[TotalKey, float]) -> None:
        self.counts["publish"] += 1

    def withdraw(self) -> None:
        self.counts["withdraw"] += 1


class MemoryInbox:
    """A standard queue. What was received stays out of sight until `show_again`, the end of its visibility."""

    def __init__(self) -> None:
        self.waiting: deque[Delivery] = deque()
        self.taken: dict[str, Delivery] = {}
        self.deleted: list[Delivery] = []
        self.faults = Faults()
        self._receipts = 0

    def put(self, body: str) -> None:
        self.waiting.append(Delivery(body, "", 0))

    def show_again(self) -> None:
        self.waiting.extend(self.taken.values())
        self.taken.clear()

    async def receive(self, limit: int, wait_seconds: float) -> Sequence[Delivery]:
        assert 1 <= limit <= 100
        assert 0 <= wait_seconds <= 20
        self.faults.strike("receive")
        found = []
        while self.waiting and len(found) < limit:
            one = self.waiting.popleft()
            self._receipts += 1
            found.append(Delivery(one.body, f"receipt-{self._receipts}", one.receive_count + 1, one.attributes))
            self.taken[found[-1].receipt] = found[-1]
        return found

    async def delete(self, deliveries: Sequence[Delivery]) -> None:
        self.faults.strike("delete")
        for delivery in deliveries:
            assert delivery.receipt in self.taken, "deleted what was not received"
            self.deleted.append(self.taken.pop(delivery.receipt))


class MemoryOutbox:
    """Keeps what was sent, as JSON documents."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.faults = Faults()

    async def send(self, body: str, attributes: Mapping[str, str], group: str) -> None:
        self.faults.strike("send")
        assert len(body.encode()) <= 1024 * 1024
        assert len(attributes) <= 10
        assert len(group) <= 128
        self.sent.append(json.loads(body))

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.sent if event["type"] == kind]


class MemoryObjects:
    """S3 as a dictionary, with conditional writes."""

    def __init__(self) -> None:
        self.content: dict[Location, bytes] = {}
        self.faults = Faults()
        self.calls: Counter[str] = Counter()

    def _call(self, name: str, location: Location) -> None:
        assert location.bucket
        assert location.key
        assert len(location.key.encode()) <= 1024
        self.calls[name] += 1
        self.faults.strike(name)

    async def get(self, location: Location) -> bytes | None:
        self._call("get", location)
        return self.content.get(location)

    async def head(self, location: Location) -> ObjectInfo | None:
        self._call("head", location)
        body = self.content.get(location)
        return None if body is None else ObjectInfo(len(body), hashlib.sha256(body).hexdigest())

    async def put(self, location: Location, body: bytes) -> None:
        self._call("put", location)
        self.content[location] = body

    async def put_new(self, location: Location, body: bytes) -> bool:
        self._call("put_new", location)
        return self.content.setdefault(location, body) == body


@dataclass(eq=False)
class Child:
    """What runs in Batch: a lone job, or a child of an array."""

    id: str
    spec: SubmitSpec
    created_at: datetime
    status: str = "RUNNABLE"
    status_reason: str | None = None
    container_reason: str | None = None
    exit_code: int | None = None
    started_at: datetime | None = None
    stopped_at: datetime | None = None

    @property
    def terminal(self) -> bool:
        return self.status in ("SUCCEEDED", "FAILED")

    def view(self) -> JobView:
        return JobView(
            batch_job_id=self.id,
            name=self.spec.name,
            queue=self.spec.queue,
            status=self.status,
            status_reason=self.status_reason,
            container_reason=self.container_reason,
            exit_code=self.exit_code,
            created_at=self.created_at,
            started_at=self.started_at,
            stopped_at=self.stopped_at,
        )


@dataclass(eq=False)
class MemoryJob:
    id: str
    spec: SubmitSpec
    created_at: datetime
    children: list[Child] = field(default_factory=list[Child])

    def view(self) -> JobView:
        alive = any(not child.terminal for child in self.children)
        status = "PENDING" if alive else "FAILED"
        if len(self.children) == 1:
            return self.children[0].view()
        return JobView(
            batch_job_id=self.id,
            name=self.spec.name,
            queue=self.spec.queue,
            status=status,
            created_at=self.created_at,
            array_size=self.spec.size,
        )


class MemoryBatch:
    """AWS Batch. `events`: where state changes are told, if anywhere; `capacity`: slots of a queue, for `tick`.

    `listed` False: ListJobs does not show what is submitted from then on, until `list_all`.
    """

    def __init__(self, clock: ManualClock, events: MemoryInbox | None = None) -> None:
        self._clock, self.events = clock, events
        self.jobs: dict[str, MemoryJob] = {}
        self.calls: list[tuple[str, Any]] = []
        self.parameters: list[dict[str, Any]] = []
        self.capacity: dict[str, int] = {}
        self.faults = Faults()
        self.listed = True
        self._unlisted: set[str] = set()
        self._submitted = 0

    def list_all(self) -> None:
        self.listed = True
        self._unlisted.clear()

    # --- the port ------------------------------------------------------------------------------------------------

    async def submit(self, spec: SubmitSpec) -> str:
        self._note("submit", spec)
        return self.take(spec)

    def take(self, spec: SubmitSpec) -> str:
        """SubmitJob as AWS carries it out, whether or not its answer arrives."""
        self.parameters.append(submit_parameters(spec))
        self._submitted += 1
        job = MemoryJob(f"b-{self._submitted}", spec, self._clock.now())
        names = [job.id] if spec.size == 1 else [f"{job.id}:{index}" for index in range(spec.size)]
        job.children = [Child(name, spec, job.created_at) for name in names]
        self.jobs[job.id] = job
        if not self.listed:
            self._unlisted.add(job.id)
        return job.id

    async def describe(self, batch_job_ids: Sequence[str]) -> Mapping[str, JobView]:
        assert 1 <= len(batch_job_ids) <= MOST_DESCRIBED
        self._note("describe", tuple(batch_job_ids))
        known = {child.id: child.view() for child in self.children()}
        return {name: known[name] for name in batch_job_ids if name in known}

    async def find(self, queue: str, name: str) -> Sequence[JobView]:
        self._note("find", name)
        return [job.view() for job in self._listed(queue) if job.spec.name == name]

    async def list_named(self, queue: str, prefix: str) -> Sequence[JobView]:
        self._note("list_named", prefix)
        return [job.view() for job in self._listed(queue) if job.spec.name.startswith(prefix)][::-1]

    async def cancel(self, batch_job_id: str, reason: str) -> None:
        self._note("cancel", (batch_job_id, reason))
        for child in self._meant(batch_job_id):
            if child.status == "RUNNABLE":
                self.end(child, reason=reason)

    async def terminate(self, batch_job_id: str, reason: str) -> None:
        self._note("terminate", (batch_job_id, reason))
        for child in self._meant(batch_job_id):
            if not child.terminal:
                self.end(child, 137 if child.started_at else None, reason=reason)

    # --- what happens there --------------------------------------------------------------------------------------

    def children(self, queue: str | None = None) -> list[Child]:
        return [c for job in self.jobs.values() for c in job.children if queue in (None, c.spec.queue)]

    def alive(self, queue: str | None = None) -> list[Child]:
        return [child for child in self.children(queue) if not child.terminal]

    def called(self, *names: str) -> list[Any]:
        return [argument for name, argument in self.calls if name in names]

    def start(self, *children: Child) -> None:
        for child in children:
            assert child.status in ("RUNNABLE", "STARTING"), child
            child.status, child.started_at, child.status_reason = "RUNNING", self._clock.now(), None
            self.tell(child)

    def end(
        self,
        child: Child,
        exit_code: int | None = None,
        *,
        reason: str = "Essential container in task exited",
        container: str | None = None,
    ) -> None:
        assert not child.terminal, child
        child.status = "SUCCEEDED" if exit_code == 0 else "FAILED"
        child.exit_code, child.status_reason, child.container_reason = exit_code, reason, container
        child.stopped_at = self._clock.now()
        self.tell(child)

    def reclaim(self, child: Child) -> None:
        """The spot market takes the host: no exit code."""
        self.end(child, reason="Host EC2 (instance i-0abc) terminated.")

    def forget(self, batch_job_id: str) -> None:
        del self.jobs[batch_job_id.partition(":")[0]]

    def tick(self) -> None:
        """Start what the queues have slots for, first come first served."""
        for queue, slots in self.capacity.items():
            running = [child for child in self.alive(queue) if child.status == "RUNNING"]
            waiting = [child for child in self.alive(queue) if child.status == "RUNNABLE"]
            self.start(*waiting[: max(0, slots - len(running))])

    def tell(self, child: Child, **changes: Any) -> None:
        """A state change as EventBridge delivers it."""
        if self.events is None:
            return
        container = {"exitCode": child.exit_code, "reason": child.container_reason}
        detail: dict[str, Any] = {
            "jobId": child.id,
            "jobName": child.spec.name,
            "jobQueue": f"arn:aws:batch:us-east-1:123456789012:job-queue/{child.spec.queue}",
            "status": child.status,
            "statusReason": child.status_reason,
            "startedAt": int(child.started_at.timestamp() * 1000) if child.started_at else None,
            "container": {key: value for key, value in container.items() if value is not None},
        }
        detail = {key: value for key, value in (detail | changes).items() if value is not None}
        event = {"source": "aws.batch", "detail-type": "Batch Job State Change", "detail": detail}
        self.events.put(json.dumps(event))

    def _note(self, call: str, argument: Any) -> None:
        self.calls.append((call, argument))
        self.faults.strike(call)

    def _listed(self, queue: str) -> list[MemoryJob]:
        return [job for job in self.jobs.values() if job.spec.queue == queue and job.id not in self._unlisted]

    def _meant(self, batch_job_id: str) -> list[Child]:
        if batch_job_id in self.jobs:
            return self.jobs[batch_job_id].children
        return [child for child in self.children() if child.id == batch_job_id]
