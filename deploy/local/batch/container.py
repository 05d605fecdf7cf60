"""What a container would be given: the definition merged with the overrides, the command, the environment.

Pure. The injected AWS_BATCH_* variables are those of aws-facts 1.9, and the length that ECS limits to 8192
characters is computed here; the scheduler applies it when it dispatches, as Batch does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from deploy.local.batch.model import Job, JobSpec, Kind
from deploy.local.batch.registration import nodes_in

MAX_OVERRIDES_CHARACTERS = 8192
OVERRIDES_TOO_LONG = f"Container Overrides length must be at most {MAX_OVERRIDES_CHARACTERS}"
_PARAMETER = re.compile(r"Ref::([A-Za-z0-9_-]+)")
_LOOPBACK = "127.0.0.1"  # every node of a multi-node job runs on this host


def properties_of(job: Job) -> Mapping[str, Any]:
    """`containerProperties` after overrides; a parent of nodes shows its main node's."""
    spec = job.spec
    if not spec.definition.is_multi_node:
        return _merged(spec, None)
    return _merged(spec, job.index if job.kind is Kind.NODE else spec.main_node)


def overrides_of(job: Job) -> Mapping[str, Any]:
    spec = job.spec
    if not spec.definition.is_multi_node:
        return spec.request.get("containerOverrides", {})
    return _node_overrides(spec, job.index if job.kind is Kind.NODE else spec.main_node)


@lru_cache(maxsize=1024)
def _merged(spec: JobSpec, node: int | None) -> Mapping[str, Any]:
    if node is None:
        base, overrides = (
            spec.definition.request["containerProperties"],
            spec.request.get("containerOverrides", {}),
        )
    else:
        base, overrides = _node_range(spec, node)["container"], _node_overrides(spec, node)
    merged = {key: value for key, value in base.items() if key not in {"vcpus", "memory"}}
    merged["command"] = [
        _PARAMETER.sub(lambda found: spec.parameters.get(found[1], found[0]), part)
        for part in overrides.get("command") or base.get("command", [])
    ]
    merged["environment"] = _merge_by("name", base.get("environment", []), overrides.get("environment", []))
    requirements = _merge_by("type", base.get("resourceRequirements", []), overrides.get("resourceRequirements", []))
    given = {requirement["type"] for requirement in requirements}
    for kind, legacy in (("VCPU", "vcpus"), ("MEMORY", "memory")):
        amount = overrides.get(legacy) or base.get(legacy)
        if kind not in given and amount:
            requirements.append({"type": kind, "value": str(amount)})
    merged["resourceRequirements"] = requirements
    return merged


def _merge_by(key: str, base: list[dict[str, str]], overrides: list[dict[str, str]]) -> list[dict[str, str]]:
    return list({entry[key]: entry for entry in (*base, *overrides)}.values())


def _node_range(spec: JobSpec, node: int) -> Mapping[str, Any]:
    ranges: list[dict[str, Any]] = spec.definition.request["nodeProperties"]["nodeRangeProperties"]
    # The last match wins: nested ranges refine earlier, wider ones.
    return [found for found in ranges if node in nodes_in(found["targetNodes"], spec.num_nodes)][-1]


def _node_overrides(spec: JobSpec, node: int) -> Mapping[str, Any]:
    for override in spec.request.get("nodeOverrides", {}).get("nodePropertyOverrides", ()):
        if node in nodes_in(override["targetNodes"], spec.num_nodes):
            found: dict[str, Any] = override.get("containerOverrides", {})
            return found
    return {}


def requirement(job: Job, kind: str) -> float:
    for entry in properties_of(job)["resourceRequirements"]:
        if entry["type"] == kind:
            return float(entry["value"])
    return 0.0


def overrides_characters(job: Job, environment_name: str) -> int:
    """Length of the RunTask overrides, JSON punctuation and injected variables included."""
    overrides = overrides_of(job)
    injected = injected_variables(job, environment_name, attempt=1)
    task = {
        "name": "default",
        "command": overrides.get("command", []),
        "environment": [
            *overrides.get("environment", []),
            *({"name": name, "value": value} for name, value in injected.items()),
        ],
        "resourceRequirements": overrides.get("resourceRequirements", []),
    }
    return len(json.dumps({"containerOverrides": [task]}, separators=(",", ":"), ensure_ascii=False))


def injected_variables(job: Job, environment_name: str, attempt: int) -> dict[str, str]:
    parent, spec = job.parent, job.spec
    # Nodes share the job's id: the container of node 1 sees `<jobId>#1`.
    variables = {
        "AWS_BATCH_JOB_ID": job.job_id,
        "AWS_BATCH_JOB_ATTEMPT": str(attempt),
        "AWS_BATCH_JQ_NAME": spec.queue.name,
        "AWS_BATCH_CE_NAME": environment_name,
    }
    if job.kind is Kind.CHILD and parent is not None:
        variables["AWS_BATCH_JOB_ARRAY_INDEX"] = str(job.index)
        variables["AWS_BATCH_JOB_ARRAY_SIZE"] = str(len(parent.members))
    if job.kind is Kind.NODE:
        variables["AWS_BATCH_JOB_NODE_INDEX"] = str(job.index)
        variables["AWS_BATCH_JOB_NUM_NODES"] = str(spec.num_nodes)
        variables["AWS_BATCH_JOB_MAIN_NODE_INDEX"] = str(spec.main_node)
        if job.index != spec.main_node:
            variables["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = _LOOPBACK
    return variables
