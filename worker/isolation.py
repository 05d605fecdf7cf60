"""Finding the assets that kill a worker: ranges of a chunk, one at a time, each in a rank of its own that may die.

Pure search; `worker.infer` supplies `survives`, which runs a range and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

MOST_DEADLY_ASSETS = 16


class TooDeadly(Exception):
    """More ranges die than single assets could explain: the fault is not in the assets."""


def find_poison(start: int, stop: int, survives: Callable[[int, int], bool]) -> list[int]:
    """Ordinals in start ≤ i < stop that kill on their own. Empty if the whole range survives now.

    A range that dies is halved; when both halves survive the death was not an asset's, and none is blamed.
    """
    poison: list[int] = []
    ranges = [(start, stop)]
    while ranges:
        low, high = ranges.pop()
        if low >= high or survives(low, high):
            continue
        if high - low == 1:
            poison.append(low)
            if len(poison) > MOST_DEADLY_ASSETS:
                raise TooDeadly(f"more than {MOST_DEADLY_ASSETS} assets of {start}..{stop - 1} kill the worker")
            continue
        middle = (low + high) // 2
        ranges += [(middle, high), (low, middle)]
    return sorted(poison)
