"""What Batch refuses at the door. Pure: a request and what exists go in, a ClientError comes out, or nothing.

Two layers: types and unknown members are checked against botocore's own service model, so the stand-in accepts
exactly the shapes of AWS; the rules that the model does not carry (name pattern, array size, ...) are below.
Rules that AWS enforces only later, such as the 8192 characters of overrides, are deliberately not here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import botocore.session
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from deploy.local.batch.config import CapacityType
from deploy.local.batch.errors import ClientError
from deploy.local.batch.model import Job, JobDefinition, JobQueue, Kind

MIN_ARRAY_SIZE, MAX_ARRAY_SIZE = 2, 10_000
MAX_DEPENDENCIES = 20
MAX_SUBMIT_BYTES = 30 * 1024
MAX_DESCRIBE_IDS = 100
MAX_ATTEMPTS = 10
MAX_EXIT_RULES = 5
MIN_TIMEOUT_SECONDS = 60
MAX_REASON_CHARACTERS = 1024
MAX_PRIORITY_OVERRIDE = 9999
MAX_ACTIVE_SHARES = 500
RESERVED_PREFIX = "AWS_BATCH"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_SHARE_IDENTIFIER = re.compile(r"[A-Za-z0-9]{1,255}\*?")
_EXIT_REASON = re.compile(r"[A-Za-z0-9.:\s]{0,511}\*?")
_EXIT_CODE = re.compile(r"[0-9]{0,511}\*?")
_RESOURCE_TYPES = frozenset({"GPU", "VCPU", "MEMORY"})


def load_service_model() -> ServiceModel:
    return botocore.session.get_session().get_service_model("batch")


def check_shape(model: ServiceModel, operation: str, request: Any) -> None:
    """Types, required members and unknown members, as the service model has them."""
    shape = model.operation_model(operation).input_shape
    report = ParamValidator().validate(request, shape)
    if report.has_errors():
        raise ClientError(f"Error executing request, Exception : {report.generate_report()}")


def refuse_unless(holds: object, message: str) -> None:
    if not holds:
        raise ClientError(f"Error executing request, Exception : {message}")


def check_name(name: str, what: str) -> None:
    refuse_unless(
        _NAME.fullmatch(name),
        f"{what} should match valid pattern: {_NAME.pattern}, up to 128 letters, numbers, hyphens and underscores",
    )


def check_environment(environment: Iterable[Mapping[str, str]]) -> None:
    for variable in environment:
        refuse_unless(variable.get("name"), "Environment variable name must not be empty.")
        refuse_unless(
            not variable["name"].startswith(RESERVED_PREFIX),
            f"Environment variable {variable['name']} cannot start with {RESERVED_PREFIX}",
        )


def check_resources(requirements: Iterable[Mapping[str, str]]) -> None:
    for requirement in requirements:
        refuse_unless(requirement["type"] in _RESOURCE_TYPES, f"Unknown resource type {requirement['type']}")
        refuse_unless(
            re.fullmatch(r"[0-9]+(\.[0-9]+)?", requirement["value"]) and float(requirement["value"]) > 0,
            f"Value of {requirement['type']} must be a positive number, found {requirement['value']!r}",
        )


def check_overrides(overrides: Mapping[str, Any]) -> None:
    refuse_unless(all(overrides.get("command", ())), "Container command must not contain empty strings")
    check_environment(overrides.get("environment", ()))
    check_resources(overrides.get("resourceRequirements", ()))


def check_retry_strategy(strategy: Mapping[str, Any]) -> None:
    attempts = strategy.get("attempts")
    rules = strategy.get("evaluateOnExit", ())
    if attempts is not None:
        refuse_unless(1 <= attempts <= MAX_ATTEMPTS, f"attempts must be between 1 and {MAX_ATTEMPTS}")
    refuse_unless(len(rules) <= MAX_EXIT_RULES, f"evaluateOnExit can have at most {MAX_EXIT_RULES} entries")
    refuse_unless(attempts is not None or not rules, "attempts must be specified with evaluateOnExit")
    for rule in rules:
        refuse_unless(rule["action"].upper() in {"RETRY", "EXIT"}, f"Invalid retry action {rule['action']}")
        patterns = {"onStatusReason": _EXIT_REASON, "onReason": _EXIT_REASON, "onExitCode": _EXIT_CODE}
        for field, pattern in patterns.items():
            if field in rule:
                refuse_unless(pattern.fullmatch(rule[field]), f"Invalid pattern for {field}: {rule[field]!r}")


def check_timeout(timeout: Mapping[str, Any]) -> None:
    seconds = timeout.get("attemptDurationSeconds")
    if seconds is not None:
        refuse_unless(seconds >= MIN_TIMEOUT_SECONDS, f"Timeout must be at least {MIN_TIMEOUT_SECONDS} seconds")


def check_submit(
    request: Mapping[str, Any],
    queue: JobQueue | None,
    definition: JobDefinition | None,
    dependencies: Mapping[str, Job | None],
    active_shares: set[str],
) -> None:
    """All rules of SubmitJob that AWS enforces before it answers."""
    payload_bytes = len(json.dumps(request).encode())
    refuse_unless(payload_bytes <= MAX_SUBMIT_BYTES, f"SubmitJob payload exceeds {MAX_SUBMIT_BYTES} bytes")
    check_name(request["jobName"], "Job name")
    if queue is None:
        raise ClientError(f"JobQueue {request['jobQueue']} not found.")
    refuse_unless(queue.enabled, f"JobQueue {queue.name} is disabled.")
    if definition is None:
        raise ClientError(f"JobDefinition {request['jobDefinition']} not found or not ACTIVE.")
    check_overrides(request.get("containerOverrides", {}))
    check_retry_strategy(request.get("retryStrategy", {}))
    check_timeout(request.get("timeout", {}))
    for unsupported in ("eksPropertiesOverride", "ecsPropertiesOverride"):
        refuse_unless(unsupported not in request, f"{unsupported} does not match the job definition's type")
    _check_array(request, definition)
    _check_multi_node(request, queue, definition)
    _check_share(request, queue, active_shares)
    _check_dependencies(request, dependencies)


def _check_array(request: Mapping[str, Any], definition: JobDefinition) -> None:
    if "arrayProperties" not in request:
        return
    size = request["arrayProperties"].get("size", 0)
    refuse_unless(
        MIN_ARRAY_SIZE <= size <= MAX_ARRAY_SIZE,
        f"Array size must be between {MIN_ARRAY_SIZE} and {MAX_ARRAY_SIZE}, found {size}",
    )
    refuse_unless(not definition.is_multi_node, "Array properties are not supported for multi-node parallel jobs")


def _check_multi_node(request: Mapping[str, Any], queue: JobQueue, definition: JobDefinition) -> None:
    if not definition.is_multi_node:
        refuse_unless("nodeOverrides" not in request, "Node overrides need a multi-node job definition")
        refuse_unless(
            "instanceType" not in request.get("containerOverrides", {}), "instanceType needs a multi-node job"
        )
        return
    refuse_unless("containerOverrides" not in request, "Container overrides are not applicable to multi-node jobs")
    refuse_unless(
        all(environment.type is not CapacityType.SPOT for environment in queue.environments),
        f"JobQueue {queue.name} has a Spot compute environment, which multi-node parallel jobs cannot use",
    )
    overrides = request.get("nodeOverrides", {})
    for override in overrides.get("nodePropertyOverrides", ()):
        check_overrides(override.get("containerOverrides", {}))
    if "numNodes" in overrides:
        properties = definition.request["nodeProperties"]
        lowers = [
            int(lower or 0)
            for lower, colon, upper in (
                node_range["targetNodes"].partition(":") for node_range in properties["nodeRangeProperties"]
            )
            if colon and not upper
        ]
        count = overrides["numNodes"]
        refuse_unless(lowers, "numNodes can be overridden only with an open-ended node range")
        refuse_unless(all(lower < count for lower in lowers), "numNodes must be above the open range's lower bound")
        refuse_unless(properties["mainNode"] < count, "numNodes must be above the main node's index")


def _check_share(request: Mapping[str, Any], queue: JobQueue, active_shares: set[str]) -> None:
    share = request.get("shareIdentifier")
    if not queue.fair_share:
        refuse_unless(share is None, f"shareIdentifier is not allowed: {queue.name} has no fair-share policy")
        refuse_unless(
            "schedulingPriorityOverride" not in request,
            f"{queue.name} has no fair-share policy, so no priorities",
        )
        return
    if share is None:
        raise ClientError(f"shareIdentifier must be specified: {queue.name} has a fair-share policy")
    refuse_unless(_SHARE_IDENTIFIER.fullmatch(share), f"Invalid shareIdentifier {share!r}")
    refuse_unless(share in active_shares or len(active_shares) < MAX_ACTIVE_SHARES, "Too many share identifiers")
    priority = request.get("schedulingPriorityOverride", 0)
    refuse_unless(0 <= priority <= MAX_PRIORITY_OVERRIDE, f"Priority must be 0 to {MAX_PRIORITY_OVERRIDE}")


def _check_dependencies(request: Mapping[str, Any], dependencies: Mapping[str, Job | None]) -> None:
    entries = request.get("dependsOn", ())
    size = request.get("arrayProperties", {}).get("size")
    refuse_unless(len(entries) <= MAX_DEPENDENCIES, f"A job can depend on at most {MAX_DEPENDENCIES} jobs")
    for entry in entries:
        job_id, kind = entry.get("jobId"), entry.get("type")
        refuse_unless(kind in {None, "N_TO_N", "SEQUENTIAL"}, f"Invalid dependency type {kind}")
        if kind == "SEQUENTIAL":
            refuse_unless(size is not None, "A SEQUENTIAL dependency needs an array job")
            refuse_unless(job_id is None, "A SEQUENTIAL dependency takes no jobId")
            continue
        refuse_unless(job_id, "A dependency needs a jobId")
        dependency = dependencies.get(job_id or "")
        if dependency is None:
            raise ClientError(f"Dependency job {job_id} does not exist")
        if kind == "N_TO_N":
            refuse_unless(
                dependency.kind is Kind.ARRAY and len(dependency.members) == size,
                "An N_TO_N dependency needs two array jobs of the same size",
            )
