"""Fetching: what S3's answers mean, who may be in flight, and the one owner of retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schema.shardfile import Address
from schema.states import RowStatus
from worker import fetch
from worker.fetch import Fetcher
from worker.rows import Failure
from worker.source import Body, Expected, classify, obstore_can_address, verdict_on
from worker.throttle import BASE_PAUSE_SECONDS, MAX_PAUSE_SECONDS, Budget, Pace, pause_seconds

KIB = 1024


@pytest.mark.parametrize(
    ("key", "native"),
    [
        (b"plain.jpg", True),
        (b"a/b c+%2B.jpg", True),
        ("ünï/写真.jpg".encode(), True),
        (b"a/..b/c..", True),
        (b"a//b", False),
        (b"/a", False),
        (b"a/", False),
        (b"a/../b", False),
        (b"./a", False),
        (b"a\x01b", False),
        (b"a\nb", False),
        (b"a\x7fb", False),
        (b"\xff\xfe", False),
        (b"", False),
    ],
)
def test_the_key_alone_decides_the_client(key: bytes, native: bool) -> None:
    assert obstore_can_address(key) is native


@pytest.mark.parametrize(
    ("http_status", "code", "status"),
    [
        (503, "SlowDown", RowStatus.THROTTLED),
        (429, "TooManyRequests", RowStatus.THROTTLED),
        (500, "InternalError", RowStatus.THROTTLED),
        (400, "RequestTimeout", RowStatus.THROTTLED),
        (404, "NoSuchKey", RowStatus.MISSING),
        (404, "NoSuchBucket", RowStatus.DENIED),
        (403, "AccessDenied", RowStatus.DENIED),
        (403, "InvalidObjectState", RowStatus.DENIED),
        (400, "KMS.DisabledException", RowStatus.DENIED),
        (301, "PermanentRedirect", RowStatus.DENIED),
    ],
)
def test_what_an_answer_of_s3_means(http_status: int, code: str, status: RowStatus) -> None:
    failure = verdict_on(http_status, code, "why")
    assert (failure.status, failure.http_status, failure.error) == (status, http_status, f"{code}: why")


@pytest.mark.parametrize(
    ("text", "status", "http_status"),
    [
        ("Error performing GET u in 1ms - HTTP error: error sending request", RowStatus.THROTTLED, None),
        ("HTTP error: request or response body error", RowStatus.THROTTLED, None),
        ("GET u - Received redirect without LOCATION, … incorrectly configured region", RowStatus.DENIED, None),
        (
            "GET u in 1ms - Server returned non-2xx status code: 503 Service Unavailable: <Error><Code>SlowDown</Code>"
            "<Message>Please reduce</Message></Error>\n\nDebug source:\nStatus { status: 404 }",
            RowStatus.THROTTLED,
            503,
        ),
    ],
    ids=["connection", "short body", "region", "status"],
)
def test_what_an_obstore_error_means(text: str, status: RowStatus, http_status: int | None) -> None:
    failure = classify(Exception(text))
    assert (failure.status, failure.http_status) == (status, http_status)
    assert "Debug" not in failure.error


@pytest.mark.parametrize(
    ("expected", "status"),
    [
        (Expected(), None),
        (Expected(size=9, etag="e"), None),
        (Expected(size=8), RowStatus.CHANGED),
        (Expected(etag="other"), RowStatus.CHANGED),
        (Expected(max_bytes=8), RowStatus.TOO_LARGE),
    ],
)
def test_an_answer_is_compared_with_the_listing_where_that_knew(expected: Expected, status: RowStatus | None) -> None:
    refusal = expected.refusal(9, "e")
    assert (refusal.status if refusal else None) is status


# --- pace and budget ------------------------------------------------------------------------------------------------


def test_pauses_grow_and_are_capped() -> None:
    longest = [pause_seconds(tries, lambda _low, high: high) for tries in range(1, 12)]
    assert longest[:3] == [BASE_PAUSE_SECONDS, 2 * BASE_PAUSE_SECONDS, 4 * BASE_PAUSE_SECONDS]
    assert longest[-1] == MAX_PAUSE_SECONDS


def test_a_burst_of_throttles_halves_once_and_success_grows_back() -> None:
    pace = Pace(64)
    for _ in range(20):
        pace.throttled(now_seconds=10.0, began_seconds=9.0)
    assert pace.requests == 32
    pace.throttled(now_seconds=11.0, began_seconds=9.5)  # sent before the cut could help
    assert pace.requests == 32
    pace.throttled(now_seconds=11.0, began_seconds=10.5)
    assert pace.requests == 16
    for _ in range(5000):
        pace.succeeded()
    assert pace.requests == 64


def test_pace_never_stops_and_the_final_pass_is_slow() -> None:
    pace = Pace(4)
    for second in range(0, 100, 2):
        pace.throttled(second + 1.0, second + 0.9)
    assert pace.requests == 1
    wide = Pace(64)
    wide.at_most(8)
    wide.succeeded()
    assert wide.requests == 8


@given(sizes=st.lists(st.integers(1, 300), max_size=40), limit=st.integers(1, 8), max_bytes=st.integers(1, 400))
def test_the_budget_holds_and_everybody_gets_a_turn_in_order(sizes: list[int], limit: int, max_bytes: int) -> None:
    async def scenario() -> None:
        budget = Budget(Pace(limit), max_bytes)
        running: list[int] = []
        started: list[int] = []

        async def one(number: int, size: int) -> None:
            await budget.take(size)
            started.append(number)
            running.append(size)
            assert len(running) <= limit
            assert sum(running) <= max_bytes or len(running) == 1
            await asyncio.sleep(0)
            running.remove(size)
            budget.give_request()
            budget.give_bytes(size)

        await asyncio.gather(*(one(number, size) for number, size in enumerate(sizes)))
        assert started == list(range(len(sizes)))

    asyncio.run(scenario())


async def test_a_cancelled_wait_takes_nothing_from_the_budget() -> None:
    budget = Budget(Pace(1), KIB)
    await budget.take(1)
    waiting = [asyncio.create_task(budget.take(1)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    budget.give_request()
    budget.give_bytes(1)
    waiting[1].cancel()  # just admitted, and no longer wanted
    await asyncio.wait_for(waiting[2], 1)


# --- the fetcher ----------------------------------------------------------------------------------------------------


class Scripted:
    """A source that answers each key from a list, the last answer for ever."""

    def __init__(self, script: dict[bytes, list[Body | Failure]]) -> None:
        self.script = script
        self.asked: list[bytes] = []

    async def get(self, key: bytes, expected: Expected) -> Body | Failure:
        self.asked.append(key)
        answers = self.script[key]
        return answers.pop(0) if len(answers) > 1 else answers[0]


THROTTLED = Failure(RowStatus.THROTTLED, "SlowDown", 503)
DENIED = Failure(RowStatus.DENIED, "AccessDenied", 403)
BODY = Body(b"12345", 5, "e")
at_once: Callable[[float, float], float] = lambda _low, _high: 0.0  # noqa: E731


async def fetched(fetcher: Fetcher, key: bytes = b"k", size: int = 5) -> Body | Failure:
    async with fetcher.fetched(Address(key, size, "e")) as answer:
        return answer


async def test_a_throttled_asset_is_tried_again_and_counted() -> None:
    fetcher = Fetcher(Scripted({b"k": [THROTTLED, THROTTLED, BODY]}), concurrency=4, max_bytes=KIB, dice=at_once)
    assert await fetched(fetcher) == BODY
    assert (fetcher.figures.throttled, fetcher.figures.bytes) == (2, 5)


async def test_after_the_last_try_it_stays_throttled() -> None:
    source = Scripted({b"k": [THROTTLED]})
    fetcher = Fetcher(source, concurrency=4, max_bytes=KIB, dice=at_once)
    assert await fetched(fetcher) == THROTTLED
    assert len(source.asked) == fetch.TRIES


async def test_a_verdict_is_not_tried_again() -> None:
    source = Scripted({b"k": [DENIED]})
    assert await fetched(Fetcher(source, concurrency=4, max_bytes=KIB)) == DENIED
    assert len(source.asked) == 1


async def test_a_too_large_asset_is_not_fetched() -> None:
    source = Scripted({})
    answer = await fetched(Fetcher(source, concurrency=4, max_bytes=KIB), size=KIB + 1)
    assert isinstance(answer, Failure)
    assert answer.status is RowStatus.TOO_LARGE
    assert source.asked == []


async def test_an_answer_that_does_not_come_is_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        async def get(self, key: bytes, expected: Expected) -> Body | Failure:
            await asyncio.Event().wait()
            raise AssertionError

    monkeypatch.setattr(fetch, "DEADLINE_SECONDS", 0.001)
    monkeypatch.setattr(fetch, "TRIES", 2)
    answer = await fetched(Fetcher(Silent(), concurrency=1, max_bytes=KIB, dice=at_once))
    assert isinstance(answer, Failure)
    assert answer.status is RowStatus.DEADLINE


async def test_no_slot_waits_with_a_throttled_asset() -> None:
    """One place in flight: while `bad` pauses between its tries, `good` must get through."""
    source = Scripted({b"bad": [THROTTLED], b"good": [BODY]})
    fetcher = Fetcher(source, concurrency=1, max_bytes=KIB, dice=lambda _low, _high: 3600.0)
    bad = asyncio.create_task(fetched(fetcher, b"bad"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert source.asked == [b"bad"]
    assert await asyncio.wait_for(fetched(fetcher, b"good"), 5) == BODY
    bad.cancel()


async def test_bytes_stay_in_the_budget_until_the_block_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "IN_FLIGHT_BYTES", 8)
    fetcher = Fetcher(Scripted({b"k": [BODY]}), concurrency=9, max_bytes=KIB)
    async with fetcher.fetched(Address(b"k", 5, "e")):
        second = asyncio.create_task(fetched(fetcher))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not second.done()
    assert await asyncio.wait_for(second, 5) == BODY
