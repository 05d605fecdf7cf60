"""aws-facts of SubmitJob and of reading: what is refused, names and ids, arrays, lists, rates."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.session import get_session

from deploy.local.batch.fault_requests import AgeOut, LostResponse, Throttle
from deploy.local.batch.launch import StandIn
from tests.conformance.conftest import describe, ended, faults_of, register, submit, until


def refused(call: Any, *arguments: Any, **more: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(*arguments, **more)
    return caught.value.response["Error"]["Code"]


def test_the_check_of_answers_finds_what_the_model_does_not_allow() -> None:
    shape = get_session().get_service_model("batch").operation_model("SubmitJob").output_shape
    assert list(faults_of({"jobName": "a", "jobId": "b"}, shape, "answer")) == []
    assert list(faults_of({"jobName": "a"}, shape, "answer")) == ["answer.jobId is missing"]
    assert list(faults_of({"jobName": 1, "jobId": "b", "x": 1}, shape, "answer")) == [
        "answer.jobName is 1, not a string",
        "answer.x is unknown",
    ]


@pytest.mark.parametrize(
    "fault",
    [
        {"jobName": "-starts-badly"},
        {"jobName": "a" * 129},
        {"jobName": "a b"},
        {"jobQueue": "no-such-queue"},
        {"jobDefinition": "no-such-definition"},
        {"jobDefinition": "ok:99"},
        {"arrayProperties": {"size": 1}},
        {"arrayProperties": {"size": 10_001}},
        {"containerOverrides": {"environment": [{"name": "AWS_BATCH_X", "value": "1"}]}},
        {"timeout": {"attemptDurationSeconds": 59}},
        {"retryStrategy": {"attempts": 11}},
        {"shareIdentifier": "tenant"},
        {"dependsOn": [{"jobId": str(number)} for number in range(21)]},
    ],
    ids=lambda fault: next(iter(fault)),
)
def test_what_submitjob_refuses(batch: Any, fault: dict[str, Any]) -> None:
    """1.1: ClientException, HTTP 400."""
    request = {"jobName": "a", "jobQueue": "cpu", "jobDefinition": "ok"} | fault
    assert refused(batch.submit_job, **request) == "ClientException"


def test_calling_twice_makes_two_jobs(batch: Any) -> None:
    """1.2: no client token."""
    assert submit(batch, "ok") != submit(batch, "ok")


def test_a_lost_answer_leaves_a_job(batch: Any, stand_in: StandIn) -> None:
    """1.2: and a name finds it, once ListJobs knows of it."""
    stand_in.arm(LostResponse())
    with pytest.raises(Exception, match="closed"):
        batch.submit_job(jobName="lost-answer", jobQueue="cpu", jobDefinition="ok")
    filters = [{"name": "JOB_NAME", "values": ["lost-answer"]}]

    def found(_: Any) -> bool:
        return len(batch.list_jobs(jobQueue="cpu", filters=filters)["jobSummaryList"]) == 1

    until(batch, submit(batch, "ok"), found)


def test_too_many_calls_get_a_429_that_the_model_does_not_know(batch: Any, stand_in: StandIn) -> None:
    """1.2: TooManyRequestsException."""
    stand_in.arm(Throttle(operation="SubmitJob"))
    with pytest.raises(ClientError) as caught:
        submit(batch, "ok")
    answer = caught.value.response
    assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == ("TooManyRequestsException", 429)


def test_long_overrides_are_taken_and_fail_at_dispatch(batch: Any) -> None:
    """1.3: over 8192 characters, no attempt."""
    overrides = {"environment": [{"name": "LONG", "value": "x" * 9000}]}
    job = ended(batch, submit(batch, "ok", containerOverrides=overrides))
    assert job["status"] == "FAILED"
    assert job["statusReason"].startswith("Container Overrides length must be at most 8192")
    assert job.get("attempts", []) == []


def test_a_bare_name_means_the_latest_revision(batch: Any) -> None:
    """1.1: so pin it."""
    register(batch, "revised")
    register(batch, "revised")
    job = describe(batch, submit(batch, "revised"))
    assert job["jobDefinition"].endswith("/revised:2")


def test_an_unknown_id_is_left_out_and_no_error(batch: Any, stand_in: StandIn) -> None:
    """1.4: so is one that aged out."""
    job_id = submit(batch, "ok")
    ended(batch, job_id)
    stand_in.arm(AgeOut(job_id=job_id))
    assert batch.describe_jobs(jobs=[job_id, "00000000-0000-0000-0000-000000000000"])["jobs"] == []


def test_describejobs_takes_a_hundred_ids(batch: Any) -> None:
    assert batch.describe_jobs(jobs=[str(n) for n in range(100)])["jobs"] == []
    assert refused(batch.describe_jobs, jobs=[str(n) for n in range(101)]) == "ClientException"


def test_listjobs_pages(batch: Any) -> None:
    """Filtered lists ignore the status; pages join without a gap."""
    ids = {submit(batch, "fail") for _ in range(5)}
    filters = [{"name": "JOB_NAME", "values": ["job-fail"]}]

    def listed(_: Any) -> bool:
        pages = batch.get_paginator("list_jobs").paginate(
            jobQueue="cpu", filters=filters, PaginationConfig={"PageSize": 2}
        )
        return ids <= {job["jobId"] for page in pages for job in page["jobSummaryList"]}

    until(batch, next(iter(ids)), listed)
