"""What the loops need of the world, as protocols. Adapters: controller.store (SQL), controller.aws (SQS, Batch, S3).

Expected outcomes are values; the exceptions below are the whole error tree:

    PortError
    ├── Unavailable      no answer, 5xx, connection lost: nothing was learnt; try again later
    ├── Throttled        429/SlowDown: certainly not done; try again slower
    ├── Ambiguous        SubmitJob may or may not have happened: look it up by name
    ├── Refused          the service said no and will say no again (bad input, access denied); `code`
    └── Fenced           this replica is not the leader any more: stand down, write nothing
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from controller.core.changes import AttemptChange, JobChange, RequestChange, ShardChange
from controller.core.facts import JobView
from controller.core.records import (
    Attempt,
    Freeze,
    Job,
    Lease,
    Operation,
    OutboxEvent,
    QueueLoad,
    QueueState,
    Request,
    Shard,
    ShardCounts,
    TotalKey,
    Waiting,
)
from schema.layout import Location
from schema.states import JobKind, Outcome, RequestState, ShardState, StopIntent


class PortError(Exception):
    """Root of what an adapter may raise."""


class Unavailable(PortError):
    """No usable answer; nothing is known to have happened."""


class Throttled(PortError):
    """Refused for its rate; certainly not done."""


class Ambiguous(PortError):
    """May have happened. Only SubmitJob raises it."""


class Refused(PortError):
    """Refused for good."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Fenced(PortError):
    """The lease is no longer ours."""


# --- time, ids ---------------------------------------------------------------------------------------------------


class Clock(Protocol):
    def now(self) -> datetime:
        """Aware UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds; for local deadlines only."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Entropy(Protocol):
    def new_id(self, prefix: str) -> str:
        """`prefix-` and 20 lower-case hex digits."""
        ...

    def token(self) -> str: ...

    def uniform(self) -> float:
        """In [0, 1)."""
        ...


class Recorder(Protocol):
    """Counters of this replica. Names and labels are those of controller.metrics; ids are never labels."""

    def count(self, name: str, amount: float = 1, **labels: str) -> None: ...

    def publish(self, states: Mapping[tuple[str, str], int], totals: Mapping[TotalKey, float]) -> None:
        """The leader's snapshot for its gauges and totals."""
        ...

    def withdraw(self) -> None:
        """No longer the leader: not measured here."""
        ...


