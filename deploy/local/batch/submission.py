"""From an accepted SubmitJob to a tree of jobs with its dependency edges.

Builds, registers and hands the tree to the life cycle; it neither refuses anything nor changes a status. Submitting
the same thing twice makes two trees: Batch has no client token and removes no duplicates.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

from deploy.local.batch.clock import Clock
from deploy.local.batch.model import (
    ExitRule,
    Job,
    JobDefinition,
    JobQueue,
    JobSpec,
    Kind,
    RetryAction,
    Status,
)
from deploy.local.batch.registry import Registry


def build_tree(
    registry: Registry, clock: Clock, request: Mapping[str, Any], queue: JobQueue, definition: JobDefinition
) -> Job:
    spec = _resolve(request, queue, definition)
    size = request.get("arrayProperties", {}).get("size", 0)
    kind = Kind.ARRAY if size else Kind.MULTI_NODE if definition.is_multi_node else Kind.SINGLE
    job_id, now_ms = registry.new_job_id(), clock.now_ms()

    def job(job_id: str, kind: Kind, index: int = 0, parent: Job | None = None) -> Job:
        return Job(
            job_id=job_id,
            arn=registry.arn("job", job_id),
            kind=kind,
            spec=spec,
            sequence=registry.next_sequence(),
            created_ms=now_ms,
            index=index,
            parent=parent,
        )

    tree = job(job_id, kind)
    if kind is Kind.ARRAY:
        tree.members = [job(f"{job_id}:{index}", Kind.CHILD, index, tree) for index in range(size)]
    elif kind is Kind.MULTI_NODE:
        tree.members = [job(f"{job_id}#{index}", Kind.NODE, index, tree) for index in range(spec.num_nodes)]
    tree.member_counts = Counter({Status.SUBMITTED: len(tree.members)})
    _link_dependencies(registry, tree)
    registry.add(tree)
    return tree


def _resolve(request: Mapping[str, Any], queue: JobQueue, definition: JobDefinition) -> JobSpec:
    retry = request.get("retryStrategy") or definition.request.get("retryStrategy", {})
    timeout = request.get("timeout") or definition.request.get("timeout", {})
    nodes = definition.request.get("nodeProperties", {})
    return JobSpec(
        name=request["jobName"],
        queue=queue,
        definition=definition,
        request=dict(request),
        max_attempts=retry.get("attempts", 1),
        exit_rules=tuple(
            ExitRule(
                action=RetryAction(rule["action"].upper()),
                on_status_reason=rule.get("onStatusReason"),
                on_reason=rule.get("onReason"),
                on_exit_code=rule.get("onExitCode"),
            )
            for rule in retry.get("evaluateOnExit", ())
        ),
        timeout_seconds=timeout.get("attemptDurationSeconds"),
        parameters={**definition.request.get("parameters", {}), **request.get("parameters", {})},
        tags=dict(request.get("tags", {})),
        num_nodes=request.get("nodeOverrides", {}).get("numNodes") or nodes.get("numNodes", 1),
        main_node=nodes.get("mainNode", 0),
    )


def _link_dependencies(registry: Registry, tree: Job) -> None:
    """Edges go to what is scheduled: the children of an array, the job itself otherwise."""
    waiting = tree.members if tree.kind is Kind.ARRAY else [tree]
    for entry in tree.spec.request.get("dependsOn", ()):
        if entry.get("type") == "SEQUENTIAL":
            for earlier, later in itertools.pairwise(waiting):
                _link(earlier, later)
            continue
        dependency = registry.job(entry["jobId"])
        if dependency is None:
            raise AssertionError(f"validated dependency {entry['jobId']} vanished")
        if entry.get("type") == "N_TO_N":
            for theirs, ours in zip(dependency.members, waiting, strict=True):
                _link(theirs, ours)
        else:
            for ours in waiting:
                _link(dependency, ours)


def _link(dependency: Job, job: Job) -> None:
    if dependency.status is Status.SUCCEEDED:
        return
    if dependency.status is Status.FAILED:
        job.doomed = True
        return
    dependency.dependents.append(job)
    job.waiting_on += 1
