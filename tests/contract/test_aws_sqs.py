"""`Inbox` and `Outbox` on a real SQS protocol."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from botocore.exceptions import ClientError

from controller.aws.clients import ClientOptions, Clients
from controller.aws.sqs import SqsInbox, SqsOutbox
from controller.ports import Delivery, Inbox, Outbox, Refused, Throttled, Unavailable


@pytest.fixture
async def queue_url(clients: Clients) -> AsyncIterator[str]:
    url = (await clients.sqs.create_queue(QueueName=f"contract-{uuid.uuid4().hex[:12]}"))["QueueUrl"]
    yield url
    await clients.sqs.delete_queue(QueueUrl=url)


@pytest.fixture
def inbox(clients: Clients, queue_url: str) -> Inbox:
    return SqsInbox(clients.sqs, queue_url)


@pytest.fixture
def outbox(clients: Clients, queue_url: str) -> Outbox:
    return SqsOutbox(clients.sqs, queue_url)


async def raw_message(clients: Clients, queue_url: str) -> Mapping[str, Any]:
    answer = await clients.sqs.receive_message(
        QueueUrl=queue_url, MessageSystemAttributeNames=["All"], MessageAttributeNames=["All"], WaitTimeSeconds=5
    )
    message: Mapping[str, Any] = answer["Messages"][0]
    return message


async def test_what_is_sent_is_received_with_its_attributes(inbox: Inbox, outbox: Outbox) -> None:
    await outbox.send('{"a": "é"}', {"request_id": "r-1", "shard": "7"}, "tenant")
    (delivery,) = await inbox.receive(10, 5)
    assert delivery.body == '{"a": "é"}'
    assert delivery.attributes == {"request_id": "r-1", "shard": "7"}
    assert delivery.receive_count == 1


async def test_an_empty_queue_gives_nothing(inbox: Inbox) -> None:
    assert list(await inbox.receive(100, 0)) == []


async def test_an_empty_attribute_is_left_out(inbox: Inbox, outbox: Outbox) -> None:
    await outbox.send("body", {"shard": "", "tenant": "t"}, "t")
    (delivery,) = await inbox.receive(1, 5)
    assert delivery.attributes == {"tenant": "t"}


@pytest.mark.parametrize(
    ("group", "sent"),
    [("stock-photos_1", "stock-photos_1"), ("g" * 128, "g" * 128), ("g" * 129, None), ("two words", None), ("", None)],
)
async def test_the_group_is_set_where_sqs_takes_it(
    clients: Clients, queue_url: str, outbox: Outbox, group: str, sent: str | None
) -> None:
    await outbox.send("body", {}, group)
    message = await raw_message(clients, queue_url)
    assert message["Attributes"].get("MessageGroupId") == sent


@pytest.mark.parametrize("limit", [1, 10, 25, 64, 200])
async def test_a_backlog_comes_in_rounds_and_never_beyond_the_limit(
    clients: Clients, queue_url: str, inbox: Inbox, limit: int
) -> None:
    bodies = {f"m{number}" for number in range(80)}
    for start in range(0, 80, 10):
        entries = [{"Id": str(n), "MessageBody": f"m{n}"} for n in range(start, start + 10)]
        await clients.sqs.send_message_batch(QueueUrl=queue_url, Entries=entries)
    deliveries = await inbox.receive(limit, 5)
    received = [delivery.body for delivery in deliveries]
    assert len(received) == len(set(received)) == min(limit, 80)
    assert set(received) <= bodies


async def test_a_received_message_is_hidden_until_deleted(inbox: Inbox, outbox: Outbox) -> None:
    for number in range(23):
        await outbox.send(f"m{number}", {}, "t")
    deliveries = await inbox.receive(100, 5)
    assert len(deliveries) == 23
    assert list(await inbox.receive(100, 0)) == []
    await inbox.delete(deliveries)
    assert list(await inbox.receive(100, 0)) == []


async def test_a_message_that_is_not_deleted_comes_again(clients: Clients, queue_url: str, outbox: Outbox) -> None:
    inbox = SqsInbox(clients.sqs, queue_url, visibility_seconds=1)
    await outbox.send("again", {}, "t")
    (first,) = await inbox.receive(10, 5)
    (second,) = await inbox.receive(10, 5)  # a long poll: it waits for the time-out
    assert (second.body, second.receive_count) == ("again", 2)
    assert second.receipt != first.receipt


async def test_a_message_that_is_not_deleted_is_counted_and_never_raised(
    clients: Clients, queue_url: str, outbox: Outbox
) -> None:
    inbox = SqsInbox(clients.sqs, queue_url)
    for number in range(11):
        await outbox.send(f"m{number}", {}, "t")
    deliveries = await inbox.receive(11, 5)
    await inbox.delete([*deliveries, Delivery(body="?", receipt="no such receipt")])
    assert inbox.failed_deletes == 1
    assert list(await inbox.receive(100, 0)) == []


async def test_deleting_nothing_calls_nothing(inbox: Inbox) -> None:
    await inbox.delete([])


async def test_a_queue_that_does_not_exist_is_refused(clients: Clients, queue_url: str) -> None:
    missing = queue_url + "-missing"
    with pytest.raises(Refused) as refused:
        await SqsInbox(clients.sqs, missing).receive(1, 0)
    assert refused.value.code.endswith("NonExistentQueue")
    with pytest.raises(Refused):
        await SqsOutbox(clients.sqs, missing).send("body", {}, "t")
    with pytest.raises(Refused):
        await SqsInbox(clients.sqs, missing).delete([Delivery(body="", receipt="r")])


async def test_no_service_is_unavailable(aws_environment: pytest.MonkeyPatch, unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with Clients(ClientOptions(endpoint_urls={"sqs": url}, sdk_attempts=1)) as clients:
        with pytest.raises(Unavailable):
            await SqsInbox(clients.sqs, f"{url}/000000000000/q").receive(1, 0)
        with pytest.raises(Unavailable):
            await SqsOutbox(clients.sqs, f"{url}/000000000000/q").send("body", {}, "t")


class HalfBrokenSqs:
    """Answers the first call in full, then fails every other one."""

    def __init__(self) -> None:
        self.calls = 0

    async def receive_message(self, **_parameters: object) -> Mapping[str, Any]:
        self.calls += 1
        if self.calls % 2 == 0:
            raise TimeoutError("no answer")
        start = self.calls * 10
        messages = [{"Body": str(number), "ReceiptHandle": str(number)} for number in range(start, start + 10)]
        return {"Messages": messages}


async def test_what_some_calls_received_survives_the_failure_of_others() -> None:
    sqs = HalfBrokenSqs()
    deliveries = await SqsInbox(sqs, "url").receive(30, 0)
    assert sqs.calls >= 3
    assert len(deliveries) >= 20
    assert len({delivery.body for delivery in deliveries}) == len(deliveries)


class FullSqs:
    """At the limit of messages in flight, where a short poll is an error."""

    async def receive_message(self, **_parameters: object) -> Mapping[str, Any]:
        error = {"Error": {"Code": "OverLimit", "Message": "Too many messages in flight"}}
        raise ClientError(error | {"ResponseMetadata": {"HTTPStatusCode": 403}}, "ReceiveMessage")


async def test_too_many_in_flight_is_throttled() -> None:
    with pytest.raises(Throttled):
        await SqsInbox(FullSqs(), "url").receive(10, 0)