# --- messages ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Delivery:
    """One received message; `receipt` is good for this receive only."""

    body: str
    receipt: str
    receive_count: int = 1
    attributes: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Message attributes of type String."""


class Inbox(Protocol):
    async def receive(self, limit: int, wait_seconds: float) -> Sequence[Delivery]:
        """At most `limit` (adapter: rounds of 10); empty on none. Unavailable on failure."""
        ...

    async def delete(self, deliveries: Sequence[Delivery]) -> None: ...


class Outbox(Protocol):
    async def send(self, body: str, attributes: Mapping[str, str], group: str) -> None: ...


# --- Batch -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SubmitSpec:
    """One SubmitJob. `size` 1 is a plain job; `multi_node` makes `size` nodes of one job."""

    name: str
    queue: str
    job_definition: str
    size: int
    assignment_uri: str
    multi_node: bool = False
    timeout_seconds: int | None = None
    memory_mib: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


class Batch(Protocol):
    """Each call has its own rate bucket; no SDK retries. Raises Throttled, Unavailable, Refused."""

    async def submit(self, spec: SubmitSpec) -> str:
        """The Batch job id. Also raises Ambiguous."""
        ...

    async def describe(self, batch_job_ids: Sequence[str]) -> Mapping[str, JobView]:
        """At most 100 ids; unknown ones are absent."""
        ...

    async def find(self, queue: str, name: str) -> Sequence[JobView]:
        """Jobs of exactly this name in any state, oldest first. Lags behind SubmitJob."""
        ...

    async def list_named(self, queue: str, prefix: str) -> Sequence[JobView]:
        """Jobs whose name starts with `prefix`, any state, newest first (all pages, bounded)."""
        ...

    async def cancel(self, batch_job_id: str, reason: str) -> None:
        """Stops only what has not started; success proves nothing."""
        ...

    async def terminate(self, batch_job_id: str, reason: str) -> None: ...


# --- objects -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ObjectInfo:
    size: int
    sha256: str | None = None
    """Hex, when the store keeps one."""


class ObjectStore(Protocol):
    """Raises Unavailable, Throttled, Refused (access denied, no such bucket)."""

    async def get(self, location: Location) -> bytes | None: ...

    async def head(self, location: Location) -> ObjectInfo | None: ...

    async def put(self, location: Location, body: bytes) -> None: ...

    async def put_new(self, location: Location, body: bytes) -> bool:
        """If-None-Match: *; False when something else is there already. Equal bytes count as this put."""
        ...


# --- store -------------------------------------------------------------------------------------------------------


class Requests(Protocol):
    async def insert(self, request: Request) -> bool:
        """False when the id exists."""
        ...

    async def get(self, request_id: str, *, lock: bool = False) -> Request | None:
        """`lock`: no other transaction changes it before this one ends."""
        ...

    async def of_ids(self, request_ids: Collection[str]) -> Mapping[str, Request]:
        """Those that there are, by id."""
        ...

    async def apply(self, change: RequestChange) -> bool: ...

    async def amend(
        self,
        request_id: str,
        *,
        priority: int | None,
        deadline: datetime | None,
        queues: Sequence[str] | None,
        now: datetime,
    ) -> bool:
        """Columns and body; only while the request is not terminal or cancelling."""
        ...

    async def claim(
        self, states: Iterable[RequestState], holder: str, now: datetime, until: datetime, limit: int
    ) -> Sequence[Request]:
        """Rows nobody holds, by priority then age; SKIP LOCKED."""
        ...

    async def release(self, request_ids: Sequence[str], holder: str) -> None: ...

    async def in_states(self, states: Iterable[RequestState], limit: int) -> Sequence[Request]: ...

    async def search(
        self, *, tenant: str | None, states: Iterable[RequestState] | None, before: str | None, limit: int
    ) -> Sequence[Request]:
        """Newest first; `before` is the id of the last row of the page before."""
        ...


class Shards(Protocol):
    async def insert_many(self, shards: Sequence[Shard]) -> int:
        """Idempotent; the number really new."""
        ...

    async def get(self, request_id: str, shard: int) -> Shard | None: ...

    async def apply(self, change: ShardChange) -> bool: ...

    async def due(self, now: datetime, limit: int) -> Sequence[Shard]:
        """Pending and eligible, without a live attempt, of running requests that are not paused; by request
        priority, age, ordinal."""
        ...

    async def counts(self, request_id: str) -> ShardCounts: ...

    async def unindexed(self, request_id: str, limit: int) -> Sequence[Shard]:
        """Succeeded, not in the ledger with their current marker."""
        ...

    async def succeeded(self, request_id: str) -> Sequence[Shard]: ...

    async def search(
        self, request_id: str, *, states: Iterable[ShardState] | None, outcome: Outcome | None, after: int, limit: int
    ) -> Sequence[Shard]: ...

    async def cancel_pending(self, request_id: str, now: datetime, limit: int) -> int:
        """pending | failed → cancelled; the number changed."""
        ...

    async def mark_indexed(self, request_id: str, loaded: Mapping[int, str], now: datetime) -> None:
        """Record marker digests the index's ledger holds, where they equal the shard's current marker."""
        ...


class Attempts(Protocol):
    async def insert_many(self, attempts: Sequence[Attempt]) -> None: ...

    async def get(self, attempt_id: str, *, lock: bool = False) -> Attempt | None:
        """`lock`: nobody else changes it before this transaction ends; for sums over what it was and becomes."""
        ...

    async def apply(self, change: AttemptChange) -> bool: ...

    async def by_batch_job_id(self, batch_job_id: str) -> Attempt | None:
        """By the bound id, or by the job's own id and the child index in `parent:i` or `parent#i`."""
        ...

    async def of_job(self, job_id: str) -> Sequence[Attempt]: ...

    async def of_shard(self, request_id: str, shard: int) -> Sequence[Attempt]:
        """Oldest first, all generations."""
        ...

    async def of_kind(self, request_id: str, kind: JobKind) -> Sequence[Attempt]:
        """Oldest first; prepare and index only have a few."""
        ...

    async def live(self, request_id: str, limit: int) -> Sequence[Attempt]: ...

    async def claim_due(self, holder: str, now: datetime, until: datetime, limit: int) -> Sequence[Attempt]:
        """Live attempts whose next check is due, with or without a Batch id; sets the claim; SKIP LOCKED."""
        ...

    async def checked(self, attempt_ids: Sequence[str], holder: str, next_check_at: datetime) -> None:
        """Release the claim and set when to look again."""
        ...

    async def stops_wanted(self, now: datetime, again_before: datetime, limit: int) -> Sequence[Attempt]:
        """Live, with a stop intent, never asked or asked before `again_before`."""
        ...

    async def intend_stop_queue(self, queue: str, intent: StopIntent, limit: int, request_id: str | None = None) -> int:
        """Unstarted infer attempts of a queue (and request) without an intent, the newest first; the number marked."""
        ...

    async def intend_stop_request(self, request_id: str, intent: StopIntent) -> int:
        """CANCEL: every live attempt, over any other intent. Else every unstarted infer attempt without one."""
        ...

    async def loads(self) -> Sequence[QueueLoad]:
        """Live infer attempts by queue; `last_started_at` also counts those that have ended."""
        ...

    async def waiting(self, limit: int) -> Sequence[Waiting]:
        """Unstarted infer attempts without a stop intent by queue and request, those of urgent and old requests
        first."""
        ...

    async def hear_again(self, since: datetime, now: datetime) -> int:
        """After an outage of ours: a fresh contact clock for every live attempt last heard before `since`."""
        ...


