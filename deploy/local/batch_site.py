"""What the Batch stand-in plays: queues over small pools of slots, and one job definition for each worker role.

Owns that description and nothing that runs. The fallback order is g6e → g6 → g5, all spot; `ondemand` takes
multi-node jobs, which Batch refuses on spot; `cpu` prepares and indexes. A slot is one container: two for each
GPU queue, so that two cores cope and a queue still runs dry.

A container sees only what an instance role and a job definition would give it: endpoints and credentials in the base
environment, and the index database's URL in the definition of the index job alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from deploy.local.batch.config import (
    CapacityType,
    ComputeEnvironmentConfig,
    EventsConfig,
    JobQueueConfig,
    StandInConfig,
)
from deploy.local.ministack import ACCOUNT_ID, REGION

WORKER_IMAGE = "reembed-worker"
REAL_STOP_GRACE_SECONDS = 30.0  # AWS gives 30 s between SIGTERM and SIGKILL; workers count on it
ATTEMPT_SECONDS = 3600


class Queue(StrEnum):
    """Job queues, in the fallback order."""

    G6E = "g6e"
    G6 = "g6"
    G5 = "g5"
    ONDEMAND = "ondemand"
    CPU = "cpu"


class Definition(StrEnum):
    """Job definitions, one a worker role; `infer` twice, as Batch has its own type for multi-node jobs."""

    PREPARE = "reembed-prepare"
    INFER = "reembed-infer"
    INFER_NODES = "reembed-infer-nodes"
    INDEX = "reembed-index"


class BatchTuning(BaseModel):
    """How large and how slow the local Batch is; tests choose their own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    time_scale: float = Field(0.1, gt=0, description="Real seconds per second of Batch's own delays.")
    gpu_slots: int = Field(2, ge=0, description="Containers at once on each GPU queue.")
    backlog: int = Field(6, ge=1, description="Attempts that may wait on each GPU queue; the controller is told.")
    cpu_slots: int = Field(2, ge=1, description="Containers at once on the CPU queue.")
    ranks: int = Field(2, ge=1, description="Engines of one infer container, as GPUs of one instance.")
    start_delay_seconds: float = Field(5.0, ge=0, description="Batch seconds in STARTING.")
    blocked_after_seconds: float = Field(60.0, ge=0, description="Batch seconds until a stuck head has a reason.")
    list_lag_seconds: float = Field(5.0, ge=0, description="Batch seconds until ListJobs by name knows a new job.")
    worker_module: str = Field("worker.main", description="What a container runs; tests wrap it.")
    faults_in_events: bool = Field(True, description="Late, doubled and reordered events, as EventBridge may.")


def stand_in_config(
    tuning: BatchTuning,
    *,
    events_queue_url: str,
    sqs_endpoint: str,
    worker_environment: Mapping[str, str],
    index_database_url: str,
    working_directory: Path,
) -> StandInConfig:
    """The stand-in's whole configuration file."""
    events: dict[str, Any] = {"queue_url": events_queue_url, "endpoint_url": sqs_endpoint, "region": REGION}
    if not tuning.faults_in_events:
        events |= {"delay_max_seconds": 0.0, "late_probability": 0.0, "duplicate_probability": 0.0}
    environments = [
        _environment(Queue.G6E, CapacityType.SPOT, "g6e", tuning.gpu_slots, tuning),
        _environment(Queue.G6, CapacityType.SPOT, "g6", tuning.gpu_slots, tuning),
        _environment(Queue.G5, CapacityType.SPOT, "g5", tuning.gpu_slots, tuning),
        _environment(Queue.ONDEMAND, CapacityType.EC2, "g6", 2 * tuning.gpu_slots, tuning),
        _environment(Queue.CPU, CapacityType.EC2, "c7a", tuning.cpu_slots, tuning),
    ]
    return StandInConfig(
        time_scale=tuning.time_scale,
        account_id=ACCOUNT_ID,
        region=REGION,
        compute_environments=tuple(environments),
        queues=tuple(JobQueueConfig(name=queue, compute_environments=(queue,)) for queue in Queue),
        job_definitions=tuple(_definitions(tuning, index_database_url)),
        images={WORKER_IMAGE: (sys.executable, "-m", tuning.worker_module)},
        base_environment=dict(worker_environment),
        working_directory=working_directory,
        stop_grace_seconds=REAL_STOP_GRACE_SECONDS / tuning.time_scale,
        blocked_after_seconds=tuning.blocked_after_seconds,
        list_lag_seconds=tuning.list_lag_seconds,
        events=EventsConfig(**events),
    )


def _environment(
    name: str, kind: CapacityType, family: str, slots: int, tuning: BatchTuning
) -> ComputeEnvironmentConfig:
    return ComputeEnvironmentConfig(
        name=name,
        type=kind,
        instance_family=family,
        slots=slots,
        start_delay_seconds=tuning.start_delay_seconds,
    )


def _definitions(tuning: BatchTuning, index_database_url: str) -> list[dict[str, Any]]:
    cpu = {"VCPU": "2", "MEMORY": "4096"}
    gpu = {"VCPU": "4", "MEMORY": "15000", "GPU": "1"}
    infer = _container(gpu, {"REEMBED_RANKS": str(tuning.ranks)})
    index = _container(cpu, {"REEMBED_INDEX_URL": index_database_url})
    nodes = {
        "numNodes": 2,  # SubmitJob overrides it
        "mainNode": 0,
        "nodeRangeProperties": [{"targetNodes": "0:", "container": infer}],
    }
    return [
        _definition(Definition.PREPARE, type="container", containerProperties=_container(cpu, {})),
        _definition(Definition.INFER, type="container", containerProperties=infer),
        _definition(Definition.INFER_NODES, type="multinode", nodeProperties=nodes),
        _definition(Definition.INDEX, type="container", containerProperties=index),
    ]


def _definition(name: Definition, **properties: Any) -> dict[str, Any]:
    """Every retry is ours: Batch makes one attempt."""
    once = {"retryStrategy": {"attempts": 1}, "timeout": {"attemptDurationSeconds": ATTEMPT_SECONDS}}
    return {"jobDefinitionName": str(name)} | once | properties


def _container(resources: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    return {
        "image": WORKER_IMAGE,
        "resourceRequirements": [{"type": kind, "value": value} for kind, value in resources.items()],
        "environment": [{"name": name, "value": value} for name, value in environment.items()],
    }
