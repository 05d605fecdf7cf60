"""Any message on any queue: no loop dies, nothing accepted is lost (I1), and the good ones between finish."""

from __future__ import annotations

import random
import uuid

import pytest
from aiobotocore.session import get_session

from controller.aws.clients import ClientOptions, Clients
from controller.aws.sqs import SqsInbox
from deploy.local.ministack import Ministack, credentials
from tests.fuzz.bodies import Bodies
from tests.fuzz.flows import Events, Flow, Reports, Requests
from tests.ports import MemoryInbox
from tests.reports.site import Site

FLOWS = [Requests, Reports, Events]
#: Bad messages for each good one.
BAD = 9


async def through_the_port(flow: Flow, inbox: MemoryInbox, messages: int, seed: int) -> None:
    """In lots, each of which the loop takes up entirely; a bug of the loop ends the test."""
    site = flow.site
    bodies = Bodies(seed, flow.sample)
    await flow.begin()
    inbox.waiting.clear()
    done = len(inbox.deleted)
    for start in range(0, messages, 500):
        for number in range(start, min(messages, start + 500)):
            inbox.put(flow.good() if number % (BAD + 1) == 0 else bodies.bad())
        while inbox.waiting:
            await site.step(flow.loop)
            assert site.replica.errors == []
    assert inbox.taken == {}
    assert len(inbox.deleted) == done + messages
    await flow.end(messages)


def inbox_of(site: Site, flow: type[Flow]) -> MemoryInbox:
    return {Requests: site.requests, Reports: site.reports, Events: site.events}[flow]


@pytest.mark.parametrize("flow", FLOWS)
async def test_no_message_stops_a_loop(site: Site, flow: type[Flow]) -> None:
    await through_the_port(flow(site), inbox_of(site, flow), 400, 1)


@pytest.mark.long
@pytest.mark.parametrize("flow", FLOWS)
async def test_no_message_of_100_000_stops_a_loop(site: Site, flow: type[Flow]) -> None:
    await through_the_port(flow(site), inbox_of(site, flow), 100_000, 2026)


async def through_sqs(site: Site, ministack: Ministack, kind: type[Flow], messages: int) -> None:
    """The same by SendMessage and ReceiveMessage, shuffled, every tenth message sent twice."""
    async with Clients(ClientOptions(sdk_attempts=1), get_session()) as clients:
        url = (await clients.sqs.create_queue(QueueName=f"fuzz-{uuid.uuid4().hex[:12]}"))["QueueUrl"]
        flow = kind(site)
        await flow.begin()
        inbox = SqsInbox(clients.sqs, url)
        name = {Requests: "requests", Reports: "reports", Events: "batch_events"}[kind]
        object.__setattr__(site.replica.context.inboxes, name, inbox)
        bodies = Bodies(7, flow.sample, sendable=True)
        lot = [flow.good() if n % (BAD + 1) == 0 else bodies.bad() for n in range(messages * 10 // 11)]
        lot += lot[: messages - len(lot)]
        random.Random(7).shuffle(lot)
        for body in lot:
            await clients.sqs.send_message(QueueUrl=url, MessageBody=body)
        taken = 0
        while taken < messages:
            before = site.replica.recorder.counts[COUNTED[kind]]
            await site.step(flow.loop)
            assert site.replica.errors == []
            taken += site.replica.recorder.counts[COUNTED[kind]] - before
        attributes = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        left = (await clients.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=attributes))["Attributes"]
        assert set(left.values()) == {"0"}
        object.__setattr__(site.replica.context.inboxes, name, inbox_of(site, kind))
        await flow.end(messages)


COUNTED = {Requests: "requests_received", Reports: "reports_received", Events: "batch_events"}


@pytest.fixture
def sqs(ministack: Ministack, monkeypatch: pytest.MonkeyPatch) -> Ministack:
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", ministack.endpoint)
    return ministack


@pytest.mark.parametrize("flow", FLOWS)
async def test_no_message_over_sqs_stops_a_loop(site: Site, sqs: Ministack, flow: type[Flow]) -> None:
    await through_sqs(site, sqs, flow, 110)


@pytest.mark.long
@pytest.mark.parametrize("flow", FLOWS)
async def test_no_message_of_2_000_over_sqs_stops_a_loop(site: Site, sqs: Ministack, flow: type[Flow]) -> None:
    await through_sqs(site, sqs, flow, 2_000)
