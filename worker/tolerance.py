"""When a shard is too bad to go on: pure judgements over counts of statuses.

Bad rows are judged against the whole shard, so that a handful of bad assets at its beginning proves nothing, and a
verdict before its end is given only when no later row could change it.
"""

from __future__ import annotations

from enum import StrEnum

from schema.states import RowStatus
from worker.rows import bad_rows

PROBATION_ROWS = 100


class Verdict(StrEnum):
    """What to do about the rows seen so far."""

    GO_ON = "go_on"
    BAD_DATA = "bad_data"
    ALL_DENIED = "all_denied"


def judge(statuses: dict[str, int], shard_rows: int, tolerance: float, *, finalise: bool) -> Verdict:
    """`statuses`: of the rows stored so far. Retryable rows count as bad only where this attempt makes them final."""
    seen = sum(statuses.values())
    denied = statuses.get(RowStatus.DENIED, 0)
    if denied and denied == seen and seen >= min(PROBATION_ROWS, shard_rows):
        return Verdict.ALL_DENIED
    if bad_rows(statuses, with_retryable=finalise) > tolerance * shard_rows:
        return Verdict.BAD_DATA
    return Verdict.GO_ON
