"""A `SubmitSpec` as the parameters of SubmitJob. Pure.

Two limits are checked here, as one is not enforced at the door: SubmitJob takes 30 KiB, but overrides over 8192
characters, JSON punctuation included, pass it and fail the job later, without an attempt and without a log. Both raise
Refused with what to change. Everything else is Batch's to judge.
"""

from __future__ import annotations

import json
from typing import Any

from controller.ports import Refused, SubmitSpec
from schema.assignment import ENVIRONMENT_VARIABLE

MOST_OVERRIDE_CHARACTERS = 7_000  # of 8192: Batch's own variables share the budget
MOST_PAYLOAD_BYTES = 30 * 1024
MOST_CHILDREN = 10_000


def submit_parameters(spec: SubmitSpec) -> dict[str, Any]:
    """What SubmitJob is called with: a plain job, an array of `size` children, or one job of `size` nodes."""
    _check_size(spec)
    parameters: dict[str, Any] = {
        "jobName": spec.name,
        "jobQueue": spec.queue,
        "jobDefinition": spec.job_definition,
        "retryStrategy": {"attempts": 1},  # every retry is a row of ours
        "propagateTags": True,
    }
    container = _container_overrides(spec)
    if spec.multi_node:
        every_node = {"targetNodes": "0:", "containerOverrides": container}
        parameters["nodeOverrides"] = {"numNodes": spec.size, "nodePropertyOverrides": [every_node]}
    else:
        parameters["containerOverrides"] = container
        if spec.size > 1:
            parameters["arrayProperties"] = {"size": spec.size}
    if spec.timeout_seconds is not None:
        parameters["timeout"] = {"attemptDurationSeconds": spec.timeout_seconds}
    if spec.tags:
        parameters["tags"] = dict(spec.tags)
    _check_lengths(parameters)
    return parameters


def _container_overrides(spec: SubmitSpec) -> dict[str, Any]:
    overrides: dict[str, Any] = {"environment": [{"name": ENVIRONMENT_VARIABLE, "value": spec.assignment_uri}]}
    if spec.memory_mib is not None:
        overrides["resourceRequirements"] = [{"type": "MEMORY", "value": str(spec.memory_mib)}]
    return overrides


def _check_size(spec: SubmitSpec) -> None:
    if not 1 <= spec.size <= MOST_CHILDREN:
        raise Refused("BadSize", f"{spec.name}: size {spec.size}; submit 1 to {MOST_CHILDREN} shards a job")


def _check_lengths(parameters: dict[str, Any]) -> None:
    overrides = parameters.get("nodeOverrides") or parameters["containerOverrides"]
    characters = len(json.dumps(overrides))
    if characters >= MOST_OVERRIDE_CHARACTERS:
        raise Refused(
            "OverridesTooLong",
            f"{parameters['jobName']}: the overrides are {characters} characters, the limit is "
            f"{MOST_OVERRIDE_CHARACTERS}; put what the job needs in the assignment object and pass its URI only",
        )
    payload_bytes = len(json.dumps(parameters).encode())
    if payload_bytes >= MOST_PAYLOAD_BYTES:
        raise Refused(
            "PayloadTooLong",
            f"{parameters['jobName']}: the call is {payload_bytes} bytes, the limit is {MOST_PAYLOAD_BYTES}; "
            "use fewer or shorter tags",
        )
