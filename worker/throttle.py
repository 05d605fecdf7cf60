"""How much may be in flight: pure bookkeeping, no I/O and no clock of its own.

`Pace` is AIMD on the number of requests: one more for each round of successes, half at a throttle, and not twice for
one burst. `Budget` admits assets in order of arrival within that number and within a number of bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

RECOVERY_SECONDS = 0.5
BASE_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 20.0


def pause_seconds(tries: int, dice: Callable[[float, float], float]) -> float:
    """Full jitter: somewhere in 0 … base · 2^(tries - 1), capped. `dice(low, high)` is random.uniform."""
    return dice(0.0, min(MAX_PAUSE_SECONDS, BASE_PAUSE_SECONDS * 2 ** (tries - 1)))


@dataclass
class Pace:
    """Additive increase, multiplicative decrease of the requests in flight."""

    ceiling: int
    limit: float = field(init=False)
    _cut_at: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        self.limit = float(self.ceiling)

    @property
    def requests(self) -> int:
        return max(1, int(self.limit))

    def succeeded(self) -> None:
        self.limit = min(float(self.ceiling), self.limit + 1 / max(1.0, self.limit))

    def throttled(self, now_seconds: float, began_seconds: float) -> None:
        """Halve, unless the request began before the last cut could have helped it."""
        if began_seconds < self._cut_at or now_seconds - self._cut_at < RECOVERY_SECONDS:
            return
        self.limit = max(1.0, self.limit / 2)
        self._cut_at = now_seconds

    def at_most(self, ceiling: int) -> None:
        """Lower the ceiling for good, as the final pass does."""
        self.ceiling = max(1, min(self.ceiling, ceiling))
        self.limit = min(self.limit, float(self.ceiling))


class Budget:
    """First come, first served, within requests and bytes. One asset larger than all bytes goes alone, not never."""

    def __init__(self, pace: Pace, max_bytes: int) -> None:
        self._pace = pace
        self._max_bytes = max_bytes
        self._requests = 0
        self._bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        if not self._waiting and self._fits(size):
            self._admit(size)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_request()
                self.give_bytes(size)
            raise

    def give_request(self) -> None:
        """The request has ended; its bytes may still be held by a decoder."""
        self._requests -= 1
        self._admit_waiting()

    def give_bytes(self, size: int) -> None:
        self._bytes -= size
        self._admit_waiting()

    def _fits(self, size: int) -> bool:
        return self._requests < self._pace.requests and (self._bytes == 0 or self._bytes + size <= self._max_bytes)

    def _admit(self, size: int) -> None:
        self._requests += 1
        self._bytes += size

    def _admit_waiting(self) -> None:
        while self._waiting and (self._waiting[0][1].cancelled() or self._fits(self._waiting[0][0])):
            size, turn = self._waiting.popleft()
            if not turn.cancelled():
                self._admit(size)
                turn.set_result(None)
