"""What Batch keeps: job trees, definitions, queues and environments, and the table of legal status changes.

Plain data without behaviour beyond look-ups; `lifecycle` alone writes `Job.status`. An array or multi-node job is
one parent with `members`; all members share the parent's `JobSpec`, so 10,000 children cost 10,000 small objects.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from deploy.local.batch.config import CapacityType, InstanceShape

if TYPE_CHECKING:
    from deploy.local.batch.stops import LiveAttempt


class Status(StrEnum):
    SUBMITTED = "SUBMITTED"
    PENDING = "PENDING"
    RUNNABLE = "RUNNABLE"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED})

# An array parent is never more than PENDING before it ends; a retry sends RUNNING (or STARTING) back to RUNNABLE.
LEGAL_CHANGES: dict[Status, frozenset[Status]] = {
    Status.SUBMITTED: frozenset({Status.PENDING, Status.RUNNABLE, Status.FAILED}),
    Status.PENDING: frozenset({Status.RUNNABLE, Status.SUCCEEDED, Status.FAILED}),
    Status.RUNNABLE: frozenset({Status.STARTING, Status.FAILED}),
    Status.STARTING: frozenset({Status.RUNNING, Status.RUNNABLE, Status.FAILED}),
    Status.RUNNING: frozenset({Status.RUNNABLE, Status.SUCCEEDED, Status.FAILED}),
    Status.SUCCEEDED: frozenset(),
    Status.FAILED: frozenset(),
}


class Kind(StrEnum):
    SINGLE = "single"
    ARRAY = "array"
    CHILD = "child"
    MULTI_NODE = "multi_node"
    NODE = "node"


TOP_LEVEL = frozenset({Kind.SINGLE, Kind.ARRAY, Kind.MULTI_NODE})


class RetryAction(StrEnum):
    RETRY = "RETRY"
    EXIT = "EXIT"


@dataclass(frozen=True, slots=True)
class ExitRule:
    action: RetryAction
    on_status_reason: str | None = None
    on_reason: str | None = None
    on_exit_code: str | None = None


@dataclass(slots=True, eq=False)
class JobDefinition:
    name: str
    revision: int
    arn: str
    request: dict[str, Any]  # RegisterJobDefinition as it came
    active: bool = True

    @property
    def is_multi_node(self) -> bool:
        return bool(self.request["type"] == "multinode")


@dataclass(slots=True, eq=False)
class ComputeEnvironment:
    """Capacity as slots; idle instances are reused, most recently used first, so that hosts have a history."""

    name: str
    arn: str
    type: CapacityType
    family: str
    shape: InstanceShape
    slots: int
    start_delay_seconds: float
    uuid: str
    request: dict[str, Any] | None = None  # CreateComputeEnvironment, when it came over the API
    enabled: bool = True
    used: int = 0
    idle_instances: list[str] = field(default_factory=list)

    @property
    def free(self) -> int:
        return self.slots - self.used if self.enabled else 0


@dataclass(slots=True, eq=False)
class JobQueue:
    name: str
    arn: str
    priority: int
    environments: list[ComputeEnvironment]
    scheduling_policy_arn: str | None = None
    state_time_limits: list[dict[str, Any]] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    enabled: bool = True

    @property
    def fair_share(self) -> bool:
        return self.scheduling_policy_arn is not None


@dataclass(frozen=True, slots=True, eq=False)
class JobSpec:
    """What was asked, resolved against the definition at submission; shared by a parent and its members."""

    name: str
    queue: JobQueue
    definition: JobDefinition
    request: dict[str, Any]  # SubmitJob as it came
    max_attempts: int
    exit_rules: tuple[ExitRule, ...]
    timeout_seconds: int | None
    parameters: dict[str, str]
    tags: dict[str, str]
    num_nodes: int = 1
    main_node: int = 0

    @property
    def share_identifier(self) -> str | None:
        return self.request.get("shareIdentifier")


@dataclass(slots=True)
class Attempt:
    """One run that reached RUNNING, or one start that failed for good."""

    started_ms: int | None
    stopped_ms: int
    status_reason: str
    exit_code: int | None
    reason: str | None
    task_arn: str
    instance_arn: str
    log_stream: str | None


@dataclass(slots=True)
class Container:
    """The latest container of a job, as DescribeJobs shows it."""

    task_arn: str
    instance_arn: str
    instance_id: str
    environment_name: str
    instance_type: str
    log_stream: str | None = None
    exit_code: int | None = None
    reason: str | None = None


@dataclass(slots=True, eq=False)
class Job:
    job_id: str
    arn: str
    kind: Kind
    spec: JobSpec
    sequence: int
    created_ms: int
    status: Status = Status.SUBMITTED
    status_reason: str | None = None
    started_ms: int | None = None
    stopped_ms: int | None = None
    launches: int = 0  # starts so far, also those lost before RUNNING
    attempts: list[Attempt] = field(default_factory=list)
    container: Container | None = None
    parent: Job | None = None
    index: int = 0
    members: list[Job] = field(default_factory=list)
    dependents: list[Job] = field(default_factory=list)
    waiting_on: int = 0
    doomed: bool = False  # a dependency failed before this job was evaluated
    stop_reason: str | None = None  # text of an accepted cancel or terminate
    is_cancelled: bool = False
    is_terminated: bool = False
    live: LiveAttempt | None = None
    head_since_ms: int | None = None
    member_counts: Counter[Status] = field(default_factory=Counter)
    summary: dict[str, int] = field(default_factory=dict)
    summary_ms: int = 0

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL
