"""A small client for upstream services: one file, boto3 and the standard library, synchronous. Copy it if you like.

    client = Client(requests_queue_url, status_queue_url, tenant="search")
    ref = client.submit("stock-2026-12", "s3://stock/images/", "clip-l@3", "s3://embeddings/search/stock")
    event = client.wait(ref, timeout_seconds=6 * 3600)

It wraps payloads into CloudEvents, sets the SQS attributes and correlates the answers. It checks nothing that the
controller checks: a refused message comes back as `status.rejected` with the field and the fix. Sending again
after any doubt is safe, since (tenant, idempotency_key) names the request.

A status queue has one consumer: `wait` takes every message off it, and remembers the end of requests that were
not waited for. Processes that cannot have a queue each poll `GET /api/v1/requests/{request_id}` instead.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import boto3  # pyright: ignore[reportMissingTypeStubs] (a runtime dependency; its stubs are not)

MAX_BODY_BYTES = 256 * 1024
FINAL = ("status.succeeded", "status.failed", "status.cancelled")


@dataclass(frozen=True)
class RequestRef:
    """What the sender keeps. `event_id` is the message's own id: a rejection names it."""

    tenant: str
    idempotency_key: str
    event_id: str

    @property
    def request_id(self) -> str:
        """The controller's name of the request; it follows from tenant and key."""
        return "r-" + hashlib.sha256(f"{self.tenant}\0{self.idempotency_key}".encode()).hexdigest()[:20]


@dataclass(frozen=True)
class StatusEvent:
    """One status event; `data` is the payload that docs/contracts.md describes for `type`."""

    type: str
    data: Mapping[str, Any]

    @property
    def succeeded(self) -> bool:
        return self.type == "status.succeeded"

    def about(self, ref: RequestRef) -> bool:
        """Whether it tells of this request, or refuses this very message."""
        if self.type == "status.rejected":
            return self.data.get("event_id") == ref.event_id
        return self.data.get("request_id") == ref.request_id

    @property
    def final(self) -> bool:
        """Whether nothing follows: a request's end, or the refusal of a message."""
        return self.type in FINAL or self.type == "status.rejected"


class Client:
    """One tenant's way in. Errors of SQS come through as botocore's own; every call may be repeated."""

    def __init__(
        self,
        requests_queue_url: str,
        status_queue_url: str | None = None,
        *,
        tenant: str,
        event_source: str = "urn:reembed:client",
        sqs: Any = None,
    ) -> None:
        self._requests_queue_url = requests_queue_url
        self._status_queue_url = status_queue_url
        self._tenant = tenant
        self._event_source = event_source
        self._sqs: Any = sqs if sqs is not None else boto3.client("sqs")  # pyright: ignore[reportUnknownMemberType]
        self._ends: dict[str, StatusEvent] = {}

    def submit(
        self,
        idempotency_key: str,
        source: str | Mapping[str, Any],
        model: str,
        output: str | Mapping[str, Any],
        *,
        deadline: datetime | None = None,
        **optional: Any,
    ) -> RequestRef:
        """Ask for `source` to be embedded. `source` is s3://bucket/prefix or an object with `kind`, `output` a URI
        or an object; `optional` are the contract's other fields (index, priority, queues, labels, …)."""
        fields = {
            "source": _prefix_source(source) if isinstance(source, str) else source,
            "model": model,
            "output": {"uri": output} if isinstance(output, str) else output,
            "deadline": _rfc3339(deadline),
            **optional,
        }
        return self._send("request.submit", idempotency_key, fields)

    def cancel(self, idempotency_key: str, reason: str | None = None) -> RequestRef:
        """Stop a request and what runs of it; it ends with `status.cancelled`."""
        return self._send("request.cancel", idempotency_key, {"reason": reason})

    def amend(
        self,
        idempotency_key: str,
        *,
        priority: int | None = None,
        deadline: datetime | None = None,
        queues: Sequence[str] | None = None,
    ) -> RequestRef:
        """Change what is given and leave the rest. There is no answer but a refusal."""
        fields = {"priority": priority, "deadline": _rfc3339(deadline), "queues": queues}
        return self._send("request.amend", idempotency_key, fields)

    def wait(
        self, ref: RequestRef, timeout_seconds: float, on_event: Callable[[StatusEvent], None] | None = None
    ) -> StatusEvent:
        """The last event about `ref`: the end of its request, or the refusal of its message. `on_event` sees each
        event about it on the way, some perhaps twice or late. TimeoutError when the time is over first."""
        if self._status_queue_url is None:
            raise ValueError("wait() needs status_queue_url; without one poll GET /api/v1/requests/{request_id}")
        deadline = time.monotonic() + timeout_seconds
        while (end := self._end_of(ref)) is None:
            left_seconds = deadline - time.monotonic()
            if left_seconds <= 0:
                raise TimeoutError(f"request {ref.request_id} had not ended after {timeout_seconds} s")
            for event in self._receive(wait_seconds=min(20, max(1, int(left_seconds)))):
                if on_event is not None and event.about(ref):
                    on_event(event)
        return end

    def _send(self, kind: str, idempotency_key: str, fields: Mapping[str, Any]) -> RequestRef:
        ref = RequestRef(self._tenant, idempotency_key, str(uuid.uuid4()))
        given = {name: value for name, value in fields.items() if value is not None}
        event = {
            "specversion": "1.0",
            "id": ref.event_id,
            "source": self._event_source,
            "type": kind,
            "data": {"tenant": ref.tenant, "idempotency_key": idempotency_key, **given},
        }
        body = json.dumps(event, ensure_ascii=True, allow_nan=False)
        if len(body) > MAX_BODY_BYTES:
            raise ValueError(f"{len(body):,} bytes are over the limit of {MAX_BODY_BYTES:,}: put keys in a manifest")
        self._sqs.send_message(
            QueueUrl=self._requests_queue_url,
            MessageBody=body,
            MessageGroupId=ref.tenant,  # on a standard queue: fair queueing, so that no tenant starves another
            MessageAttributes={"type": {"DataType": "String", "StringValue": kind}},
        )
        return ref

    def _receive(self, wait_seconds: int) -> Iterator[StatusEvent]:
        """Messages of one long poll. Each is deleted after it was handed on, so that none is lost with an error."""
        answer = self._sqs.receive_message(
            QueueUrl=self._status_queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=wait_seconds
        )
        for message in answer.get("Messages", []):
            body = json.loads(message["Body"])
            event = StatusEvent(body["type"], body["data"])
            if event.final:
                name = event.data.get("event_id" if event.type == "status.rejected" else "request_id")
                self._ends[name or ""] = event
            yield event
            self._sqs.delete_message(QueueUrl=self._status_queue_url, ReceiptHandle=message["ReceiptHandle"])

    def _end_of(self, ref: RequestRef) -> StatusEvent | None:
        return self._ends.get(ref.event_id) or self._ends.get(ref.request_id)


def _prefix_source(uri: str) -> dict[str, str]:
    scheme, _, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise ValueError(f"not an S3 URI: {uri!r}; write s3://bucket/prefix/")
    return {"kind": "prefix", "bucket": bucket, "prefix": prefix}


def _rfc3339(value: datetime | None) -> str | None:
    if value is not None and value.utcoffset() is None:
        raise ValueError("a deadline needs a time zone: datetime.now(UTC) + …")
    return value.isoformat() if value is not None else None
