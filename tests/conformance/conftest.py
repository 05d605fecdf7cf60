"""The Batch stand-in as stock boto3 sees it. Every answer is held against botocore's own service model.

botocore drops what its model does not know, so the raw body is checked, before it is parsed, for every test alike.

Left out, since no stand-in can show them: account quotas beyond the rate of calls, prices, log streams in CloudWatch,
and service roles.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.model import Shape

from deploy.local.batch.example import example_config
from deploy.local.batch.launch import StandIn, running

SCALE = 0.01
LIMIT_SECONDS = 30.0
Job = dict[str, Any]

#: The model calls it required, and AWS leaves it out of a job that has not started.
MISSING_BEFORE_START = {"JobDetail": {"startedAt"}}

#: Image → program. `sleep` ends on SIGTERM, `deaf` does not.
PROGRAMS = {
    "ok": "pass",
    "fail": "raise SystemExit(3)",
    "sleep": "import time; time.sleep(60)",
    "deaf": "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); "
    "time.sleep(60)",
    "environment": "import os, json; print(json.dumps(dict(os.environ)), flush=True)",
}


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    images = {name: [sys.executable, "-S", "-c", program] for name, program in PROGRAMS.items()}
    with running(example_config(images, time_scale=SCALE, cpu_slots=4), tmp_path_factory.mktemp("batch")) as started:
        yield started


@pytest.fixture(scope="module")
def batch(stand_in: StandIn) -> Iterator[Any]:
    client = make_client(stand_in)
    for name in PROGRAMS:
        register(client, name)
    yield client
    client.close()


def make_client(stand_in: StandIn) -> Any:
    client = boto3.client(
        "batch",
        endpoint_url=stand_in.url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"total_max_attempts": 1}),
    )
    client.meta.events.register("before-parse.batch", hold_against_the_model)
    return client


def hold_against_the_model(operation_model: Any, response_dict: dict[str, Any], **_: Any) -> None:
    """AssertionError for an answer that the model of this operation does not allow."""
    if response_dict["status_code"] < 300:
        faults = list(faults_of(json.loads(response_dict["body"]), operation_model.output_shape, "answer"))
        assert not faults, f"{operation_model.name}: {faults}"


def faults_of(value: Any, shape: Shape, place: str) -> Iterator[str]:
    """Every way in which a JSON value differs from its shape."""
    kinds = {"string": str, "integer": int, "long": int, "boolean": bool, "list": list, "structure": dict, "map": dict}
    kind = kinds.get(shape.type_name)
    if kind is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        yield f"{place} is {value!r}, not a {shape.type_name}"
    elif shape.type_name == "list":
        for number, item in enumerate(value):
            yield from faults_of(item, shape.member, f"{place}[{number}]")
    elif shape.type_name == "map":
        for name, item in value.items():
            yield from faults_of(item, shape.value, f"{place}.{name}")
    elif shape.type_name == "structure":
        required = set(shape.required_members) - MISSING_BEFORE_START.get(shape.name, set())
        yield from (f"{place}.{name} is missing" for name in sorted(required) if name not in value)
        for name, item in value.items():
            if name not in shape.members:
                yield f"{place}.{name} is unknown"
            else:
                yield from faults_of(item, shape.members[name], f"{place}.{name}")
    elif shape.type_name == "string" and shape.enum and value not in shape.enum:
        yield f"{place} is {value!r}, not one of {shape.enum}"


def register(client: Any, name: str, **changes: Any) -> None:
    container = {
        "image": name,
        "resourceRequirements": [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "1024"}],
    }
    client.register_job_definition(
        jobDefinitionName=name, **{"type": "container", "containerProperties": container} | changes
    )


def submit(client: Any, definition: str, queue: str = "cpu", **more: Any) -> str:
    """The id of a job named after its definition."""
    return client.submit_job(jobName=f"job-{definition}", jobQueue=queue, jobDefinition=definition, **more)["jobId"]


def describe(client: Any, job_id: str) -> Job:
    [job] = client.describe_jobs(jobs=[job_id])["jobs"]
    return job


def until(client: Any, job_id: str, condition: Callable[[Job], Any]) -> Job:
    """The job as soon as the condition holds of it."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition(job := describe(client, job_id)):
        assert time.monotonic() < deadline, f"{job['status']} {job.get('statusReason')}"
        time.sleep(0.03)
    return job


def ended(client: Any, job_id: str) -> Job:
    return until(client, job_id, lambda job: job["status"] in ("SUCCEEDED", "FAILED"))


def log_of(stand_in: StandIn, job: Job) -> str:
    """What the job's container has printed so far."""
    stream = job["container"]["logStreamName"]
    [log] = stand_in.log_dir.rglob(f"*{stream.rpartition('/')[2]}*")
    return log.read_text()


def running_job(client: Any, job_id: str) -> Job:
    return until(client, job_id, lambda job: job["status"] == "RUNNING")
