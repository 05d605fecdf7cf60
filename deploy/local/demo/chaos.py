"""What goes wrong in `make demo CHAOS=1`, and the proof that it did.

    g6e has no capacity from the start           → fallback to g6
    one spot job is reclaimed in mid-shard       → a new attempt keeps the finished chunks
    the object store answers 503 to some reads   → retried in the worker's loop

One slow object holds its shard open after the first chunks are written, so that the reclaim finds something to keep.
"""

from __future__ import annotations

from typing import Any

import httpx

from deploy.local.batch_site import Queue
from deploy.local.resources import BucketName
from deploy.local.s3proxy import Action, Rule
from deploy.local.stack import Stack
from schema.layout import Location, chunk_prefix

DRY_SECONDS = 45.0
#: Longer than a worker needs to start on a busy machine; shorter than its time-out of a read.
SLOW_SECONDS = 18.0
THROTTLED_READS = 40


class Chaos:
    """Armed before the request is sent; `tick` is called while it runs."""

    def __init__(self, stack: Stack, s3: Any, *, prefix: str, shard: int, slow_key: str) -> None:
        """`slow_key` is of the shard's last chunk."""
        self._stack = stack
        self._prefix = f"{BucketName.PHOTOS}/{prefix}"
        self._slow = f"{BucketName.PHOTOS}/{slow_key}"
        self._shard = shard
        self._s3 = s3
        self._reclaimed = False

    def arm(self) -> None:
        """Everything but the reclaim, which waits for its moment."""
        rules = [
            Rule(action=Action.DELAY, prefix=self._slow, seconds=SLOW_SECONDS, at_most=1),
            Rule(action=Action.THROTTLE, prefix=self._prefix, share=0.3, at_most=THROTTLED_READS),
        ]
        body = [rule.model_dump(mode="json") for rule in rules]
        httpx.post(f"{self._stack.s3_endpoint}/_faults", json=body).raise_for_status()
        self._order({"fault": "refuse_capacity", "queue": Queue.G6E, "seconds": DRY_SECONDS})

    def tick(self, api: httpx.Client, request: dict[str, Any]) -> None:
        """Reclaim the instance under the slow shard once it has written a chunk and is not done."""
        if self._reclaimed or request["output_uri"] is None or not self._chunk_written(request["output_uri"]):
            return
        shard = api.get(f"/api/v1/requests/{request['id']}/shards/{self._shard}").raise_for_status().json()
        running = [a for a in shard["attempts"] if a["state"] == "running" and a["batch_job_id"]]
        if running:
            self._order({"fault": "reclaim", "job_id": running[-1]["batch_job_id"]})
            self._reclaimed = True

    def fired(self) -> dict[str, int]:
        """How often each fault was felt: reclaimed, refused (Batch) and throttled (S3)."""
        batch = httpx.get(f"{self._stack.batch_endpoint}/_faults").raise_for_status().json()
        store = httpx.get(f"{self._stack.s3_endpoint}/_faults").raise_for_status().json()
        return {
            "reclaimed": batch["reclaimed"],
            "refused": batch["refused"],
            "throttled": store.get(Action.THROTTLE, 0),
        }

    def _chunk_written(self, output_uri: str) -> bool:
        place = Location.parse(output_uri).join(chunk_prefix(self._shard))
        return self._s3.list_objects_v2(Bucket=place.bucket, Prefix=place.key)["KeyCount"] > 0

    def _order(self, fault: dict[str, Any]) -> None:
        httpx.post(f"{self._stack.batch_endpoint}/_faults", json=fault).raise_for_status()
