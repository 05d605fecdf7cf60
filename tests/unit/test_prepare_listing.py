"""Parallel listing: the exact keys in byte order, whatever the keys, the page size and the number of threads."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schema.shardfile import Address
from worker.listing import OutOfOrder, Page, ParallelListing, middle
from worker.spill import Spill

characters = st.characters(exclude_categories=["Cs"])
texts = st.text(characters, max_size=12) | st.text("ab/0", max_size=6)


class Bucket:
    """ListObjectsV2 of a fixed set of keys, counted."""

    def __init__(self, keys: list[str], page_keys: int = 1000) -> None:
        self.keys = sorted(keys, key=str.encode)
        self.page_keys = page_keys
        self.requests = 0
        self.empty = 0

    def list_after(self, after: str) -> Page:
        start = bisect_right(self.keys, after)
        keys = self.keys[start : start + self.page_keys]
        self.requests += 1
        self.empty += not keys
        addresses = [Address(key.encode(), len(key), "") for key in keys]
        return Page(keys, addresses, start + self.page_keys < len(self.keys))


def listed(list_after: Callable[[str], Page], prefix: str = "", concurrency: int = 4) -> list[str]:
    with Spill() as spill:
        listing = ParallelListing(list_after, prefix=prefix, concurrency=concurrency, spill=spill, bucket="photos")
        return [address.key.decode() for address in listing]


@given(texts, texts | st.none())
@example("a", "b")
@example("a", "aa")
@example("", "\0")
@example("\ud7fe", "\ue000")
@example("images/0000", None)
@example("\U0010ffff", None)
def test_the_middle_lies_strictly_between(low: str, high: str | None) -> None:
    if high is not None and low >= high:
        low, high = high, low
    found = middle(low, high)
    if found is not None:
        assert low < found
        assert high is None or found < high
        assert found.encode().decode() == found


@pytest.mark.parametrize(
    ("low", "high"), [("images/00012", None), ("a", "c"), ("写真/1", None), ("k", "k zz"), ("a1", "a2"), ("", "b")]
)
def test_there_is_a_middle_where_people_need_one(low: str, high: str | None) -> None:
    assert middle(low, high) is not None


def test_no_middle_where_there_is_no_room() -> None:
    assert middle("a", "a ") is None
    assert middle("a" * 1024, "a" * 1023 + "b") is None


@settings(max_examples=60)
@given(
    st.sets(st.text(characters, min_size=1, max_size=5) | st.text("ab0/", min_size=1, max_size=8), max_size=80),
    st.integers(1, 7),
    st.integers(1, 6),
)
def test_every_key_once_in_byte_order(keys: set[str], page_keys: int, concurrency: int) -> None:
    bucket = Bucket(list(keys), page_keys)
    assert listed(bucket.list_after, concurrency=concurrency) == bucket.keys


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param([f"images/{n:08d}.jpg" for n in range(3000)], id="sequential"),
        pytest.param([f"images/2024/{n % 12 + 1:02d}/{n:x}.jpg" for n in range(3000)], id="dated"),
        pytest.param([f"images/{'x' * 300}{n}" for n in range(3000)], id="long common prefix"),
        pytest.param([f"images/写真/{n}" for n in range(3000)], id="beyond ASCII"),
    ],
)
def test_the_work_is_shared_at_little_cost(keys: list[str]) -> None:
    """Every thread stops at its second find until each has one: only cut ranges let them go on."""
    bucket = Bucket(keys, page_keys=10)
    found: set[str] = set()
    everybody = threading.Event()

    def list_after(after: str) -> Page:
        page = bucket.list_after(after)
        name = threading.current_thread().name
        if page.keys and name in found:
            assert everybody.wait(timeout=60), "some thread found no work"
        elif page.keys:
            found.add(name)
            if len(found) == 4:
                everybody.set()
        return page

    assert listed(list_after, prefix="images/") == bucket.keys
    assert bucket.empty < 150


def test_a_cut_that_comes_too_late_is_dropped() -> None:
    """The owner of the range lists past the point while the page after it is on its way."""
    bucket = Bucket([f"{number:04d}" for number in range(400)], page_keys=2)
    points: list[str] = []
    asked, overtaken = threading.Event(), threading.Event()

    def list_after(after: str) -> Page:
        page = bucket.list_after(after)
        if threading.current_thread().name != "list-0":
            if page.keys and not points:
                points.append(after)
                asked.set()
                assert overtaken.wait(timeout=60)
        elif after:
            assert asked.wait(timeout=60)
            if after > points[0]:
                overtaken.set()
        return page

    assert listed(list_after, concurrency=2) == bucket.keys
    assert overtaken.is_set()


def test_an_error_of_any_thread_ends_the_iteration() -> None:
    bucket = Bucket([f"{n:05d}" for n in range(5000)], page_keys=10)

    def list_after(after: str) -> Page:
        if after > "02":
            raise PermissionError("denied")
        return bucket.list_after(after)

    with pytest.raises(PermissionError, match="denied"):
        listed(list_after)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("list-")]


def test_leaving_the_iteration_stops_the_threads() -> None:
    bucket = Bucket([f"{n:05d}" for n in range(5000)], page_keys=10)
    with Spill() as spill:
        listing = ParallelListing(bucket.list_after, prefix="", concurrency=4, spill=spill, bucket="photos")
        iteration = iter(listing)
        assert next(iteration).key == b"00000"
        iteration.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("list-")]


def test_a_bucket_that_does_not_sort_is_refused() -> None:
    with pytest.raises(OutOfOrder):
        listed(lambda after: Page(["b", "a"], [Address(b"b", 1, ""), Address(b"a", 1, "")], False))


def test_a_bucket_that_ignores_start_after_is_refused() -> None:
    with pytest.raises(OutOfOrder):
        listed(lambda after: Page(["a"], [Address(b"a", 1, "")], True))
