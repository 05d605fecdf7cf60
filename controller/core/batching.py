"""Shards → Batch jobs: arrays of 2 to `array_max`, a lone shard is a plain job (an array of one is refused).

A lot that is too long for one array is cut evenly, so that no child is left over alone. Shards that just ran out of
memory get jobs of their own: all children of an array ask for the same memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from controller.core.decisions import StartAttempts
from controller.core.records import Request, Shard
from schema.states import Outcome


def batches(placed: Sequence[tuple[str, Shard]], requests: dict[str, Request], array_max: int) -> list[StartAttempts]:
    """One StartAttempts a SubmitJob. All children of a job belong to one request and one queue."""

    def group(item: tuple[str, Shard]) -> tuple[str, str, bool]:
        return item[1].request_id, item[0], item[1].last_outcome is Outcome.OUT_OF_MEMORY

    started: list[StartAttempts] = []
    for (request_id, queue, _), items in groupby(sorted(placed, key=lambda i: (*group(i), i[1].shard)), key=group):
        shards = [shard for _, shard in items]
        for part in _parts(shards, array_max):
            started.append(
                StartAttempts(
                    request_id=request_id,
                    queue=queue,
                    shards=spread(part),
                    multi_node=requests[request_id].multi_node,
                )
            )
    return started


def _parts(shards: Sequence[Shard], size: int) -> Iterable[Sequence[Shard]]:
    parts = -(-len(shards) // size)
    ends = [len(shards) * part // parts for part in range(parts + 1)]
    for start, end in pairwise(ends):
        yield shards[start:end]


def spread(shards: Sequence[Shard]) -> tuple[Shard, ...]:
    """The same shards with neighbours apart, so that children starting together do not hit one S3 partition."""
    stride = max(1, round(len(shards) ** 0.5))
    return tuple(shards[i] for first in range(stride) for i in range(first, len(shards), stride))
