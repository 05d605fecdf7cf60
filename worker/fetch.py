"""Assets from S3: the one owner of retries, and of how much is in flight.

Runs in the rank process, beside the orchestration, on one asyncio loop. A process of its own would buy nothing:
obstore's sockets, TLS and HTTP run on native threads without the interpreter lock (0.19 ms of Python a GET, so that
1,000 assets a second keep a fifth of one core busy here), while bodies would have to be copied once more. What must
not share an interpreter with a busy loop is Pillow and CUDA, and they have processes of their own.

A throttled asset is queued again at once, so that no slot waits with it, but not before a jittered moment; each
throttle also halves the concurrency. After `TRIES` it is left to the final pass at the end of the shard.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from schema.states import RowStatus
from worker.rows import Failure
from worker.source import Body, Expected
from worker.throttle import Budget, Pace, pause_seconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from schema.shardfile import Address

TRIES = 4
IN_FLIGHT_BYTES = 64 * 1024 * 1024
UNKNOWN_SIZE_BYTES = 1024 * 1024
FINAL_PASS_CONCURRENCY = 8
DEADLINE_SECONDS = 20.0
SLOWEST_BYTES_PER_SECOND = 1_000_000


class Source(Protocol):
    """What `worker.source.Bucket` is to this module."""

    async def get(self, key: bytes, expected: Expected) -> Body | Failure: ...


@dataclass
class FetchFigures:
    """Cumulative; seconds are summed over requests."""

    bytes: int = 0
    seconds: float = 0.0
    throttled: int = 0


class Fetcher:
    """Fetches within a budget. One for a rank."""

    def __init__(
        self,
        source: Source,
        *,
        concurrency: int,
        max_bytes: int,
        dice: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._source = source
        self._pace = Pace(concurrency)
        self._budget = Budget(self._pace, IN_FLIGHT_BYTES)
        self._max_bytes = max_bytes
        self._dice = dice
        self.figures = FetchFigures()

    def begin_final_pass(self) -> None:
        """What is still throttled now gets a last, slow chance."""
        self._pace.at_most(FINAL_PASS_CONCURRENCY)

    @asynccontextmanager
    async def fetched(self, address: Address) -> AsyncIterator[Body | Failure]:
        """The asset, or the verdict on it. Its bytes stay within the budget until the block is left."""
        if address.size > self._max_bytes:
            yield Failure(RowStatus.TOO_LARGE, f"{address.size} bytes, at most {self._max_bytes}")
            return
        held = address.size or UNKNOWN_SIZE_BYTES
        for tries in range(1, TRIES + 1):
            await self._budget.take(held)
            try:
                answer = await self._once(address)
                if not _transient(answer) or tries == TRIES:
                    yield answer
                    return
            finally:
                self._budget.give_bytes(held)
            await asyncio.sleep(pause_seconds(tries, self._dice))

    async def _once(self, address: Address) -> Body | Failure:
        """One request, timed and judged; gives its place in the budget back, but not its bytes."""
        began = time.monotonic()
        deadline = DEADLINE_SECONDS + (address.size or self._max_bytes) / SLOWEST_BYTES_PER_SECOND
        expected = Expected(address.size, address.etag, self._max_bytes)
        try:
            answer = await asyncio.wait_for(self._source.get(address.key, expected), deadline)
        except TimeoutError:
            answer = Failure(RowStatus.DEADLINE, f"no whole answer in {deadline:.0f} seconds")
        finally:
            now = time.monotonic()
            self._budget.give_request()
        self.figures.seconds += now - began
        if isinstance(answer, Body):
            self.figures.bytes += answer.size
            self._pace.succeeded()
        elif _transient(answer):
            self.figures.throttled += 1
            self._pace.throttled(now, began)
        return answer


def _transient(answer: Body | Failure) -> bool:
    return isinstance(answer, Failure) and answer.status in (RowStatus.THROTTLED, RowStatus.DEADLINE)
