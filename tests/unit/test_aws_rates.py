"""The rate budget against a clock that only moves when it is waited on."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.aws.rates import BURST_SECONDS, Bucket, Call, Ceiling, RateBudget
from controller.ports import Throttled


class HandClock:
    """Moves by its sleeps alone."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.slept: list[float] = []

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds


def test_a_ceiling_starts_at_its_cap() -> None:
    assert Ceiling(40).at(0) == 40


def test_a_429_halves_the_ceiling_once_a_second() -> None:
    ceiling = Ceiling(40)
    assert ceiling.throttled(100.0)
    assert ceiling.at(100.0) == 20
    assert not ceiling.throttled(100.9)
    assert ceiling.at(100.9) == pytest.approx(20.6)
    assert ceiling.throttled(101.0)
    assert ceiling.at(101.0) == pytest.approx((20 + 40 / 60) / 2)


def test_a_ceiling_recovers_steadily_and_stops_at_its_cap() -> None:
    ceiling = Ceiling(40)
    ceiling.throttled(0.0)
    assert [round(ceiling.at(now), 6) for now in (0, 15, 30, 3000)] == [20, 30, 40, 40]


def test_a_ceiling_never_falls_to_nothing() -> None:
    ceiling = Ceiling(40)
    for second in range(100):
        ceiling.throttled(float(second))
    assert ceiling.at(99.0) >= 1


def test_a_new_cap_counts_at_once() -> None:
    ceiling = Ceiling(40)
    ceiling.set_cap(10)
    assert ceiling.at(0) == 10
    ceiling.throttled(0)
    ceiling.set_cap(100)
    assert 5 <= ceiling.at(1) < 10
    assert ceiling.at(1000) == 100


@given(
    per_second=st.floats(0.25, 200),
    steps=st.lists(st.floats(0, 2), min_size=1, max_size=60),
    longest=st.sampled_from([0.0, 0.5, 5.0]),
)
def test_no_window_holds_more_than_the_rate_and_the_burst(
    per_second: float, steps: list[float], longest: float
) -> None:
    bucket, now = Bucket(), 0.0
    used: list[float] = []
    for step in steps:
        now += step
        wait_seconds = bucket.reserve(now, per_second, longest)
        if wait_seconds is not None:
            assert 0 <= wait_seconds <= longest
            used.append(now + wait_seconds)
    assert used == pytest.approx(sorted(used)), "first come, first served"
    for first, start in enumerate(used):
        for count, end in enumerate(used[first:], start=1):
            burst = max(1.0, BURST_SECONDS * per_second)
            assert count <= (end - start) * per_second + burst + 1e-3


async def test_a_burst_passes_and_then_each_call_waits_its_turn() -> None:
    clock = HandClock()
    budget = RateBudget(clock, calls_per_second=40)
    for _ in range(10):  # a second's worth of submit's quarter
        await budget.acquire(Call.SUBMIT)
    assert clock.slept == []
    await budget.acquire(Call.SUBMIT)
    await budget.acquire(Call.SUBMIT)
    assert clock.slept == pytest.approx([0.1, 0.1])


async def test_one_kind_of_call_does_not_starve_another() -> None:
    clock = HandClock()
    budget = RateBudget(clock, calls_per_second=40, longest_wait_seconds=0)
    for _ in range(20):
        await budget.acquire(Call.CANCEL)
    with pytest.raises(Throttled):
        await budget.acquire(Call.CANCEL)
    for _ in range(10):
        await budget.acquire(Call.SUBMIT)
        await budget.acquire(Call.DESCRIBE)
    assert clock.slept == []


async def test_a_wait_too_long_is_throttled_at_once_and_takes_no_token() -> None:
    clock = HandClock()
    budget = RateBudget(clock, calls_per_second=4, longest_wait_seconds=2)
    taken = asyncio.gather(*(budget.acquire(Call.SUBMIT) for _ in range(3)), return_exceptions=True)
    assert [type(answer) for answer in await taken] == [type(None)] * 3
    budget = RateBudget(clock, calls_per_second=4, longest_wait_seconds=0.5)
    await budget.acquire(Call.SUBMIT)
    before = clock.seconds
    for _ in range(5):
        with pytest.raises(Throttled):
            await budget.acquire(Call.SUBMIT)
    assert clock.seconds == before
    clock.seconds += 1
    await budget.acquire(Call.SUBMIT)


async def test_a_429_slows_every_kind_of_call() -> None:
    clock = HandClock()
    budget = RateBudget(clock, calls_per_second=40)
    budget.throttled()
    assert budget.calls_per_second() == 20
    for _ in range(7):
        await budget.acquire(Call.SUBMIT)
    assert len(clock.slept) == 2, "5 a second are left of 10"
    budget.set_calls_per_second(8)
    assert budget.calls_per_second() <= 8


@pytest.mark.parametrize(
    "shares",
    [
        {Call.SUBMIT: 0.5, Call.DESCRIBE: 0.5},
        {Call.SUBMIT: 0.5, Call.DESCRIBE: 0.5, Call.CANCEL: 0.5},
        {Call.SUBMIT: 0.0, Call.DESCRIBE: 0.5, Call.CANCEL: 0.5},
    ],
)
def test_shares_that_cannot_be_kept(shares: dict[Call, float]) -> None:
    with pytest.raises(ValueError, match="share"):
        RateBudget(HandClock(), shares=shares)
