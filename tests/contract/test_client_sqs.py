"""The upstream client against a real SQS protocol: what it sends is admitted, and what comes back is understood."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.core.admission import (
    Amend,
    Cancel,
    Policy,
    Reject,
    Submit,
    TenantPolicy,
    admit,
    rejected,
    request_id,
)
from deploy.local.ministack import Ministack
from deploy.local.resources import QueueName, client, create_queues
from schema.client import MAX_BODY_BYTES, Client, RequestRef, StatusEvent
from schema.messages import MAX_BODY_BYTES as ADMITTED_BODY_BYTES
from schema.messages import Accepted, Finished, MessageType, Payload, Progress, encode

POLICY = Policy(
    tenants={"search": TenantPolicy(("s3://stock/images/",), ("s3://embeddings/search/",), ("*",))},
    models=frozenset({"clip-l@3"}),
    queues={"g6": False},
    max_body_bytes=ADMITTED_BODY_BYTES,
)
MINIMAL = ("stock-2026-12", "s3://stock/images/", "clip-l@3", "s3://embeddings/search/stock")


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("ministack")
    server = Ministack(directory / "state", log_path=directory / "ministack.log")
    server.start()
    yield server.endpoint
    server.stop()


@pytest.fixture
def sqs(endpoint: str) -> Iterator[Any]:
    sqs = client("sqs", endpoint)
    yield sqs
    sqs.close()


@pytest.fixture
def queues(endpoint: str, sqs: Any) -> Iterator[dict[QueueName, str]]:
    urls = create_queues(endpoint)
    yield urls
    for url in urls.values():
        sqs.delete_queue(QueueUrl=url)


@pytest.fixture
def upstream(queues: dict[QueueName, str], sqs: Any) -> Client:
    return Client(queues[QueueName.REQUESTS], queues[QueueName.STATUS], tenant="search", sqs=sqs)


class Controller:
    """As much of one as an upstream service sees: takes a message off the queue, tells status."""

    def __init__(self, sqs: Any, queues: dict[QueueName, str]) -> None:
        self._sqs = sqs
        self._queues = queues

    def take(self) -> tuple[Submit | Cancel | Amend | Reject, dict[str, Any]]:
        received = self._sqs.receive_message(
            QueueUrl=self._queues[QueueName.REQUESTS],
            WaitTimeSeconds=10,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )
        (message,) = received["Messages"]
        self._sqs.delete_message(QueueUrl=self._queues[QueueName.REQUESTS], ReceiptHandle=message["ReceiptHandle"])
        answer = admit(message["Body"], POLICY, datetime.now(UTC))
        if isinstance(answer, Reject):
            self.tell(MessageType.STATUS_REJECTED, rejected(answer, message["Body"]))
        return answer, message

    def tell(self, kind: MessageType, payload: Payload) -> None:
        body = encode(kind, payload, event_id="e", source="reembed", time=datetime.now(UTC))
        self._sqs.send_message(QueueUrl=self._queues[QueueName.STATUS], MessageBody=body)

    def left(self) -> int:
        answer = self._sqs.get_queue_attributes(QueueUrl=self._queues[QueueName.STATUS], AttributeNames=["All"])
        counts = answer["Attributes"]
        return int(counts["ApproximateNumberOfMessages"]) + int(counts["ApproximateNumberOfMessagesNotVisible"])


@pytest.fixture
def controller(sqs: Any, queues: dict[QueueName, str]) -> Controller:
    return Controller(sqs, queues)


def about(ref: RequestRef) -> dict[str, str]:
    return {"request_id": ref.request_id, "tenant": ref.tenant, "idempotency_key": ref.idempotency_key}


def test_a_submit_is_admitted_with_its_attributes(upstream: Client, controller: Controller) -> None:
    deadline = datetime.now(UTC) + timedelta(days=1)
    ref = upstream.submit(*MINIMAL, deadline=deadline, labels={"team": "search"}, index="photos", priority=5)
    answer, message = controller.take()
    assert isinstance(answer, Submit)
    assert answer.request_id == ref.request_id == request_id("search", "stock-2026-12")
    assert answer.message.deadline == deadline
    assert (answer.message.index, answer.message.priority) == ("photos", 5)
    assert answer.origin.event_id == ref.event_id
    assert message["MessageAttributes"]["type"]["StringValue"] == "request.submit"
    assert message["Attributes"]["MessageGroupId"] == "search"
    assert message["Body"].isascii()


def test_sources_and_outputs_in_full_form(upstream: Client, controller: Controller) -> None:
    source = {"kind": "keys", "bucket": "stock", "keys": ["images/\a写真.jpg"]}
    upstream.submit("k", source, "clip-l@3", {"uri": "s3://embeddings/search/", "dtype": "float32"})
    answer, _ = controller.take()
    assert isinstance(answer, Submit)
    assert answer.message.source.model_dump() == source
    assert answer.message.output.dtype == "float32"


def test_cancel_and_amend_are_admitted(upstream: Client, controller: Controller) -> None:
    upstream.cancel("k", "wrong model")
    cancel, message = controller.take()
    assert isinstance(cancel, Cancel)
    assert cancel.message.reason == "wrong model"
    assert message["MessageAttributes"]["type"]["StringValue"] == "request.cancel"
    upstream.cancel("k")
    assert isinstance(controller.take()[0], Cancel)
    upstream.amend("k", priority=0, queues=["g6"])
    amend, _ = controller.take()
    assert isinstance(amend, Amend)
    assert (amend.message.priority, amend.message.queues, amend.message.deadline) == (0, ["g6"], None)


def test_wait_follows_a_request_to_its_end(upstream: Client, controller: Controller) -> None:
    ref = upstream.submit(*MINIMAL)
    controller.take()
    controller.tell(MessageType.STATUS_ACCEPTED, Accepted(**about(ref)))
    progress = Progress(**about(ref), assets=2, done=1, ok=1, bad=0, shards=1, shards_done=0)
    controller.tell(MessageType.STATUS_PROGRESS, progress)
    finished = Finished(**about(ref), assets=2, ok=2, manifest_uri="s3://embeddings/search/m.json")
    controller.tell(MessageType.STATUS_SUCCEEDED, finished)
    seen: list[StatusEvent] = []
    end = upstream.wait(ref, timeout_seconds=30, on_event=seen.append)
    assert end.succeeded
    assert end.data["manifest_uri"] == "s3://embeddings/search/m.json"
    assert {event.type for event in seen} >= {"status.accepted", "status.progress", "status.succeeded"}
    assert controller.left() == 0
    assert upstream.wait(ref, timeout_seconds=0) == end


def test_wait_returns_while_it_is_waiting(upstream: Client, controller: Controller) -> None:
    ref = upstream.submit(*MINIMAL)
    ends: list[StatusEvent] = []
    waiting = threading.Thread(target=lambda: ends.append(upstream.wait(ref, timeout_seconds=30)))
    waiting.start()
    controller.tell(MessageType.STATUS_FAILED, Finished(**about(ref), reason="given up"))
    waiting.join(timeout=30)
    assert [end.type for end in ends] == ["status.failed"]


def test_the_end_of_another_request_is_kept_for_later(upstream: Client, controller: Controller) -> None:
    first, second = upstream.submit("a", *MINIMAL[1:]), upstream.submit("b", *MINIMAL[1:])
    controller.tell(MessageType.STATUS_CANCELLED, Finished(**about(second)))
    controller.tell(MessageType.STATUS_SUCCEEDED, Finished(**about(first)))
    seen: list[StatusEvent] = []
    assert upstream.wait(first, timeout_seconds=30, on_event=seen.append).succeeded
    assert {event.data["idempotency_key"] for event in seen} == {"a"}
    assert upstream.wait(second, timeout_seconds=30).type == "status.cancelled"


def test_a_rejection_ends_the_wait_for_its_message_only(upstream: Client, controller: Controller) -> None:
    good = upstream.submit(*MINIMAL)
    controller.take()
    bad = upstream.submit("stock-2026-12", "s3://stock/private/", "clip-l@3", "s3://embeddings/search/x")
    assert isinstance(controller.take()[0], Reject)
    end = upstream.wait(bad, timeout_seconds=30)
    assert end.type == "status.rejected"
    assert (end.data["code"], end.data["field"]) == ("forbidden_bucket", "data.source.prefix")
    assert json.loads(end.data["original"])["id"] == bad.event_id
    with pytest.raises(TimeoutError, match=good.request_id):
        upstream.wait(good, timeout_seconds=0)


def test_an_event_stays_on_the_queue_when_its_reader_fails(upstream: Client, controller: Controller) -> None:
    ref = upstream.submit(*MINIMAL)
    controller.tell(MessageType.STATUS_ACCEPTED, Accepted(**about(ref)))

    def fails(event: StatusEvent) -> None:
        raise RuntimeError(event.type)

    with pytest.raises(RuntimeError, match=r"status\.accepted"):
        upstream.wait(ref, timeout_seconds=30, on_event=fails)
    assert controller.left() == 1


def test_mistakes_that_the_client_knows_of_are_not_sent(
    upstream: Client, controller: Controller, queues: dict[QueueName, str], sqs: Any
) -> None:
    with pytest.raises(ValueError, match="time zone"):
        upstream.submit(*MINIMAL, deadline=datetime(2027, 1, 1))
    with pytest.raises(ValueError, match="not an S3 URI"):
        upstream.submit("k", "/data/photos", "clip-l@3", "s3://embeddings/search/")
    keys = [f"images/{number:0500}" for number in range(1000)]
    with pytest.raises(ValueError, match="manifest"):
        upstream.submit("k", {"kind": "keys", "bucket": "stock", "keys": keys}, "clip-l@3", "s3://embeddings/x")
    with pytest.raises(ValueError, match="status_queue_url"):
        Client(queues[QueueName.REQUESTS], tenant="search", sqs=sqs).wait(RequestRef("t", "k", "e"), 1)
    counts = sqs.get_queue_attributes(QueueUrl=queues[QueueName.REQUESTS], AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessages"] == "0"


def test_the_client_knows_the_limit_of_the_contract() -> None:
    assert MAX_BODY_BYTES == ADMITTED_BODY_BYTES
