"""Every setting of the stand-in, validated once at start and then read-only.

Durations are in *Batch seconds* unless the name says `real`: they are multiplied by `time_scale`, so that with 0.01
a time-out of 60 s fires after 0.6 s while the API still refuses anything below 60. A wrong file fails at start, with
the field's path in the message.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MIN_STATE_LIMIT_SECONDS = 600
MAX_STATE_LIMIT_SECONDS = 86_400


class CapacityType(StrEnum):
    """How an environment buys its instances; multi-node jobs are refused on SPOT."""

    SPOT = "SPOT"
    EC2 = "EC2"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class InstanceShape(_Frozen):
    """What one instance of a family offers. ECS sees less memory than the nominal figure."""

    vcpus: int
    memory_mib: int = Field(description="nominal RAM; `usable_memory_mib` is what a job may ask for")
    gpus: int = 0

    @property
    def usable_memory_mib(self) -> int:
        return int(self.memory_mib * 0.94)


# The smallest size of each family, which is what a local slot plays.
FAMILY_SHAPES: dict[str, InstanceShape] = {
    "g6e": InstanceShape(vcpus=4, memory_mib=32_768, gpus=1),
    "g6": InstanceShape(vcpus=4, memory_mib=16_384, gpus=1),
    "g5": InstanceShape(vcpus=4, memory_mib=16_384, gpus=1),
    "c7a": InstanceShape(vcpus=4, memory_mib=8_192),
    "m7a": InstanceShape(vcpus=4, memory_mib=16_384),
}
UNKNOWN_FAMILY_SHAPE = InstanceShape(vcpus=4, memory_mib=16_384)


class ComputeEnvironmentConfig(_Frozen):
    """A pool of instances. One container takes one slot, whatever it asks for; a slot is one instance."""

    name: str
    type: CapacityType = CapacityType.SPOT
    instance_family: str = Field(default="g6", description="as in `instanceTypes`, e.g. g6e")
    slots: int = Field(default=1, ge=0, description="instances, hence containers, that may run at once")
    start_delay_seconds: float = Field(default=5.0, ge=0, description="spent in STARTING: boot and image pull")
    gpus: int | None = Field(default=None, description="GPUs of one instance; default: the family's")
    vcpus: int | None = Field(default=None, description="vCPUs of one instance; default: the family's")
    memory_mib: int | None = Field(default=None, description="nominal RAM of one instance; default: the family's")

    @property
    def shape(self) -> InstanceShape:
        family = FAMILY_SHAPES.get(self.instance_family, UNKNOWN_FAMILY_SHAPE)
        return InstanceShape(
            vcpus=family.vcpus if self.vcpus is None else self.vcpus,
            memory_mib=family.memory_mib if self.memory_mib is None else self.memory_mib,
            gpus=family.gpus if self.gpus is None else self.gpus,
        )


class StateTimeLimit(_Frozen):
    """One entry of `jobStateTimeLimitActions`; it watches only the job at the head of the queue."""

    reason: str = Field(description="stable prefix of the blocked reason, e.g. CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY")
    max_time_seconds: int = Field(ge=MIN_STATE_LIMIT_SECONDS, le=MAX_STATE_LIMIT_SECONDS)
    state: Literal["RUNNABLE"] = "RUNNABLE"
    action: Literal["CANCEL"] = "CANCEL"


class JobQueueConfig(_Frozen):
    name: str
    compute_environments: tuple[str, ...] = Field(min_length=1, max_length=3, description="in the order tried")
    priority: int = Field(default=1, ge=0, le=1000, description="between queues that share an environment")
    fair_share: bool = Field(default=False, description="then every SubmitJob must carry a shareIdentifier")
    state_time_limits: tuple[StateTimeLimit, ...] = ()


class EventsConfig(_Frozen):
    """Where "Batch Job State Change" events go, and how badly they are delivered.

    Defaults are deliberately bad: at least once, out of order. Fixed `seed`, so a failing run can be repeated.
    """

    queue_url: str = Field(description="SQS queue that plays the EventBridge target")
    endpoint_url: str | None = Field(default=None, description="SQS endpoint; None: AWS itself")
    region: str = "us-east-1"
    access_key_id: str = "test"
    secret_access_key: str = "test"
    delay_max_seconds: float = Field(default=1.0, ge=0, description="every event: uniform delay in [0, this]")
    late_probability: float = Field(default=0.1, ge=0, le=1, description="share delayed by up to late_max_seconds")
    late_max_seconds: float = Field(default=10.0, ge=0, description="long enough to arrive after its successors")
    duplicate_probability: float = Field(default=0.1, ge=0, le=1, description="share delivered twice, same id")
    drop_probability: float = Field(default=0.0, ge=0, le=1, description="share lost; 0: only on demand")
    seed: int = 7


class StandInConfig(_Frozen):
    time_scale: float = Field(default=1.0, gt=0, description="real seconds per Batch second")
    account_id: str = "000000000000"
    region: str = "us-east-1"
    requests_per_second: float = Field(
        default=50.0,
        gt=0,
        description="per account, all operations, real time; more gets a 429 (burst: one second)",
    )
    compute_environments: tuple[ComputeEnvironmentConfig, ...] = ()
    queues: tuple[JobQueueConfig, ...] = ()
    job_definitions: tuple[dict[str, Any], ...] = Field(
        default=(), description="RegisterJobDefinition requests made at start, as a convenience"
    )
    images: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="container image → argv prefix on this host; the job's command is appended. A name that is not "
        "here cannot be pulled. A tag or registry in the image is ignored when the bare name is listed.",
    )
    base_environment: dict[str, str] = Field(
        default_factory=dict,
        description="what the instance role and image would give: endpoints, credentials",
    )
    inherit_environment: tuple[str, ...] = Field(
        default=("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH"),
        description="variables taken over from the stand-in itself; a container gets no others",
    )
    working_directory: Path | None = Field(default=None, description="of the jobs; None: the stand-in's own")
    evaluate_seconds: float = Field(default=1.0, ge=0, description="how long a job stays SUBMITTED")
    stop_grace_seconds: float = Field(default=30.0, ge=0, description="between SIGTERM and SIGKILL")
    sigterm_whole_group: bool = Field(
        default=True,
        description="SIGTERM reaches the whole process group; False: only the first process, as ECS does",
    )
    blocked_after_seconds: float = Field(default=60.0, ge=0, description="until the head is told why it is stuck")
    summary_refresh_seconds: float = Field(default=5.0, ge=0, description="how stale an array's statusSummary may be")
    list_lag_seconds: float = Field(default=5.0, ge=0, description="until a new job shows up in a filtered ListJobs")
    retention_seconds: float = Field(default=7 * 86_400.0, gt=0, description="terminal records are kept this long")
    events: EventsConfig | None = Field(default=None, description="None: no events are sent")

    @model_validator(mode="after")
    def _queues_name_known_environments(self) -> StandInConfig:
        known = {environment.name for environment in self.compute_environments}
        for queue in self.queues:
            if missing := set(queue.compute_environments) - known:
                raise ValueError(f"queue {queue.name}: no such compute environment {sorted(missing)}")
        return self
