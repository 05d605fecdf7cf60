"""Delivers events to an SQS queue the way EventBridge may: late, doubled, out of order, now and then not at all.

A heap of due times and one task that sleeps until the next; sends in batches of ten. While SQS is unreachable it
waits and tries again, so an outage delays events and loses none; what is unsent when the stand-in stops is lost.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import logging
import random
import time
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError

from deploy.local.batch.clock import Clock
from deploy.local.batch.config import EventsConfig
from deploy.local.batch.faults import Faults

_BATCH_ENTRIES = 10
_BATCH_BYTES = 900_000  # SQS takes 1 MiB a batch
_RETRY_REAL_SECONDS = 0.5

_log = logging.getLogger(__name__)


class SqsDelivery:
    def __init__(self, config: EventsConfig, clock: Clock, faults: Faults) -> None:
        self._config = config
        self._clock = clock
        self._faults = faults
        self._random = random.Random(config.seed)
        self._order = itertools.count()
        self._due: list[tuple[float, int, str]] = []
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._deliver())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._due:
            _log.info("stopping with %d events undelivered", len(self._due))

    def send(self, event: dict[str, Any]) -> None:
        """Accept an event; its bad luck is decided now."""
        if self._faults.drop_events > 0:
            self._faults.drop_events -= 1
            self._faults.count("events_dropped")
            return
        if self._random.random() < self._config.drop_probability:
            self._faults.count("events_dropped")
            return
        body = json.dumps(event, separators=(",", ":"))
        self._schedule(body)
        if self._random.random() < self._config.duplicate_probability:
            self._faults.count("events_doubled")
            self._schedule(body)
        self._changed.set()

    def _schedule(self, body: str) -> None:
        delay_seconds = self._random.uniform(0, self._config.delay_max_seconds)
        if self._random.random() < self._config.late_probability:
            delay_seconds += self._random.uniform(0, self._config.late_max_seconds)
            self._faults.count("events_late")
        due = time.monotonic() + self._clock.real(delay_seconds)
        heapq.heappush(self._due, (due, next(self._order), body))

    async def _deliver(self) -> None:
        config = self._config
        async with get_session().create_client(
            "sqs",
            endpoint_url=config.endpoint_url,
            region_name=config.region,
            aws_access_key_id=config.access_key_id,
            aws_secret_access_key=config.secret_access_key,
            config=AioConfig(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 1}),
        ) as sqs:
            while True:
                await self._wait_until_due()
                batch = self._take_due()
                try:
                    await self._send_batch(sqs, batch)
                except (BotoCoreError, ClientError) as error:
                    _log.warning("SQS refused %d events, trying again: %s", len(batch), error)
                    for entry in batch:
                        heapq.heappush(self._due, entry)
                    await asyncio.sleep(_RETRY_REAL_SECONDS)

    async def _wait_until_due(self) -> None:
        while True:
            self._changed.clear()
            wait_seconds = self._due[0][0] - time.monotonic() if self._due else None
            if wait_seconds is not None and wait_seconds <= 0:
                return
            try:
                await asyncio.wait_for(self._changed.wait(), wait_seconds)
            except TimeoutError:
                return

    def _take_due(self) -> list[tuple[float, int, str]]:
        now, batch, size = time.monotonic(), [], 0
        while self._due and self._due[0][0] <= now and len(batch) < _BATCH_ENTRIES:
            size += len(self._due[0][2])
            if batch and size > _BATCH_BYTES:
                break
            batch.append(heapq.heappop(self._due))
        return batch

    async def _send_batch(self, sqs: Any, batch: list[tuple[float, int, str]]) -> None:
        if not batch:
            return
        answer = await sqs.send_message_batch(
            QueueUrl=self._config.queue_url,
            Entries=[{"Id": str(place), "MessageBody": body} for place, (_, _, body) in enumerate(batch)],
        )
        for _ in answer.get("Successful", ()):
            self._faults.count("events_sent")
        for failed in answer.get("Failed", ()):
            _log.warning("SQS refused an event: %s", failed.get("Message"))
            heapq.heappush(self._due, batch[int(failed["Id"])])
