"""SubmitJob's parameters: each shape of job, valid by AWS's own model, and the two limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator

from controller.aws.submission import submit_parameters
from controller.ports import Refused, SubmitSpec

SPEC = SubmitSpec(
    name="reembed-j-1",
    queue="g6e",
    job_definition="infer:3",
    size=1,
    assignment_uri="s3://control/assignments/j-1.json",
)
CONTAINER = {"environment": [{"name": "REEMBED_ASSIGNMENT", "value": SPEC.assignment_uri}]}
PLAIN = {
    "jobName": "reembed-j-1",
    "jobQueue": "g6e",
    "jobDefinition": "infer:3",
    "retryStrategy": {"attempts": 1},
    "propagateTags": True,
    "containerOverrides": CONTAINER,
}
MEMORY = {"resourceRequirements": [{"type": "MEMORY", "value": "30000"}]}


@pytest.fixture(scope="module")
def input_shape() -> Any:
    model = botocore.session.get_session().get_service_model("batch")
    return model.operation_model("SubmitJob").input_shape


def nodes(count: int, container: dict[str, Any]) -> dict[str, Any]:
    override = {"targetNodes": "0:", "containerOverrides": container}
    without = {name: value for name, value in PLAIN.items() if name != "containerOverrides"}
    return without | {"nodeOverrides": {"numNodes": count, "nodePropertyOverrides": [override]}}


@pytest.mark.parametrize(
    ("spec", "parameters"),
    [
        pytest.param(SPEC, PLAIN, id="plain"),
        pytest.param(replace(SPEC, size=2), PLAIN | {"arrayProperties": {"size": 2}}, id="array"),
        pytest.param(replace(SPEC, size=10_000), PLAIN | {"arrayProperties": {"size": 10_000}}, id="largest-array"),
        pytest.param(replace(SPEC, size=4, multi_node=True), nodes(4, CONTAINER), id="multi-node"),
        pytest.param(replace(SPEC, multi_node=True), nodes(1, CONTAINER), id="multi-node-of-one"),
        pytest.param(
            replace(SPEC, multi_node=True, memory_mib=30_000), nodes(1, CONTAINER | MEMORY), id="multi-node-memory"
        ),
        pytest.param(replace(SPEC, memory_mib=30_000), PLAIN | {"containerOverrides": CONTAINER | MEMORY}, id="memory"),
        pytest.param(
            replace(SPEC, timeout_seconds=7200), PLAIN | {"timeout": {"attemptDurationSeconds": 7200}}, id="time-out"
        ),
        pytest.param(replace(SPEC, tags={"tenant": "t"}), PLAIN | {"tags": {"tenant": "t"}}, id="tags"),
    ],
)
def test_the_parameters(spec: SubmitSpec, parameters: dict[str, Any], input_shape: Any) -> None:
    assert submit_parameters(spec) == parameters
    report = ParamValidator().validate(parameters, input_shape)
    assert not report.has_errors(), report.generate_report()


@pytest.mark.parametrize("size", [0, -1, 10_001])
def test_a_size_no_job_can_have(size: int) -> None:
    with pytest.raises(Refused) as refused:
        submit_parameters(replace(SPEC, size=size))
    assert refused.value.code == "BadSize"


@pytest.mark.parametrize("multi_node", [False, True])
def test_overrides_too_long_are_refused_before_the_call(multi_node: bool) -> None:
    with pytest.raises(Refused) as refused:
        submit_parameters(replace(SPEC, assignment_uri="s3://control/" + "k" * 7_000, multi_node=multi_node))
    assert refused.value.code == "OverridesTooLong"
    assert "assignment object" in refused.value.message


def test_overrides_just_short_enough_pass() -> None:
    spare = 7_000 - len('{"environment": [{"name": "REEMBED_ASSIGNMENT", "value": ""}]}')
    submit_parameters(replace(SPEC, assignment_uri="u" * (spare - 1)))
    with pytest.raises(Refused):
        submit_parameters(replace(SPEC, assignment_uri="u" * spare))


def test_a_payload_too_long_is_refused_before_the_call() -> None:
    tags = {f"tag-{number}": "v" * 256 for number in range(120)}
    with pytest.raises(Refused) as refused:
        submit_parameters(replace(SPEC, tags=tags))
    assert refused.value.code == "PayloadTooLong"
    assert "tags" in refused.value.message
