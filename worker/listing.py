"""Parallel listing: every object below a prefix, once, in byte order, by bisecting the key space while it is listed.

S3 lists 1,000 keys a page and one page after another, about 12,000 keys a second. So several threads list ranges
of the key space at once. A thread without work cuts the rest of another's range in two by asking for the page
after a point in the middle: an empty page shows that nothing is there, any other is the first of the new range.
Thus no hint about the keys is needed, and hardly a request is wasted.

A range is (after, until]; ranges are disjoint, cover everything and form a list in key order, so the result is
exact whatever the threads do. What is listed goes packed into one nameless file, and is read back in key order
while the threads go on: memory stays small and no thread ever waits for its turn.

Knows pages (`list_after`), not S3. Fails with what `list_after` raises, in the thread that iterates.
Points in the middle need not be keys. Code-point order is UTF-8 byte order, so keys are compared as text.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from itertools import islice
from os.path import commonprefix

from schema.shardfile import MAX_KEY_BYTES, Address
from worker.spill import Extent, Spill

#: Lowest character of a cutting point. Control characters stay out of requests where they can.
_FLOOR = 0x20
_MISSES = 3
_ASCII_END = 0x7F
_UNICODE_END = 0x110000
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True)
class Page:
    """Some keys in ascending order, and whether more follow the last of them. Without `more` it is the end."""

    keys: list[str]
    addresses: list[Address]
    more: bool


@dataclass
class _Range:
    """(after, until] of the key space; `until` None is open. `after` moves on as pages come in.

    Of a run in `extents` only the first so many addresses count: the rest belongs to the range cut off.
    """

    after: str
    until: str | None
    following: _Range | None = None
    extents: deque[tuple[Extent, int]] = field(default_factory=lambda: deque[tuple[Extent, int]]())
    more: bool = False
    #: How many leading characters the keys of the last page share, and how many cuts in a row found nothing.
    shared: int = 0
    misses: int = 0
    being_cut: bool = False
    done: bool = False


class OutOfOrder(Exception):
    """The bucket does not list in byte order, as a directory bucket does not."""


def middle(low: str, high: str | None) -> str | None:
    """A string between the two, about half way for keys as people write them; None if none is found.

    Where `high` sets no bound, the middle is taken between `low` and the end of ASCII first: most keys are ASCII.
    """
    found: list[str] = []
    bounded = high is not None
    for at in range(max(len(low), len(high or "")) + 1):
        first = ord(low[at]) if at < len(low) else _FLOOR - 1
        if bounded and (high is None or at >= len(high)):
            return None
        end = ord(high[at]) if bounded and high is not None else _ASCII_END if first < _ASCII_END - 1 else _UNICODE_END
        between = (first + end) // 2
        if between in _SURROGATES:
            between = _SURROGATES.start - 1 if first < _SURROGATES.start - 1 else _SURROGATES.stop
        if first < between < end:
            cut = "".join([*found, chr(between)])
            return cut if len(cut.encode()) <= MAX_KEY_BYTES else None
        # No room at this place. Follow `low`, below which the sky is open, or `high` where `low` has ended.
        if at < len(low):
            bounded = bounded and first == end
            found.append(low[at])
        elif bounded:
            found.append(chr(end))
    return None


def _point(target: _Range, skip: int) -> str | None:
    """Where to cut a range: in the middle of its key space, or, after misses, where its last page varies.

    A long prefix common to all keys costs several cuts a character that find nothing; the second way jumps there.
    """
    low, high = target.after[skip:], None if target.until is None else target.until[skip:]
    if target.misses >= _MISSES:
        keep = max(target.shared - skip, 0)
        below = middle(low[keep:], None)
        if below is not None and (high is None or low[:keep] + below < high):
            return target.after[: skip + keep] + below
    point = middle(low, high)
    return None if point is None else target.after[:skip] + point


class ParallelListing:
    """One pass over a prefix by `concurrency` threads. Iterate once; leaving the iteration stops the threads."""

    def __init__(
        self, list_after: Callable[[str], Page], *, prefix: str, concurrency: int, spill: Spill, bucket: str
    ) -> None:
        self._list_after = list_after
        self._prefix = prefix
        self._spill = spill
        self._bucket = bucket
        self._concurrency = max(1, concurrency)
        self._changed = threading.Condition()
        self._head = _Range("", None)
        self._active: deque[_Range] = deque([self._head])
        self._error: BaseException | None = None
        self._closing = False

    def __iter__(self) -> Generator[Address]:
        first: list[_Range | None] = [self._head]
        work = first + [None] * (self._concurrency - 1)
        threads = [threading.Thread(target=self._work, args=(mine,), name=f"list-{n}") for n, mine in enumerate(work)]
        for thread in threads:
            thread.start()
        try:
            yield from self._in_order()
        finally:
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            for thread in threads:
                thread.join()

    def _in_order(self) -> Iterator[Address]:
        current: _Range | None = self._head
        while current is not None:
            with self._changed:
                self._changed.wait_for(lambda r=current: r.extents or r.done or self._error)
                if self._error is not None:
                    raise self._error
                extent, count = current.extents.popleft() if current.extents else (None, 0)
                if extent is None:
                    # A finished range is never cut again, so what follows it is final.
                    current = current.following
            if extent is not None:
                yield from islice(self._spill.read(extent), count)

    # -- the threads ---------------------------------------------------------------------------------

    def _work(self, mine: _Range | None) -> None:
        try:
            while True:
                if mine is None:
                    mine = self._cut_one()
                if mine is None:
                    return
                self._list(mine)
                mine = None
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _list(self, mine: _Range) -> None:
        while not mine.done and not self._ended():
            page = self._list_after(mine.after)
            self._take(mine, page)

    def _take(self, mine: _Range, page: Page) -> None:
        """Add what of the page lies in the range, whose end may have come nearer since the page was asked for."""
        if any(key <= before for before, key in zip([mine.after, *page.keys], page.keys, strict=False)):
            raise OutOfOrder(f"the keys below {self._prefix!r} are not listed in byte order")
        extent = self._spill.write(self._bucket, page.addresses)
        with self._changed:
            until = mine.until
            inside = len(page.keys) if until is None else bisect_right(page.keys, until)
            if inside:
                mine.extents.append((extent, inside))
                mine.after = page.keys[inside - 1]
                mine.shared = len(commonprefix([page.keys[0], mine.after]))  # noqa: RUF071 - characters are meant
            mine.more = page.more and inside == len(page.keys) and mine.after != until
            if not mine.more:
                mine.done = True
                self._active.remove(mine)
            self._changed.notify_all()

    def _cut_one(self) -> _Range | None:
        """A new range, the upper part of another's; waits for one that can be cut. None when all is listed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended() or not self._active or self._candidate() is not None)
                candidate = None if self._ended() else self._candidate()
                if candidate is None:
                    return None
                target, point = candidate
                target.being_cut = True
                self._active.remove(target)
                self._active.append(target)  # each in turn
            page = self._list_after(point)
            new = self._cut(target, point, page)
            if new is not None:
                self._take(new, page)
                if not new.done:
                    return new

    def _cut(self, target: _Range, point: str, page: Page) -> _Range | None:
        """End `target` at `point`; a range for the rest, if anything was seen there and `target` is not past it."""
        with self._changed:
            target.being_cut = False
            self._changed.notify_all()
            if target.done or target.after >= point:
                return None
            until, target.until = target.until, point
            if not page.keys or (until is not None and page.keys[0] > until):
                target.misses += 1
                return None
            target.misses = 0
            new = _Range(point, until, following=target.following)
            target.following = new
            self._active.append(new)
            return new

    def _candidate(self) -> tuple[_Range, str] | None:
        """The range whose turn it is, and where to cut it. Only ranges known to hold more are worth a request."""
        for target in self._active:
            if target.more and not target.being_cut:
                point = _point(target, len(self._prefix))
                if point is not None:
                    return target, point
        return None

    def _ended(self) -> bool:
        return self._closing or self._error is not None
