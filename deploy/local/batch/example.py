"""The configuration the local stack and the tests start from: queues g6e, g6, g5, ondemand and cpu.

    g6e, g6, g5   one Spot environment each: the fallback order of this product's GPU work
    ondemand      EC2, so multi-node jobs are allowed here
    cpu           EC2 without GPUs: preparation and index jobs

Every GPU queue carries the state time limit that AWS offers as a safety net. Change what differs with
`config.model_copy(update={...})`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deploy.local.batch.config import (
    MIN_STATE_LIMIT_SECONDS,
    CapacityType,
    ComputeEnvironmentConfig,
    EventsConfig,
    JobQueueConfig,
    StandInConfig,
    StateTimeLimit,
)

GPU_FAMILIES = ("g6e", "g6", "g5")
ON_DEMAND_QUEUE = "ondemand"
CPU_QUEUE = "cpu"


def example_config(
    images: Mapping[str, Sequence[str]],
    *,
    events: EventsConfig | None = None,
    base_environment: Mapping[str, str] | None = None,
    time_scale: float = 1.0,
    gpu_slots: int = 1,
    cpu_slots: int = 2,
    gpus_per_instance: int = 1,
    start_delay_seconds: float = 2.0,
) -> StandInConfig:
    """A complete configuration; `images` maps a container image to the argv prefix that plays it."""
    limit = StateTimeLimit(reason="CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY", max_time_seconds=MIN_STATE_LIMIT_SECONDS)

    def environment(name: str, type_: CapacityType, family: str, slots: int) -> ComputeEnvironmentConfig:
        return ComputeEnvironmentConfig(
            name=name,
            type=type_,
            instance_family=family,
            slots=slots,
            start_delay_seconds=start_delay_seconds,
            gpus=gpus_per_instance if family in GPU_FAMILIES else 0,
        )

    return StandInConfig(
        time_scale=time_scale,
        compute_environments=(
            *(environment(f"{family}-spot", CapacityType.SPOT, family, gpu_slots) for family in GPU_FAMILIES),
            environment("g6-ondemand", CapacityType.EC2, "g6", max(2, gpu_slots)),
            environment("cpu-ondemand", CapacityType.EC2, "c7a", cpu_slots),
        ),
        queues=(
            *(
                JobQueueConfig(name=family, compute_environments=(f"{family}-spot",), state_time_limits=(limit,))
                for family in GPU_FAMILIES
            ),
            JobQueueConfig(name=ON_DEMAND_QUEUE, compute_environments=("g6-ondemand",)),
            JobQueueConfig(name=CPU_QUEUE, compute_environments=("cpu-ondemand",)),
        ),
        images={name: tuple(prefix) for name, prefix in images.items()},
        base_environment=dict(base_environment or {}),
        events=events,
    )
