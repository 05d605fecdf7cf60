"""The SQS that the embedded stack offers behaves as the product relies on; also that ministack keeps to loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from deploy.local.ministack import Ministack
from deploy.local.resources import MAX_RECEIVES, BucketName, QueueName, client, create_buckets, create_queues


@pytest.fixture(scope="module")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    directory = tmp_path_factory.mktemp("ministack")
    server = Ministack(directory / "state", log_path=directory / "ministack.log")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def sqs(ministack: Ministack) -> Iterator[Any]:
    sqs = client("sqs", ministack.endpoint)
    yield sqs
    sqs.close()


@pytest.fixture
def queue(sqs: Any) -> Iterator[str]:
    url = sqs.create_queue(QueueName="test")["QueueUrl"]
    yield url
    sqs.delete_queue(QueueUrl=url)


def test_it_listens_on_loopback_and_on_one_port_only(ministack: Ministack) -> None:
    listening = {
        (connection.laddr.ip, connection.laddr.port)
        for process in psutil.process_iter(["cmdline"])
        if process.info["cmdline"] and "ministack" in process.info["cmdline"]
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert ("127.0.0.1", ministack.port) in listening
    assert {address for address, _ in listening} == {"127.0.0.1"}


def test_queues_and_buckets_are_there_with_dead_letter_queues(sqs: Any, ministack: Ministack) -> None:
    create_buckets(ministack.endpoint)
    urls = create_queues(ministack.endpoint)
    assert set(urls) == set(QueueName)
    for url in urls.values():
        attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])["Attributes"]
        policy = json.loads(attributes["RedrivePolicy"])
        assert policy["deadLetterTargetArn"].endswith("-dlq")
        assert int(policy["maxReceiveCount"]) == MAX_RECEIVES
    s3 = client("s3", ministack.endpoint)
    assert {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]} >= set(BucketName)
    s3.close()


def test_attributes_travel_with_a_message(sqs: Any, queue: str) -> None:
    attribute = {"StringValue": "r-1", "DataType": "String"}
    sqs.send_message(QueueUrl=queue, MessageBody="body ✓", MessageAttributes={"request_id": attribute})
    [message] = sqs.receive_message(QueueUrl=queue, MessageAttributeNames=["All"], MessageSystemAttributeNames=["All"])[
        "Messages"
    ]
    assert message["Body"] == "body ✓"
    assert message["MessageAttributes"]["request_id"]["StringValue"] == "r-1"
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert int(message["Attributes"]["SentTimestamp"]) > 1_700_000_000_000


def test_a_received_message_is_hidden_until_released(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="once")
    [message] = sqs.receive_message(QueueUrl=queue)["Messages"]
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    [again] = sqs.receive_message(QueueUrl=queue)["Messages"]
    assert again["MessageId"] == message["MessageId"]
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=again["ReceiptHandle"])
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)


def test_a_message_received_too_often_goes_to_the_dead_letter_queue(sqs: Any, queue: str) -> None:
    dead = sqs.create_queue(QueueName="test-dlq")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2})
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": policy})
    sqs.send_message(QueueUrl=queue, MessageBody="poison")
    for _ in range(2):
        assert sqs.receive_message(QueueUrl=queue, VisibilityTimeout=0)["Messages"]
    assert "Messages" not in sqs.receive_message(QueueUrl=queue, VisibilityTimeout=0)
    [message] = sqs.receive_message(QueueUrl=dead)["Messages"]
    assert message["Body"] == "poison"


def test_a_long_poll_ends_when_a_message_comes(sqs: Any, queue: str, ministack: Ministack) -> None:
    received: list[dict[str, Any]] = []

    def poll() -> None:
        poller = client("sqs", ministack.endpoint)
        received.append(poller.receive_message(QueueUrl=queue, WaitTimeSeconds=20))
        poller.close()

    thread = threading.Thread(target=poll)
    thread.start()
    sqs.send_message(QueueUrl=queue, MessageBody="now")
    thread.join(timeout=15)
    assert not thread.is_alive()
    assert received[0]["Messages"][0]["Body"] == "now"


def test_a_batch_of_ten_is_accepted_and_an_eleventh_is_not(sqs: Any, queue: str) -> None:
    entries = [{"Id": str(number), "MessageBody": str(number)} for number in range(10)]
    assert len(sqs.send_message_batch(QueueUrl=queue, Entries=entries)["Successful"]) == 10
    with pytest.raises(sqs.exceptions.TooManyEntriesInBatchRequest):
        sqs.send_message_batch(QueueUrl=queue, Entries=[*entries, {"Id": "10", "MessageBody": "10"}])
