"""Shards → Batch jobs: arrays of 2 to `array_max`, a lone shard is a plain job (an array of one is refused)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from controller.core.decisions import StartAttempts
from controller.core.records import Request, Shard


def batches(placed: Sequence[tuple[str, Shard]], requests: dict[str, Request], array_max: int) -> list[StartAttempts]:
    """One StartAttempts a SubmitJob. All children of a job belong to one request and one queue."""

    def group(item: tuple[str, Shard]) -> tuple[str, str]:
        return item[1].request_id, item[0]

    started: list[StartAttempts] = []
    for (request_id, queue), items in groupby(sorted(placed, key=lambda i: (*group(i), i[1].shard)), key=group):
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
    for start in range(0, len(shards), size):
        yield shards[start : start + size]


def spread(shards: Sequence[Shard]) -> tuple[Shard, ...]:
    """The same shards with neighbours apart, so that children starting together do not hit one S3 partition."""
    stride = max(1, round(len(shards) ** 0.5))
    return tuple(shards[i] for first in range(stride) for i in range(first, len(shards), stride))
