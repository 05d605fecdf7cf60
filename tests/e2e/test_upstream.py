"""What upstream can do with a stock AWS client and the documents alone."""

from __future__ import annotations

import json
from typing import Any

from deploy.local.resources import BucketName, QueueName
from tests.e2e.site import MODEL, PREFIX, Site, eventually

DOCUMENTED = {
    "specversion": "1.0",
    "id": "5f0c2f8e-7d3b-4a35-9a37-6f0f4f0c9f11",
    "source": "urn:team:search",
    "type": "request.submit",
    "data": {
        "tenant": "demo",
        "idempotency_key": "stock-client",
        "source": {"kind": "prefix", "bucket": BucketName.PHOTOS, "prefix": PREFIX},
        "model": MODEL,
        "output": {"uri": f"s3://{BucketName.EMBEDDINGS}/stock-client"},
        "tolerance": 0.5,
    },
}


def messages(site: Site, queue: QueueName) -> list[dict[str, Any]]:
    """Take what is there."""
    url = site.stack.queue_url(queue)
    found = site.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages", [])
    for message in found:
        site.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return [json.loads(message["Body"]) for message in found]


def test_boto3_alone_sends_a_documented_message_and_sees_it_through(site: Site) -> None:
    site.stack.start_controller("one")
    site.sqs.send_message(QueueUrl=site.stack.queue_url(QueueName.REQUESTS), MessageBody=json.dumps(DOCUMENTED))
    seen: list[dict[str, Any]] = []

    def ended() -> bool:
        seen.extend(m for m in messages(site, QueueName.STATUS) if m["data"].get("idempotency_key") == "stock-client")
        return any(message["type"] == "status.succeeded" for message in seen)

    eventually(ended, "status.succeeded")
    kinds = [message["type"] for message in seen]
    assert {"status.accepted", "status.planned", "status.succeeded"} <= set(kinds)
    [end] = [message["data"] for message in seen if message["type"] == "status.succeeded"]
    assert end["ok"] + end["bad"] == len(site.keys)
    assert end["manifest_uri"].startswith(f"s3://{BucketName.EMBEDDINGS}/stock-client/")
    assert end["failures_uri"].endswith(".parquet")


def test_what_cannot_be_taken_is_rejected_at_once_and_blocks_nothing(site: Site) -> None:
    """I1: each message ends as a row or in the reject queue."""
    url = site.stack.queue_url(QueueName.REQUESTS)
    forbidden = DOCUMENTED["data"] | {"idempotency_key": "elsewhere", "output": {"uri": "s3://not-ours/x"}}  # type: ignore[operator]
    for body in ("not json", json.dumps({"specversion": "1.0"}), json.dumps(DOCUMENTED | {"data": forbidden})):
        site.sqs.send_message(QueueUrl=url, MessageBody=body)
    site.stack.start_controller("one")
    run = site.submit("after-the-rejects")
    rejects: list[dict[str, Any]] = []

    def all_rejected() -> bool:
        rejects.extend(messages(site, QueueName.REJECTS))
        return len(rejects) >= 3

    eventually(all_rejected, "three rejects")
    assert len(rejects) == 3
    assert all(reject["data"]["fix"] for reject in rejects)
    assert {reject["data"]["code"] for reject in rejects} == {"not_json", "not_cloudevent", "forbidden_bucket"}
    run.until("EXISTS (SELECT 1 FROM requests WHERE id = %(id)s)")
    assert site.rows("SELECT 1 FROM requests WHERE idempotency_key = 'elsewhere'") == []
    site.upstream().cancel("after-the-rejects", "seen enough")
    eventually(lambda: run.state == "cancelled", "cancelled")
    assert run.live_attempts() == 0
