"""Keeps Batch calls under the account's ceiling, with one bucket for each kind of call.

Batch throttles an account at 50 calls a second, all operations together. Submit, describe and cancel have buckets of
their own, fixed shares of one ceiling, so that none starves another. A 429 halves the ceiling, at most once a second
(the answers of one burst are one message); it then recovers steadily to its cap. Ceiling and buckets are pure: the time
comes in. `RateBudget` adds the clock and the waiting.

A caller that would have to wait for long is told `Throttled` at once: what it checked before the call (a lease) must
still hold when the call is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from controller.ports import Clock, Throttled

DEFAULT_CALLS_PER_SECOND = 40.0  # of the account's 50: consoles and other tools want some
LOWEST_CALLS_PER_SECOND = 1.0
HALVE_EVERY_SECONDS = 1.0
RECOVERY_SECONDS = 60.0  # from nothing to the cap
BURST_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 5.0
GRAIN_SECONDS = 1e-6  # a wait below it is an error of addition


class Call(StrEnum):
    """Kinds of call, one bucket each. Cancelling is one call a child, where submit and describe carry hundreds."""

    SUBMIT = "submit"
    DESCRIBE = "describe"
    CANCEL = "cancel"


DEFAULT_SHARES: Mapping[Call, float] = {Call.SUBMIT: 0.25, Call.DESCRIBE: 0.25, Call.CANCEL: 0.5}


class Ceiling:
    """Calls a second that are allowed now: `cap`, less what 429s took and time has not given back."""

    def __init__(self, cap_per_second: float) -> None:
        self._cap = max(cap_per_second, LOWEST_CALLS_PER_SECOND)
        self._level = self._cap
        self._level_at = float("-inf")

    def at(self, now: float) -> float:
        """The ceiling at `now`, in calls a second."""
        if self._level >= self._cap:
            return self._cap
        recovered = (now - self._level_at) * self._cap / RECOVERY_SECONDS
        return min(self._cap, self._level + max(0.0, recovered))

    def throttled(self, now: float) -> bool:
        """A 429 came at `now`. Whether it halved the ceiling."""
        if now - self._level_at < HALVE_EVERY_SECONDS:
            return False
        self._level = max(LOWEST_CALLS_PER_SECOND, self.at(now) / 2)
        self._level_at = now
        return True

    def set_cap(self, cap_per_second: float) -> None:
        """A new cap, for instance this replica's new share of the account; recovery goes on towards it."""
        self._cap = max(cap_per_second, LOWEST_CALLS_PER_SECOND)


class Bucket:
    """A token bucket kept as the time at which the next token falls due, which makes waiting callers a fair queue."""

    def __init__(self) -> None:
        self._next_at = float("-inf")

    def reserve(self, now: float, per_second: float, longest_wait_seconds: float) -> float | None:
        """Take a token: seconds until it may be used, or None, and no token, when that is too long."""
        interval = 1.0 / per_second
        burst_seconds = max(0.0, BURST_SECONDS - interval)
        due_at = max(self._next_at, now - burst_seconds)
        wait_seconds = due_at - now if due_at - now > GRAIN_SECONDS else 0.0
        if wait_seconds > longest_wait_seconds:
            return None
        self._next_at = due_at + interval
        return wait_seconds


class RateBudget:
    """The buckets of one process under its ceiling."""

    def __init__(
        self,
        clock: Clock,
        *,
        calls_per_second: float = DEFAULT_CALLS_PER_SECOND,
        shares: Mapping[Call, float] = DEFAULT_SHARES,
        longest_wait_seconds: float = LONGEST_WAIT_SECONDS,
    ) -> None:
        if set(shares) != set(Call) or min(shares.values()) <= 0 or sum(shares.values()) > 1 + 1e-9:
            raise ValueError(f"every kind of call needs a share above 0, and all together at most 1: {dict(shares)}")
        self._clock = clock
        self._ceiling = Ceiling(calls_per_second)
        self._shares = dict(shares)
        self._buckets = {call: Bucket() for call in Call}
        self._longest_wait_seconds = longest_wait_seconds

    async def acquire(self, call: Call) -> None:
        """Wait for a token of `call`'s bucket; Throttled, without a wait, when it is too far off."""
        now = self._clock.monotonic()
        per_second = self._ceiling.at(now) * self._shares[call]
        wait_seconds = self._buckets[call].reserve(now, per_second, self._longest_wait_seconds)
        if wait_seconds is None:
            raise Throttled(f"our own budget for {call} calls ({per_second:.1f} a second) is used up")
        if wait_seconds > 0:
            await self._clock.sleep(wait_seconds)

    def throttled(self) -> None:
        """AWS answered 429."""
        self._ceiling.throttled(self._clock.monotonic())

    def set_calls_per_second(self, calls_per_second: float) -> None:
        """Change the cap of the ceiling; with several replicas each gets a share of the account's."""
        self._ceiling.set_cap(calls_per_second)

    def calls_per_second(self) -> float:
        """The ceiling now; for a gauge."""
        return self._ceiling.at(self._clock.monotonic())
