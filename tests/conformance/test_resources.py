"""aws-facts of what stands around jobs: environments, queues, definitions, tags, dependencies."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.conformance.conftest import describe, ended, running_job, submit

ENVIRONMENT = {"maxvCpus": 16, "instanceTypes": ["g6.xlarge"], "type": "SPOT", "subnets": ["s-1"], "minvCpus": 0}


def create_environment(batch: Any, name: str) -> None:
    batch.create_compute_environment(computeEnvironmentName=name, type="MANAGED", computeResources=ENVIRONMENT)


def create_queue(batch: Any, name: str, environment: str) -> None:
    order = [{"order": 1, "computeEnvironment": environment}]
    batch.create_job_queue(jobQueueName=name, priority=1, computeEnvironmentOrder=order, tags={"team": "search"})


def refused(call: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    return caught.value.response["Error"]["Message"]


def test_an_environment_and_its_queue(batch: Any) -> None:
    create_environment(batch, "made")
    create_queue(batch, "made", "made")
    [environment] = batch.describe_compute_environments(computeEnvironments=["made"])["computeEnvironments"]
    [queue] = batch.describe_job_queues(jobQueues=["made"])["jobQueues"]
    assert environment["computeResources"]["type"] == "SPOT"
    assert queue["computeEnvironmentOrder"] == [
        {"order": 1, "computeEnvironment": environment["computeEnvironmentArn"]}
    ]
    assert "already exists" in refused(create_environment, batch=batch, name="made")
    assert "already exists" in refused(create_queue, batch=batch, name="made", environment="made")


def test_a_disabled_queue_takes_nothing_and_can_go(batch: Any) -> None:
    create_environment(batch, "closing")
    create_queue(batch, "closing", "closing")
    assert "DISABLED" in refused(batch.delete_job_queue, jobQueue="closing")
    batch.update_job_queue(jobQueue="closing", state="DISABLED")
    assert refused(batch.submit_job, jobName="late", jobQueue="closing", jobDefinition="ok")
    batch.delete_job_queue(jobQueue="closing")
    assert batch.describe_job_queues(jobQueues=["closing"])["jobQueues"] == []


def test_definitions_by_name_and_status(batch: Any) -> None:
    known = batch.describe_job_definitions(jobDefinitionName="ok", status="ACTIVE")["jobDefinitions"]
    assert [one["jobDefinitionName"] for one in known] == ["ok"] * len(known)
    container = known[0]["containerProperties"]
    gone = batch.register_job_definition(jobDefinitionName="gone", type="container", containerProperties=container)
    batch.deregister_job_definition(jobDefinition=gone["jobDefinitionArn"])
    [found] = batch.describe_job_definitions(jobDefinitions=[gone["jobDefinitionArn"]])["jobDefinitions"]
    assert found["status"] == "INACTIVE"
    assert refused(batch.submit_job, jobName="late", jobQueue="cpu", jobDefinition="gone:1")


def test_tags_of_jobs_and_queues(batch: Any) -> None:
    job = describe(batch, submit(batch, "ok", tags={"request": "r-1"}))
    batch.tag_resource(resourceArn=job["jobArn"], tags={"more": "1"})
    assert batch.list_tags_for_resource(resourceArn=job["jobArn"])["tags"] == {"request": "r-1", "more": "1"}


def test_what_is_at_the_front_of_a_queue(batch: Any) -> None:
    create_environment(batch, "narrow")
    create_queue(batch, "narrow", "narrow")
    batch.get_job_queue_snapshot(jobQueue="narrow")


def test_a_job_waits_for_another(batch: Any) -> None:
    first = submit(batch, "sleep")
    second = submit(batch, "ok", dependsOn=[{"jobId": first}])
    running_job(batch, first)
    assert describe(batch, second)["status"] == "PENDING"
    batch.terminate_job(jobId=first, reason="enough")
    assert ended(batch, second)["status"] == "FAILED", "what it waited for failed"


def test_children_wait_for_each_other(batch: Any) -> None:
    one_by_one = submit(batch, "ok", arrayProperties={"size": 3}, dependsOn=[{"type": "SEQUENTIAL"}])
    after = submit(batch, "ok", arrayProperties={"size": 3}, dependsOn=[{"jobId": one_by_one, "type": "N_TO_N"}])
    ended(batch, after)
    before = [describe(batch, f"{one_by_one}:{index}") for index in range(3)]
    later = [describe(batch, f"{after}:{index}") for index in range(3)]
    assert [job["status"] for job in before + later] == ["SUCCEEDED"] * 6
    assert all(one["stoppedAt"] <= two["startedAt"] for one, two in pairwise(before))
    assert all(one["stoppedAt"] <= two["startedAt"] for one, two in zip(before, later, strict=True))