class Jobs(Protocol):
    async def insert(self, job: Job) -> None: ...

    async def get(self, job_id: str) -> Job | None: ...

    async def of_ids(self, job_ids: Collection[str]) -> Mapping[str, Job]:
        """Those that there are, by id."""
        ...

    async def apply(self, change: JobChange) -> bool: ...

    async def intended(self, now: datetime, limit: int) -> Sequence[Job]:
        """Oldest first; both fresh ones and ambiguous ones."""
        ...

    async def close_finished(self, now: datetime, limit: int) -> int:
        """submitted with every attempt ended → closed."""
        ...

    async def known_names(self, names: Sequence[str]) -> Mapping[str, Job]: ...

    async def live_of_request(self, request_id: str) -> int: ...


class Leases(Protocol):
    async def acquire(self, name: str, holder: str, now: datetime, ttl_seconds: float) -> Lease | None:
        """Ours, renewed or taken over from one that ran out; None while somebody else holds it."""
        ...

    async def fence(self, name: str, lease: Lease) -> None:
        """Join the lease to this transaction (row share lock); Fenced if the epoch has moved on."""
        ...

    async def release(self, name: str, holder: str, now: datetime) -> None: ...


class Queues(Protocol):
    async def all(self) -> Mapping[str, QueueState]: ...

    async def put(self, state: QueueState) -> None: ...

    async def note_blocked(self, name: str, reason: str | None, now: datetime) -> None:
        """Remember the head-of-queue reason; `blocked_since` keeps its first time while the reason stays."""
        ...

    async def freeze(self) -> Freeze:
        """As it stands now; not frozen when nobody ever did."""
        ...

    async def put_freeze(self, freeze: Freeze) -> None: ...


class Events(Protocol):
    async def add(self, event: OutboxEvent) -> None: ...

    async def claim_unsent(self, holder: str, now: datetime, until: datetime, limit: int) -> Sequence[OutboxEvent]: ...

    async def sent(self, event_ids: Sequence[str], now: datetime) -> None: ...

    async def of_request(self, request_id: str, limit: int) -> Sequence[OutboxEvent]:
        """Newest first."""
        ...

    async def prune(self, sent_before: datetime, limit: int) -> int: ...


class Totals(Protocol):
    """What is added is written at the end of the transaction."""

    async def add(self, deltas: Mapping[TotalKey, float]) -> None: ...

    async def all(self) -> Mapping[TotalKey, float]: ...


class Operations(Protocol):
    async def insert(self, operation: Operation) -> None: ...

    async def get(self, operation_id: str) -> Operation | None: ...

    async def pending(self, limit: int) -> Sequence[Operation]: ...

    async def finish(self, operation_id: str, *, state: str, moved: int, skipped: int, now: datetime) -> bool: ...

    async def audit(
        self, *, id: str, at: datetime, actor: str, action: str, target: str, reason: str, detail: Mapping[str, Any]
    ) -> None: ...

    async def audit_of(self, target: str, limit: int) -> Sequence[Mapping[str, Any]]:
        """Newest first."""
        ...


class Measures(Protocol):
    """Aggregates for the leader's gauges and the progress of a request; never in a hot path."""

    async def states(self) -> Mapping[tuple[str, str], int]:
        """(`request` | `shard` | `attempt` | `job`, state) → rows."""
        ...

    async def assets_per_second(self, model: str, since: datetime) -> Mapping[str, float]:
        """Measured rate of one attempt by queue, from ended attempts with a marker."""
        ...

    async def attempt_seconds(self, request_id: str) -> Mapping[tuple[str, str | None, str], float]:
        """(queue, compute environment if one was reported, outcome or `running`) → seconds from start to end (or
        now-independent last contact)."""
        ...

    async def outcomes(self, request_id: str) -> Mapping[Outcome, int]:
        """How its infer attempts ended."""
        ...

    async def latest_outcomes(self, request_id: str, since: datetime | None, limit: int) -> Sequence[Outcome]:
        """How its infer attempts ended since then, newest first."""
        ...


class Transaction(Protocol):
    """One short transaction; committed when its block ends without an exception. Never spans an AWS call."""

    requests: Requests
    shards: Shards
    attempts: Attempts
    jobs: Jobs
    leases: Leases
    queues: Queues
    events: Events
    totals: Totals
    operations: Operations
    measures: Measures


class Store(Protocol):
    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """READ COMMITTED; Unavailable when Postgres cannot be reached or ends the connection."""
        ...

    async def ping(self) -> str:
        """The schema revision; Unavailable when there is no database."""
        ...
