"""What the doctor makes of the answers of AWS."""

from __future__ import annotations

from typing import Any

import pytest

from controller.commands.checks import Finding, Verdict, judge_definition, judge_queue, judge_sqs

REDRIVE = {"ApproximateNumberOfMessages": "7", "RedrivePolicy": '{"maxReceiveCount": 5, "deadLetterTargetArn": "a"}'}
ENABLED = {"state": "ENABLED", "status": "VALID"}
ACTIVE = {"status": "ACTIVE", "retryStrategy": {"attempts": 1}}


def assert_verdict(found: Finding, verdict: Verdict, words: str) -> None:
    assert found.verdict is verdict
    assert words in found.detail
    assert bool(found.fix) == (verdict is not Verdict.OK), "a fix for all that is not well"


@pytest.mark.parametrize(
    ("url", "attributes", "verdict", "words"),
    [
        ("https://sqs/1/requests", REDRIVE, Verdict.OK, "about 7 waiting"),
        ("https://sqs/1/requests", {"ApproximateNumberOfMessages": "0"}, Verdict.WARN, "no dead-letter queue"),
        ("https://sqs/1/requests.fifo", REDRIVE, Verdict.FAIL, "FIFO"),
    ],
)
def test_sqs_queues(url: str, attributes: dict[str, str], verdict: Verdict, words: str) -> None:
    assert_verdict(judge_sqs("sqs requests", url, attributes), verdict, words)


@pytest.mark.parametrize(
    ("queue", "verdict", "words"),
    [
        (ENABLED, Verdict.OK, "ENABLED"),
        (ENABLED | {"state": "DISABLED"}, Verdict.FAIL, "DISABLED"),
        (ENABLED | {"status": "INVALID", "statusReason": "no environment"}, Verdict.FAIL, "no environment"),
        (None, Verdict.FAIL, "no such job queue"),
    ],
)
def test_batch_queues(queue: dict[str, Any] | None, verdict: Verdict, words: str) -> None:
    assert_verdict(judge_queue("g6e", queue), verdict, words)


@pytest.mark.parametrize(
    ("definition", "verdict", "words"),
    [
        (ACTIVE, Verdict.OK, "ACTIVE"),
        ({"status": "ACTIVE"}, Verdict.OK, "ACTIVE"),
        (ACTIVE | {"retryStrategy": {"attempts": 3}}, Verdict.WARN, "retries 3 times"),
        (ACTIVE | {"status": "INACTIVE"}, Verdict.FAIL, "INACTIVE"),
        (None, Verdict.FAIL, "no such revision"),
    ],
)
def test_job_definitions(definition: dict[str, Any] | None, verdict: Verdict, words: str) -> None:
    assert_verdict(judge_definition("infer:1", definition), verdict, words)
