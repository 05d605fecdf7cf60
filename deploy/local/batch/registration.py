"""Compute environments, job queues and job definitions: their rules at creation, and building them.

The same builders serve the config file and the API. The API's environments get one slot per instance that
`maxvCpus` pays for. Anything wrong is a ClientError, and nothing is half created.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from deploy.local.batch.config import (
    MAX_STATE_LIMIT_SECONDS,
    MIN_STATE_LIMIT_SECONDS,
    CapacityType,
    ComputeEnvironmentConfig,
    StandInConfig,
)
from deploy.local.batch.model import ComputeEnvironment, JobDefinition, JobQueue
from deploy.local.batch.registry import Registry
from deploy.local.batch.validation import (
    check_name,
    check_overrides,
    check_retry_strategy,
    check_timeout,
    refuse_unless,
)

MAX_QUEUES = MAX_ENVIRONMENTS = 50
MAX_ENVIRONMENTS_PER_QUEUE = 3
MAX_DEFINITION_BYTES = 24 * 1024
MAX_NODE_RANGES = 5
LIMITABLE_REASONS = (
    "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY",
    "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE",
    "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT",
)
_FAIR_SHARE_POLICY = "fair-share"


def install(registry: Registry, config: StandInConfig) -> None:
    """Create what the config file names."""
    for environment in config.compute_environments:
        _add_environment(registry, environment, request=None)
    for queue in config.queues:
        registry.queues[queue.name] = JobQueue(
            name=queue.name,
            arn=registry.arn("job-queue", queue.name),
            priority=queue.priority,
            environments=[registry.environments[name] for name in queue.compute_environments],
            scheduling_policy_arn=registry.arn("scheduling-policy", _FAIR_SHARE_POLICY) if queue.fair_share else None,
            state_time_limits=[
                {
                    "reason": limit.reason,
                    "state": limit.state,
                    "maxTimeSeconds": limit.max_time_seconds,
                    "action": limit.action,
                }
                for limit in queue.state_time_limits
            ],
        )
    for definition in config.job_definitions:
        register_definition(registry, definition)


def create_environment(
    registry: Registry, request: Mapping[str, Any], start_delay_seconds: float
) -> ComputeEnvironment:
    name = request["computeEnvironmentName"]
    check_name(name, "Compute environment name")
    refuse_unless(name not in registry.environments, "Object already exists")
    refuse_unless(len(registry.environments) < MAX_ENVIRONMENTS, f"At most {MAX_ENVIRONMENTS} compute environments")
    refuse_unless(request["type"] == "MANAGED" and "computeResources" in request, "computeResources must be provided")
    resources = request["computeResources"]
    refuse_unless(resources["type"] in set(CapacityType), f"Unsupported type {resources['type']}")
    instance_types = resources.get("instanceTypes", ["optimal"])
    family = instance_types[0].partition(".")[0]
    shape = ComputeEnvironmentConfig(name=name, instance_family=family).shape
    settings = ComputeEnvironmentConfig(
        name=name,
        type=CapacityType(resources["type"]),
        instance_family=family,
        slots=resources["maxvCpus"] // shape.vcpus,
        start_delay_seconds=start_delay_seconds,
    )
    return _add_environment(registry, settings, request=dict(request))


def _add_environment(
    registry: Registry, settings: ComputeEnvironmentConfig, request: dict[str, Any] | None
) -> ComputeEnvironment:
    environment = ComputeEnvironment(
        name=settings.name,
        arn=registry.arn("compute-environment", settings.name),
        type=settings.type,
        family=settings.instance_family,
        shape=settings.shape,
        slots=settings.slots,
        start_delay_seconds=settings.start_delay_seconds,
        uuid=str(uuid.uuid4()),
        request=request,
        enabled=(request or {}).get("state", "ENABLED") == "ENABLED",
    )
    registry.environments[settings.name] = environment
    return environment


def create_queue(registry: Registry, request: Mapping[str, Any]) -> JobQueue:
    name = request["jobQueueName"]
    check_name(name, "Job queue name")
    refuse_unless(name not in registry.queues, "Object already exists")
    refuse_unless(len(registry.queues) < MAX_QUEUES, f"At most {MAX_QUEUES} job queues")
    queue = JobQueue(name=name, arn=registry.arn("job-queue", name), priority=0, environments=[])
    queue.scheduling_policy_arn = request.get("schedulingPolicyArn")
    queue.tags = dict(request.get("tags", {}))
    update_queue(registry, queue, {"computeEnvironmentOrder": [], **request})
    registry.queues[name] = queue
    return queue


def update_queue(registry: Registry, queue: JobQueue, request: Mapping[str, Any]) -> None:
    """Apply what `request` names; everything is checked before anything is changed."""
    priority = request.get("priority", queue.priority)
    refuse_unless(0 <= priority <= 1000, "Priority must be 0 to 1000")
    environments = queue.environments
    if "computeEnvironmentOrder" in request:
        order = sorted(request["computeEnvironmentOrder"], key=lambda entry: entry["order"])
        refuse_unless(
            1 <= len(order) <= MAX_ENVIRONMENTS_PER_QUEUE,
            f"A job queue takes 1 to {MAX_ENVIRONMENTS_PER_QUEUE} compute environments",
        )
        found = [registry.environment(entry["computeEnvironment"]) for entry in order]
        environments = [environment for environment in found if environment is not None]
        refuse_unless(len(environments) == len(order), "Compute environment does not exist")
    limits = request.get("jobStateTimeLimitActions", queue.state_time_limits)
    for limit in limits:
        refuse_unless(limit["action"] == "CANCEL" and limit["state"] == "RUNNABLE", "Only CANCEL of RUNNABLE jobs")
        refuse_unless(limit["reason"] in LIMITABLE_REASONS, f"Invalid reason {limit['reason']}")
        refuse_unless(
            MIN_STATE_LIMIT_SECONDS <= limit["maxTimeSeconds"] <= MAX_STATE_LIMIT_SECONDS,
            f"maxTimeSeconds must be {MIN_STATE_LIMIT_SECONDS} to {MAX_STATE_LIMIT_SECONDS}",
        )
    queue.priority = priority
    queue.environments = environments
    queue.state_time_limits = [dict(limit) for limit in limits]
    queue.enabled = request.get("state", "ENABLED" if queue.enabled else "DISABLED") == "ENABLED"


def register_definition(registry: Registry, request: Mapping[str, Any]) -> JobDefinition:
    name = request["jobDefinitionName"]
    check_name(name, "Job definition name")
    size_bytes = len(json.dumps(request).encode())
    refuse_unless(size_bytes <= MAX_DEFINITION_BYTES, f"RegisterJobDefinition payload exceeds {MAX_DEFINITION_BYTES}")
    check_retry_strategy(request.get("retryStrategy", {}))
    check_timeout(request.get("timeout", {}))
    if request["type"] == "container":
        refuse_unless("nodeProperties" not in request, "nodeProperties need type multinode")
        _check_container(request.get("containerProperties", {}))
    else:
        refuse_unless(request["type"] == "multinode", f"Unknown job definition type {request['type']}")
        refuse_unless("containerProperties" not in request, "A multinode definition has nodeProperties instead")
        _check_nodes(request.get("nodeProperties", {}))
    revisions = registry.definitions.setdefault(name, [])
    revision = len(revisions) + 1
    definition = JobDefinition(
        name=name,
        revision=revision,
        arn=registry.arn("job-definition", f"{name}:{revision}"),
        request=dict(request),
    )
    revisions.append(definition)
    return definition


def _check_container(container: Mapping[str, Any]) -> None:
    refuse_unless(container.get("image"), "Container image must be provided")
    check_overrides(container)
    given = {requirement["type"] for requirement in container.get("resourceRequirements", ())}
    refuse_unless("VCPU" in given or container.get("vcpus"), "VCPU must be provided in resourceRequirements")
    refuse_unless("MEMORY" in given or container.get("memory"), "MEMORY must be provided in resourceRequirements")


def _check_nodes(nodes: Mapping[str, Any]) -> None:
    refuse_unless(nodes, "nodeProperties must be provided")
    count, ranges = nodes["numNodes"], nodes["nodeRangeProperties"]
    refuse_unless(count >= 1 and 0 <= nodes["mainNode"] < count, "mainNode must be one of the nodes")
    refuse_unless(1 <= len(ranges) <= MAX_NODE_RANGES, f"1 to {MAX_NODE_RANGES} node ranges")
    covered: set[int] = set()
    for node_range in ranges:
        covered.update(nodes_in(node_range["targetNodes"], count))
        _check_container(node_range.get("container", {}))
    refuse_unless(covered == set(range(count)), "Node ranges must cover every node")


def nodes_in(target: str, num_nodes: int) -> range:
    """`n`, `a:b`, `a:` or `:b` as node indexes."""
    lower, colon, upper = target.partition(":")
    refuse_unless(all(part == "" or part.isdigit() for part in (lower, upper)), f"Invalid targetNodes {target!r}")
    first = int(lower or 0)
    last = first if not colon else int(upper) if upper else num_nodes - 1
    return range(first, min(last, num_nodes - 1) + 1)
