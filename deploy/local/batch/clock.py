"""Time, in one place: the wall clock in epoch milliseconds and the scale from Batch seconds to real seconds.

Callers state delays in Batch seconds (a time-out of 60, a grace of 30); only this module knows how short they are
here. Timestamps are never scaled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any


class Clock:
    def __init__(self, time_scale: float) -> None:
        self._scale = time_scale

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    def real(self, batch_seconds: float) -> float:
        """Real seconds for a duration of Batch."""
        return batch_seconds * self._scale

    async def sleep(self, batch_seconds: float) -> None:
        await asyncio.sleep(self.real(batch_seconds))

    def call_later(self, batch_seconds: float, call: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self.real(batch_seconds), call, *args)
