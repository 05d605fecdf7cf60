"""What the demo measured: the last line of its output, and what must be true of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from deploy.local.output import Output
from deploy.local.photos import DemoSet
from schema.states import Outcome


@dataclass(frozen=True)
class DemoFigures:
    """`attempts` to `fallbacks` are of inference; recall_random_weights is None where it was not computed."""

    assets: int
    ok: int
    bad: int
    shards: int
    attempts: int
    fallbacks: int
    reclaimed: int
    refused: int
    throttled: int
    chunks_reused: int
    recall_at_5: float
    recall_chance: float
    recall_random_weights: float | None
    seconds: float

    def line(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class AttemptFigures:
    """Of every attempt of every shard."""

    attempts: int
    fallbacks: int
    reclaimed: int
    throttled: int
    chunks_reused: int

    @classmethod
    def of(cls, shards: Sequence[Mapping[str, Any]]) -> AttemptFigures:
        """From shards as the API shows them, attempts oldest first."""
        attempts = [attempt for shard in shards for attempt in shard["attempts"]]
        return cls(
            attempts=len(attempts),
            fallbacks=sum(_fallbacks(shard["attempts"]) for shard in shards),
            reclaimed=sum(attempt["outcome"] == Outcome.SPOT_RECLAIMED for attempt in attempts),
            throttled=sum(attempt["figures"]["throttled"] for attempt in attempts),
            chunks_reused=sum(attempt["figures"]["chunks_reused"] for attempt in attempts),
        )


def _fallbacks(attempts: Sequence[Mapping[str, Any]]) -> int:
    """How often a queue without capacity was given up for another one."""
    return sum(
        before["outcome"] == Outcome.NO_CAPACITY and before["queue"] != after["queue"]
        for before, after in pairwise(attempts)
    )


def faults_in_output(output: Output, pictures: DemoSet) -> list[str]:
    """Every asset in exactly one row, with the status that it should have."""
    keys = {asset.key for asset in pictures.assets}
    faults = [f"{key} is not in exactly one row" for key in sorted(output.not_exactly_once(keys))]
    statuses = output.statuses
    for key, expected in pictures.expected_status.items():
        if statuses.get(key) != expected:
            faults.append(f"{key} is {statuses.get(key)}, not {expected}")
    manifest = output.manifest
    if manifest.ok + manifest.bad != len(keys):
        faults.append(f"{manifest.ok} ok and {manifest.bad} bad are not {len(keys)} assets")
    return faults


def faults_in_chaos(figures: DemoFigures, fired: Mapping[str, int]) -> list[str]:
    """Each fault fired, and the system felt it and coped."""
    wanted = {
        "the spot reclaim did not fire": fired["reclaimed"],
        "g6e refused no job": fired["refused"],
        "the object store throttled nothing": fired["throttled"],
        "no attempt was reclaimed": figures.reclaimed,
        "no worker met a throttled read": figures.throttled,
        "no shard fell back to another queue": figures.fallbacks,
        "no finished chunk was reused": figures.chunks_reused,
    }
    return [fault for fault, count in wanted.items() if count < 1]
