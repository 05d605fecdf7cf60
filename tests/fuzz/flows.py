"""One flow of good messages for each queue, among which bad ones come, and what must hold at the end."""

from __future__ import annotations

import json
from typing import Any

from controller.core.admission import request_id
from schema.messages import MessageType, RequestSubmit, encode
from schema.states import AttemptState, RequestState, ShardState
from tests.ports import Child
from tests.reports.site import Site

SHARDS = 12


class Requests:
    """Every good request is a row in the end; each message is a row, a duplicate, an order or a rejection (I1)."""

    loop = "intake"

    def __init__(self, site: Site) -> None:
        self.site, self.sent = site, 0

    async def begin(self) -> None:
        return

    def good(self) -> str:
        self.sent += 1
        return self._body(self.sent)

    def sample(self) -> str:
        """As good, but not waited for: what the bad ones are made of."""
        return self._body(1_000_000 + self.sent % 7)

    def _body(self, number: int) -> str:
        message = RequestSubmit.model_validate(
            {
                "tenant": "stock",
                "idempotency_key": f"k-{number}",
                "source": {"kind": "prefix", "bucket": "photos", "prefix": "p/"},
                "model": "tiny@1",
                "output": {"uri": "s3://embeddings/out/"},
                "labels": {"team": "search"},
                "queues": ["g6"],
            }
        )
        return encode(
            MessageType.REQUEST_SUBMIT, message, event_id=f"e-{number}", source="test", time=self.site.clock.now()
        )

    async def end(self, messages: int) -> None:
        site = self.site
        for number in range(1, self.sent + 1):
            request = await site.request(request_id("stock", f"k-{number}"))
            assert request.state is RequestState.ACCEPTED
        counts = site.replica.recorder.counts
        assert counts["requests_received"] == messages
        rejected = [event["data"] for event in site.rejects.sent]
        assert len(rejected) == counts["messages_rejected"] == len(site.status.of_type("status.rejected"))
        assert all(refusal["code"] and refusal["reason"] and refusal["fix"] for refusal in rejected)
        while await self._notify():
            pass
        accepted = len(site.status.of_type("status.accepted"))
        orders = counts["requests_received[type=cancel]"] + counts["requests_received[type=amend]"]
        assert messages - orders <= accepted + len(rejected) <= messages

    async def _notify(self) -> bool:
        before = len(self.site.status.sent)
        await self.site.step("notify")
        return len(self.site.status.sent) > before


class _Running:
    """A request whose shards all run, one attempt each."""

    def __init__(self, site: Site) -> None:
        self.site, self.sent = site, 0
        self.children: list[Child] = []

    async def begin(self) -> None:
        await self.site.running(shards=SHARDS)
        self.children = await self.site.again()
        self.site.batch.start(*self.children)
        await self.site.step("batch_events")
        self.attempts = [await self.site.attempt_of(child) for child in self.children]

    async def _unharmed(self) -> None:
        attempts = [await self.site.attempt_of(child) for child in self.children]
        assert {attempt.state for attempt in attempts} == {AttemptState.RUNNING}
        assert len(self.site.batch.jobs) == 1


class Reports(_Running):
    """Heartbeats are heard whatever stands between them, and the last ones end every shard."""

    loop = "reports"

    def good(self) -> str:
        self.sent += 1
        return self._body(self.sent, self.attempts[self.sent % SHARDS].token, self.sent % SHARDS)

    def sample(self) -> str:
        """Of a stranger, or of an attempt of ours at its very first report."""
        mine = self.sent % 2
        return self._body(0, self.attempts[3].token if mine else "t-nobody", 3)

    def _body(self, sequence: int, token: str, place: int) -> str:
        attempt = self.attempts[place]
        data: dict[str, Any] = {
            "attempt_id": attempt.id,
            "token": token,
            "kind": "heartbeat",
            "seq": sequence,
            "batch_job_id": self.children[place].id,
            "instance_type": "g6.xlarge",
            "compute_environment": "ce",
            "request_id": "r-1",
            "shard": attempt.shard,
            "open_chunks": [1],
            "chunks_left": 3,
            "poison": [],
            "figures": {"assets": sequence, "ok": sequence, "fetch_seconds": 1.5},
            "error": None,
        }
        envelope = {"specversion": "1.0", "id": f"w-{sequence}", "source": "worker", "type": "worker.report"}
        return json.dumps(envelope | {"time": "2026-12-01T12:00:00Z", "data": data})

    async def end(self, messages: int) -> None:
        counts = self.site.replica.recorder.counts
        assert counts["reports_received"] == messages
        for number in range(max(1, self.sent - SHARDS + 1), self.sent + 1):
            attempt = await self.site.attempt_of(self.children[number % SHARDS])
            assert attempt.last_seq >= number
        await _finish(self.site, self.children)


class Events(_Running):
    """States of our own jobs are seen whatever stands between them, and no garbage ends an attempt."""

    loop = "batch_events"

    def good(self) -> str:
        self.sent += 1
        return self._body(self.children[self.sent % SHARDS], "RUNNING")

    def sample(self) -> str:
        stranger = Child("b-elsewhere:7", self.children[0].spec, self.site.clock.now())
        return self._body(stranger, "FAILED")

    def _body(self, child: Child, status: str) -> str:
        detail = {
            "jobId": child.id,
            "jobName": child.spec.name,
            "jobQueue": "arn:aws:batch:us-east-1:123456789012:job-queue/g6e",
            "status": status,
            "statusReason": "Essential container in task exited",
            "createdAt": 1_790_000_000_000,
            "startedAt": 1_790_000_000_000,
            "attempts": [{"container": {"exitCode": 1, "reason": "x"}, "statusReason": "y"}],
            "container": {"exitCode": 1, "reason": "x", "environment": []},
            "arrayProperties": {"index": 7},
            "tags": {"resourceArn": "arn"},
        }
        envelope = {"version": "0", "id": "x", "detail-type": "Batch Job State Change", "source": "aws.batch"}
        return json.dumps(envelope | {"time": "2026-12-01T12:00:00Z", "resources": [], "detail": detail})

    async def end(self, messages: int) -> None:
        assert self.site.replica.recorder.counts["batch_events"] == messages + SHARDS
        await self._unharmed()
        await _finish(self.site, self.children)


async def _finish(site: Site, children: list[Child]) -> None:
    for child in children:
        await site.commit(child)
        site.batch.end(child, 0)
    await site.rounds(3, seconds=61)
    assert await site.states() == {ShardState.SUCCEEDED: SHARDS}
    await site.check()


Flow = Requests | Reports | Events
