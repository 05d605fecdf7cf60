"""The real clock and the real randomness: `Clock` and `Entropy` of the ports. The only place that reads either."""

from __future__ import annotations

import asyncio
import secrets
import time
from datetime import UTC, datetime

_ID_BYTES = 10
_TOKEN_BYTES = 16
_random = secrets.SystemRandom()


class SystemClock:
    """Wall clock in UTC, and the monotonic clock of this process."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class SystemEntropy:
    """Ids and tokens from the operating system: replicas must not draw the same ones, nor outsiders guess them."""

    def new_id(self, prefix: str) -> str:
        return f"{prefix}-{secrets.token_hex(_ID_BYTES)}"

    def token(self) -> str:
        return secrets.token_hex(_TOKEN_BYTES)

    def uniform(self) -> float:
        return _random.random()
