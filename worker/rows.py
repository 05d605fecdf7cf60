"""One row an asset: what became of it. Made by the stages, written by `worker.chunks`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schema.states import RETRYABLE, RowStatus


@dataclass(frozen=True, slots=True)
class Failure:
    """A stage's verdict that ends an asset's way; every stage may return one instead of its product."""

    status: RowStatus
    error: str
    http_status: int | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """What the header said: as stored, before rotation. `format` is Pillow's name, such as JPEG."""

    width: int
    height: int
    format: str


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the output. `embedding` float32 (D,) if and only if the status is ok."""

    key: bytes
    ordinal: int
    status: RowStatus
    error: str | None = None
    http_status: int | None = None
    bytes: int = 0
    picture: Picture | None = None
    etag: str = ""
    embedding: npt.NDArray[np.float32] | None = None

    @property
    def retryable(self) -> bool:
        return self.status in RETRYABLE


def count(statuses: Iterable[str]) -> dict[str, int]:
    """How often each status, by name, in a fixed order."""
    return {str(status): number for status, number in sorted(Counter(map(str, statuses)).items())}


def add(*counts: dict[str, int]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))


def ok_rows(statuses: dict[str, int]) -> int:
    return statuses.get(RowStatus.OK, 0)


def retryable_rows(statuses: dict[str, int]) -> int:
    return sum(statuses.get(status, 0) for status in RETRYABLE)


def bad_rows(statuses: dict[str, int], *, with_retryable: bool) -> int:
    """Rows that are not ok; retryable ones count only where they have become final."""
    bad = sum(statuses.values()) - ok_rows(statuses)
    return bad if with_retryable else bad - retryable_rows(statuses)
