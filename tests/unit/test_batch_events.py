"""Batch's documents and events → facts: what is read, what is left out, and that nothing raises."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.batch_events import parse_event
from controller.core.facts import JobView, QueueBlocked
from controller.core.job_views import job_view, queue_name

QUEUE_ARN = "arn:aws:batch:us-east-1:123456789012:job-queue/g6e"
DETAIL: dict[str, Any] = {
    "jobArn": "arn:aws:batch:us-east-1:123456789012:job/740ee3ee:12",
    "jobName": "reembed-j-1",
    "jobId": "740ee3ee:12",
    "jobQueue": QUEUE_ARN,
    "status": "FAILED",
    "statusReason": "Essential container in task exited",
    "attempts": [
        {
            "container": {"exitCode": 3, "reason": "a reason", "taskArn": "t"},
            "startedAt": 1700000001000,
            "stoppedAt": 1700000002500,
            "statusReason": "Essential container in task exited",
        }
    ],
    "createdAt": 1700000000123,
    "startedAt": 1700000001000,
    "stoppedAt": 1700000002500,
    "container": {"image": "worker", "exitCode": 3, "environment": [{"name": "A", "value": "b"}]},
    "arrayProperties": {"index": 12, "statusSummary": {}},
    "isCancelled": False,
    "somethingNew": {"nested": [1, 2]},
}
VIEW = JobView(
    batch_job_id="740ee3ee:12",
    name="reembed-j-1",
    queue="g6e",
    status="FAILED",
    status_reason="Essential container in task exited",
    container_reason="a reason",
    exit_code=3,
    created_at=datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC),
    started_at=datetime(2023, 11, 14, 22, 13, 21, tzinfo=UTC),
    stopped_at=datetime(2023, 11, 14, 22, 13, 22, 500000, tzinfo=UTC),
)


def event(detail: object, detail_type: str = "Batch Job State Change", source: str = "aws.batch") -> str:
    return json.dumps({"version": "0", "source": source, "detail-type": detail_type, "detail": detail})


def changed(**fields: Any) -> dict[str, Any]:
    """The detail with other fields; None takes one away."""
    return {name: value for name, value in (DETAIL | fields).items() if value is not None}


def test_a_state_change_is_a_view() -> None:
    assert parse_event(event(DETAIL)) == VIEW


@pytest.mark.parametrize(
    ("detail", "view"),
    [
        pytest.param(
            {"jobId": "a", "status": "SUBMITTED"},
            JobView(batch_job_id="a", name="", queue="", status="SUBMITTED"),
            id="bare",
        ),
        pytest.param(changed(status="FROZEN"), replace(VIEW, status="FROZEN"), id="unknown-status-passes"),
        pytest.param(changed(attempts=None), replace(VIEW, container_reason=None), id="no-attempts"),
        pytest.param(changed(attempts=[]), replace(VIEW, container_reason=None), id="empty-attempts"),
        pytest.param(
            changed(attempts=[*DETAIL["attempts"], {"statusReason": "Host EC2 (instance i-1) terminated."}]),
            replace(VIEW, exit_code=None, container_reason=None),
            id="last-attempt-decides-even-without-a-code",
        ),
        pytest.param(
            changed(statusReason=None, attempts=[{"statusReason": "Host EC2 (instance i-1) terminated."}]),
            replace(VIEW, status_reason="Host EC2 (instance i-1) terminated.", exit_code=None, container_reason=None),
            id="reason-of-the-last-attempt-where-the-job-has-none",
        ),
        pytest.param(changed(isCancelled=True), replace(VIEW, is_cancelled=True), id="cancelled"),
        pytest.param(
            changed(arrayProperties={"size": 3, "statusSummary": {"RUNNING": 1, "FAILED": 2}}),
            replace(VIEW, array_size=3, status_summary={"RUNNING": 1, "FAILED": 2}),
            id="array-parent",
        ),
        pytest.param(
            changed(startedAt=0, stoppedAt="soon"), replace(VIEW, started_at=None, stopped_at=None), id="odd-times"
        ),
        pytest.param(changed(createdAt=10**30), replace(VIEW, created_at=None), id="time-out-of-range"),
        pytest.param(changed(jobName=["x"]), replace(VIEW, name=""), id="name-of-another-type"),
        pytest.param(
            changed(statusReason="a\0b\ud800"),
            replace(VIEW, status_reason="a\N{REPLACEMENT CHARACTER}b?"),
            id="text-postgres-cannot-hold",
        ),
        pytest.param(
            changed(
                attempts=[{"taskProperties": [{"containers": [{"exitCode": 0}, {"exitCode": 9, "reason": "oom"}]}]}]
            ),
            replace(VIEW, exit_code=9, container_reason="oom"),
            id="several-containers-the-failed-one",
        ),
        pytest.param(
            changed(attempts=[], container=None, ecsProperties={"taskProperties": [{"containers": [{"exitCode": 0}]}]}),
            replace(VIEW, exit_code=0, container_reason=None),
            id="ecs-properties",
        ),
    ],
)
def test_holes_and_oddities(detail: dict[str, Any], view: JobView) -> None:
    assert parse_event(event(detail)) == view


def test_a_summary_takes_the_queue_it_was_listed_for() -> None:
    summary = {"jobId": "a", "jobName": "n", "status": "RUNNING", "container": {"exitCode": 1, "reason": "r"}}
    assert job_view(summary, queue=QUEUE_ARN) == JobView(
        batch_job_id="a", name="n", queue="g6e", status="RUNNING", exit_code=1, container_reason="r"
    )


@pytest.mark.parametrize("name", ["g6e", QUEUE_ARN, "arn:aws-cn:batch:cn-north-1:1:job-queue/g6e"])
def test_queue_names(name: str) -> None:
    assert queue_name(name) == "g6e"


@pytest.mark.parametrize(
    "reason",
    [
        "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity requested",
        "MISCONFIGURATION:SERVICE_ROLE_PERMISSIONS – …",
        "UNDETERMINED - Batch job is blocked, root cause is undetermined.",
    ],
)
def test_a_blocked_queue(reason: str) -> None:
    detail = changed(status="RUNNABLE", statusReason=reason)
    assert parse_event(event(detail, "Batch Job Queue Blocked")) == QueueBlocked(queue="g6e", reason=reason)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("", id="empty"),
        pytest.param("not json", id="not-json"),
        pytest.param("[]", id="a-list"),
        pytest.param("[" * 100_000, id="nested-too-deep"),
        pytest.param("1" * 10_000, id="a-number-too-long"),
        pytest.param(event(DETAIL, source="aws.ec2"), id="another-source"),
        pytest.param(event(DETAIL, "Batch Job Definition Change"), id="another-type"),
        pytest.param(event(None), id="no-detail"),
        pytest.param(event([DETAIL]), id="detail-is-a-list"),
        pytest.param(event({"jobId": "a"}), id="no-status"),
        pytest.param(event({"status": "FAILED"}), id="no-id"),
        pytest.param(event({"jobId": 7, "status": "FAILED"}), id="id-of-another-type"),
        pytest.param(event({"jobQueue": QUEUE_ARN}, "Batch Job Queue Blocked"), id="blocked-without-a-reason"),
        pytest.param(event({"statusReason": "x"}, "Batch Job Queue Blocked"), id="blocked-without-a-queue"),
        pytest.param(json.dumps({"source": "aws.batch", "detail-type": ["x"], "detail": DETAIL}), id="odd-type"),
    ],
)
def test_foreign_and_broken_messages_are_none(body: str) -> None:
    assert parse_event(body) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(detail=st.fixed_dictionaries({}, optional={name: JSON | st.just(value) for name, value in DETAIL.items()}))
def test_no_detail_raises(detail: dict[str, Any]) -> None:
    fact = parse_event(event(detail))
    if isinstance(detail.get("jobId"), str) and detail["jobId"] and detail.get("status"):
        assert isinstance(fact, JobView) == isinstance(detail["status"], str)
    else:
        assert fact is None


@given(st.text())
def test_no_body_raises(body: str) -> None:
    assert parse_event(body) is None
