"""Jobs and resources in the shapes of the API. Pure: reads the model, writes dictionaries.

Optional fields are absent until they are known, as in AWS; all times are epoch milliseconds. What is in here must
validate against botocore's service model, which the conformance suite checks on every answer.
"""

from __future__ import annotations

from typing import Any

from deploy.local.batch import container
from deploy.local.batch.model import (
    Attempt,
    ComputeEnvironment,
    ExitRule,
    Job,
    JobDefinition,
    JobQueue,
    JobSpec,
    Kind,
    Status,
)
from deploy.local.batch.registry import Registry


def _known(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def refresh_summary(job: Job, now_ms: int) -> None:
    """Bring an array parent's `statusSummary` up to date; in between it is stale, as in AWS."""
    job.summary = {status.value: job.member_counts[status] for status in Status}
    job.summary_ms = now_ms


def job_detail(job: Job) -> dict[str, Any]:
    spec = job.spec
    return _known(
        jobArn=job.arn,
        jobName=spec.name,
        jobId=job.job_id,
        jobQueue=spec.queue.arn,
        status=job.status.value,
        statusReason=job.status_reason,
        shareIdentifier=spec.share_identifier,
        schedulingPriority=spec.request.get("schedulingPriorityOverride"),
        attempts=[_attempt(attempt) for attempt in job.attempts],
        createdAt=job.created_ms,
        startedAt=job.started_ms,
        stoppedAt=job.stopped_ms,
        retryStrategy=_retry_strategy(spec),
        timeout=_known(attemptDurationSeconds=spec.timeout_seconds) or None,
        dependsOn=list(spec.request.get("dependsOn", ())),
        jobDefinition=spec.definition.arn,
        parameters=dict(spec.parameters),
        container=_container(job),
        arrayProperties=_array_properties(job),
        nodeProperties=_node_properties(job),
        nodeDetails=_node_details(job),
        tags=dict(spec.tags),
        propagateTags=bool(spec.request.get("propagateTags", False)),
        platformCapabilities=list(spec.definition.request.get("platformCapabilities", ("EC2",))),
        eksAttempts=[],
        isCancelled=job.is_cancelled,
        isTerminated=job.is_terminated,
    )


def job_summary(job: Job) -> dict[str, Any]:
    facts = job.container
    return _known(
        jobArn=job.arn,
        jobId=job.job_id,
        jobName=job.spec.name,
        createdAt=job.created_ms,
        shareIdentifier=job.spec.share_identifier,
        status=job.status.value,
        statusReason=job.status_reason,
        startedAt=job.started_ms,
        stoppedAt=job.stopped_ms,
        container=_known(exitCode=facts.exit_code, reason=facts.reason) if facts is not None else None,
        arrayProperties=_array_summary(job),
        nodeProperties=_node_summary(job),
        jobDefinition=job.spec.definition.arn,
        isCancelled=job.is_cancelled,
        isTerminated=job.is_terminated,
    )


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return _known(
        container=_known(
            containerInstanceArn=attempt.instance_arn,
            taskArn=attempt.task_arn,
            exitCode=attempt.exit_code,
            reason=attempt.reason,
            logStreamName=attempt.log_stream,
            networkInterfaces=[],
        ),
        startedAt=attempt.started_ms,
        stoppedAt=attempt.stopped_ms,
        statusReason=attempt.status_reason,
    )


def _container(job: Job) -> dict[str, Any] | None:
    if job.kind is Kind.MULTI_NODE:
        return None  # shown per node range in nodeProperties
    shown = {
        "volumes": [],
        "mountPoints": [],
        "ulimits": [],
        "secrets": [],
        "networkInterfaces": [],
        **container.properties_of(job),
    }
    facts = job.container
    if facts is None:
        return shown
    return shown | _known(
        exitCode=facts.exit_code,
        reason=facts.reason,
        containerInstanceArn=facts.instance_arn,
        taskArn=facts.task_arn,
        logStreamName=facts.log_stream,
    )


def _array_properties(job: Job) -> dict[str, Any] | None:
    if job.kind is Kind.CHILD:
        return {"statusSummary": {}, "index": job.index}
    if job.kind is not Kind.ARRAY:
        return None
    return {
        "size": len(job.members),
        "statusSummary": dict(job.summary),
        "statusSummaryLastUpdatedAt": job.summary_ms,
    }


def _array_summary(job: Job) -> dict[str, Any] | None:
    if job.kind is Kind.CHILD:
        return {"index": job.index}
    return _array_properties(job)


def _node_properties(job: Job) -> dict[str, Any] | None:
    if job.kind is not Kind.MULTI_NODE:
        return None
    return {**job.spec.definition.request["nodeProperties"], "numNodes": job.spec.num_nodes}


def _node_details(job: Job) -> dict[str, Any] | None:
    if job.kind is not Kind.NODE:
        return None
    return {"nodeIndex": job.index, "isMainNode": job.index == job.spec.main_node}


def _node_summary(job: Job) -> dict[str, Any] | None:
    if job.kind is Kind.MULTI_NODE:
        return {"numNodes": job.spec.num_nodes}
    return _node_details(job)


def _retry_strategy(spec: JobSpec) -> dict[str, Any]:
    return {"attempts": spec.max_attempts, "evaluateOnExit": [_exit_rule(rule) for rule in spec.exit_rules]}


def _exit_rule(rule: ExitRule) -> dict[str, Any]:
    return _known(
        onStatusReason=rule.on_status_reason,
        onReason=rule.on_reason,
        onExitCode=rule.on_exit_code,
        action=rule.action.value,
    )


def job_queue(queue: JobQueue) -> dict[str, Any]:
    return _known(
        jobQueueName=queue.name,
        jobQueueArn=queue.arn,
        state="ENABLED" if queue.enabled else "DISABLED",
        status="VALID",
        statusReason="JobQueue Healthy",
        schedulingPolicyArn=queue.scheduling_policy_arn,
        priority=queue.priority,
        computeEnvironmentOrder=[
            {"order": order, "computeEnvironment": environment.arn}
            for order, environment in enumerate(queue.environments, start=1)
        ],
        jobQueueType="ECS",
        tags=dict(queue.tags),
        jobStateTimeLimitActions=[dict(limit) for limit in queue.state_time_limits],
    )


def compute_environment(environment: ComputeEnvironment, registry: Registry) -> dict[str, Any]:
    resources = {
        "type": environment.type.value,
        "minvCpus": 0,
        "maxvCpus": environment.slots * environment.shape.vcpus,
        "desiredvCpus": environment.used * environment.shape.vcpus,
        "instanceTypes": [environment.family],
        "subnets": [],
    }
    requested = environment.request or {}
    return {
        "computeEnvironmentName": environment.name,
        "computeEnvironmentArn": environment.arn,
        "ecsClusterArn": registry.ecs_cluster_arn(environment),
        "type": "MANAGED",
        "state": "ENABLED" if environment.enabled else "DISABLED",
        "status": "VALID",
        "statusReason": "ComputeEnvironment Healthy",
        "computeResources": resources | requested.get("computeResources", {}),
        "containerOrchestrationType": "ECS",
        "tags": requested.get("tags", {}),
        "uuid": environment.uuid,
    }


def job_definition(definition: JobDefinition) -> dict[str, Any]:
    return {
        "platformCapabilities": ["EC2"],
        "parameters": {},
        "tags": {},
        **definition.request,
        "jobDefinitionArn": definition.arn,
        "revision": definition.revision,
        "status": "ACTIVE" if definition.active else "INACTIVE",
        "containerOrchestrationType": "ECS",
    }
