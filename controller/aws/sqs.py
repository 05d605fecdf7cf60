"""SQS as `Inbox` and `Outbox`. It moves bodies and attributes, and reads neither.

Delivery is at least once and unordered: a delete that fails, or a receive whose answer is lost, brings the message
again after its visibility time-out. Hence per-entry failures of a delete are counted and logged, never raised.
Fails with the ports' Unavailable, Throttled or Refused.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import structlog

from controller.aws.clients import SdkClient
from controller.aws.errors import translated
from controller.ports import Delivery, PortError

MOST_PER_CALL = 10
LONGEST_POLL_SECONDS = 20
WIDEST_ROUND = 16  # receive calls at once
VISIBILITY_SECONDS = 60

_GROUP = re.compile(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}")  # what SQS takes as a MessageGroupId
_log = structlog.get_logger(__name__)


class SqsInbox:
    """One queue to take messages from.

    `visibility_seconds` covers one step of the loop that reads here, commit included, with room to spare.
    """

    def __init__(self, client: SdkClient, queue_url: str, visibility_seconds: int = VISIBILITY_SECONDS) -> None:
        self._client = client
        self._queue_url = queue_url
        self._visibility_seconds = visibility_seconds
        self.failed_deletes = 0
        """Messages that SQS did not delete though asked; each comes again. For a metric."""

    async def receive(self, limit: int, wait_seconds: float) -> Sequence[Delivery]:
        """Up to `limit` deliveries: one long poll, then, while the queue keeps giving, wider and wider rounds.

        A round that comes back less than half full is the last, so that a trickle costs a call or two, and a backlog
        a handful of round trips for hundreds of messages.
        """
        received = list(await self._poll(min(limit, MOST_PER_CALL), _poll_seconds(wait_seconds)))
        asked, calls = MOST_PER_CALL, 1
        found = len(received)
        while len(received) < limit and found * 2 >= asked:
            calls = min(calls * 2, WIDEST_ROUND, ceil((limit - len(received)) / MOST_PER_CALL))
            asked = min(calls * MOST_PER_CALL, limit - len(received))
            messages = await self._round(asked)
            received.extend(messages)
            found = len(messages)
        return received

    async def delete(self, deliveries: Sequence[Delivery]) -> None:
        """Delete them, ten a call, calls in parallel. Raises only when a whole call fails."""
        starts = range(0, len(deliveries), MOST_PER_CALL)
        calls = [self._delete_some(deliveries[start : start + MOST_PER_CALL]) for start in starts]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def _round(self, wanted: int) -> Sequence[Delivery]:
        """Short polls in parallel. What one call received must not be lost for the failure of another."""
        sizes = [min(MOST_PER_CALL, wanted - start) for start in range(0, wanted, MOST_PER_CALL)]
        answers = await asyncio.gather(*(self._poll(size, 0) for size in sizes), return_exceptions=True)
        deliveries: list[Delivery] = []
        for answer in answers:
            if isinstance(answer, PortError):
                _log.warning("receive_failed", queue_url=self._queue_url, error=str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                deliveries.extend(answer)
        return deliveries

    async def _poll(self, most: int, wait_seconds: int) -> Sequence[Delivery]:
        with translated():
            answer = await self._client.receive_message(
                QueueUrl=self._queue_url,
                MaxNumberOfMessages=most,
                WaitTimeSeconds=wait_seconds,
                VisibilityTimeout=self._visibility_seconds,
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
                MessageAttributeNames=["All"],
            )
        return [_delivery(message) for message in answer.get("Messages", ())]

    async def _delete_some(self, deliveries: Sequence[Delivery]) -> None:
        entries = [{"Id": str(number), "ReceiptHandle": delivery.receipt} for number, delivery in enumerate(deliveries)]
        with translated():
            answer = await self._client.delete_message_batch(QueueUrl=self._queue_url, Entries=entries)
        failed = answer.get("Failed", ())
        if failed:
            self.failed_deletes += len(failed)
            codes = sorted({str(entry.get("Code")) for entry in failed})
            _log.warning("delete_failed", queue_url=self._queue_url, messages=len(failed), codes=codes)


class SqsOutbox:
    """One queue to send to."""

    def __init__(self, client: SdkClient, queue_url: str) -> None:
        self._client = client
        self._queue_url = queue_url

    async def send(self, body: str, attributes: Mapping[str, str], group: str) -> None:
        """Send one message. `group`, a tenant, makes the queue a fair one where it can be a MessageGroupId."""
        extra: dict[str, Any] = {}
        if _GROUP.fullmatch(group):
            extra["MessageGroupId"] = group
        with translated():
            await self._client.send_message(
                QueueUrl=self._queue_url,
                MessageBody=body,
                # SQS refuses an attribute without a value.
                MessageAttributes={
                    name: {"DataType": "String", "StringValue": value} for name, value in attributes.items() if value
                },
                **extra,
            )


def _poll_seconds(wait_seconds: float) -> int:
    return min(LONGEST_POLL_SECONDS, max(0, ceil(wait_seconds)))


def _delivery(message: Mapping[str, Any]) -> Delivery:
    attributes = message.get("MessageAttributes", {})
    return Delivery(
        body=message["Body"],
        receipt=message["ReceiptHandle"],
        receive_count=int(message.get("Attributes", {}).get("ApproximateReceiveCount", 1)),
        attributes={
            name: attribute["StringValue"] for name, attribute in attributes.items() if "StringValue" in attribute
        },
    )
