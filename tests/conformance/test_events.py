"""aws-facts 1.10, "Batch Job State Change" over real SQS: parents and children, at least once, in any order."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.batch.config import EventsConfig
from deploy.local.batch.example import example_config
from deploy.local.batch.launch import running
from deploy.local.ministack import Ministack
from deploy.local.resources import client
from tests.conformance.conftest import SCALE, ended, make_client, register, submit, until

SIZE = 8


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An array, and every event of it in the order in which a consumer got them."""
    directory: Path = tmp_path_factory.mktemp("events")
    server = Ministack(directory / "state", log_path=directory / "ministack.log")
    server.start()
    sqs = client("sqs", server.endpoint)
    url = sqs.create_queue(QueueName="events")["QueueUrl"]
    events = EventsConfig(queue_url=url, endpoint_url=server.endpoint, duplicate_probability=0.5, late_probability=0.5)
    config = example_config({"ok": [sys.executable, "-S", "-c", "pass"]}, events=events, time_scale=SCALE, cpu_slots=4)
    with running(config, directory / "logs") as stand_in:
        batch = make_client(stand_in)
        register(batch, "ok")
        parent = submit(batch, "ok", arrayProperties={"size": SIZE})
        found: list[dict[str, Any]] = []

        def all_there(_: Any) -> bool:
            for message in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", []):
                found.append(json.loads(message["Body"]))
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            done = {e["detail"]["jobId"] for e in found if e["detail"]["status"] == "SUCCEEDED"}
            doubled = max(Counter(event["id"] for event in found).values(), default=0) > 1
            return len(done) == SIZE + 1 and doubled

        ended(batch, parent)
        until(batch, parent, all_there)
        yield parent, found
        batch.close()
    sqs.close()
    server.stop()


def test_parent_and_children_have_events(delivered: tuple[str, list[dict[str, Any]]]) -> None:
    parent, events = delivered
    of = {event["detail"]["jobId"] for event in events}
    assert of == {parent, *(f"{parent}:{index}" for index in range(SIZE))}
    for event in events:
        assert (event["source"], event["detail-type"]) == ("aws.batch", "Batch Job State Change")
        assert event["resources"] == [event["detail"]["jobArn"]]
    child = next(e["detail"] for e in events if e["detail"]["jobId"] == f"{parent}:3")
    assert child["arrayProperties"]["index"] == 3


def test_the_submission_itself_has_none(delivered: tuple[str, list[dict[str, Any]]]) -> None:
    assert "SUBMITTED" not in {event["detail"]["status"] for event in delivered[1]}


def test_they_come_twice_and_out_of_order(delivered: tuple[str, list[dict[str, Any]]]) -> None:
    _, events = delivered
    assert max(Counter(event["id"] for event in events).values()) == 2, "a copy has the id of its original"
    order = ["PENDING", "RUNNABLE", "STARTING", "RUNNING", "SUCCEEDED"]
    by_job: dict[str, list[int]] = {}
    for event in events:
        by_job.setdefault(event["detail"]["jobId"], []).append(order.index(event["detail"]["status"]))
    assert any(ranks != sorted(ranks) for ranks in by_job.values())
