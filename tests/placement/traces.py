"""Capacity traces: how many instances each family could have at each moment.

A trace is a JSON file in `traces/`: for each queue a list of steps [second, instances], each level standing until the
next. `dwell_seconds` is how long the head of a queue must be blocked before Batch says why (with `reasons` false it
never does), and also how long Batch waits for one compute environment before it asks the next. `quota` caps all
families together, and no reason ever tells of it. Where `reclaims` is false a falling level kills nothing: what runs
ends, and its instance is not replaced.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

Steps = tuple[tuple[float, int], ...]

FOLDER = Path(__file__).parent / "traces"
HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class Family:
    """What one instance does. `seconds`: one mean shard; `usd_per_hour`: the on-demand price of an .xlarge."""

    name: str
    seconds: float
    usd_per_hour: float


#: In the order of preference. A shard is 10 minutes of work on the fastest and 18 on the slowest.
FAMILIES = (
    Family(name="g6e", seconds=600.0, usd_per_hour=1.861),
    Family(name="g6", seconds=1080.0, usd_per_hour=0.8048),
    Family(name="g5", seconds=900.0, usd_per_hour=1.006),
)


@dataclass(frozen=True, kw_only=True)
class Trace:
    name: str
    about: str
    queues: dict[str, Steps]
    quota: Steps = ((0.0, 1_000_000),)
    dwell_seconds: float = 600.0
    reasons: bool = True
    reclaims: bool = True

    def changes(self) -> list[float]:
        """Every moment at which a level changes."""
        return sorted({at for steps in (*self.queues.values(), self.quota) for at, _ in steps})

    def level(self, queue: str, at: float) -> int:
        return _level(self.queues[queue], at)

    def quota_at(self, at: float) -> int:
        return _level(self.quota, at)

    def segments(self) -> Iterator[tuple[float, float, dict[str, int], int]]:
        """(from, to, level of each queue, quota); the last one has no end."""
        moments = [*self.changes(), float("inf")]
        for start, end in itertools.pairwise(moments):
            yield start, end, {name: self.level(name, start) for name in self.queues}, self.quota_at(start)

    @property
    def longest_dry_seconds(self) -> float:
        """The longest time in which one queue has nothing, between two in which it has something or at the start."""
        return max((_longest_zero(steps) for steps in self.queues.values()), default=0.0)

    @property
    def storms(self) -> bool:
        """Running work is reclaimed: some level falls, and falling kills."""
        falls = any(b < a for steps in self.queues.values() for (_, a), (_, b) in itertools.pairwise(steps))
        return falls and self.reclaims

    @property
    def hard(self) -> bool:
        """It has a dry spell or a storm."""
        return self.storms or self.longest_dry_seconds > 0


def _level(steps: Steps, at: float) -> int:
    return next((level for start, level in reversed(steps) if start <= at), 0)


def _longest_zero(steps: Steps) -> float:
    spells = [after - start for (start, level), (after, _) in itertools.pairwise(steps) if level == 0]
    return max(spells, default=0.0)


def committed() -> list[Trace]:
    """Those in the folder, by name."""
    return [load(path) for path in sorted(FOLDER.glob("*.json"))]


def load(path: Path) -> Trace:
    document = json.loads(path.read_text())
    for key in ("quota",):
        if key in document:
            document[key] = _steps(document[key])
    document["queues"] = {name: _steps(steps) for name, steps in document["queues"].items()}
    return Trace(**document)


def dump(trace: Trace) -> str:
    return json.dumps(asdict(trace), indent=1) + "\n"


def _steps(pairs: Sequence[Sequence[float]]) -> Steps:
    return tuple((float(at), int(level)) for at, level in pairs)


def generated(seed: int) -> Trace:
    """A random trace: each queue wanders between plenty, little and nothing, levels standing 10 minutes to 3 hours."""
    rng = random.Random(f"capacity trace {seed}")
    queues = {family.name: _wander(rng, rng.randint(60, 400)) for family in FAMILIES}
    total = sum(max(level for _, level in steps) for steps in queues.values())
    quota: Steps = ((0.0, round(total * rng.uniform(0.4, 0.7))),) if rng.random() < 0.2 else Trace.quota
    return Trace(
        name=f"seed-{seed}",
        about="generated",
        queues=queues,
        quota=quota,
        dwell_seconds=rng.choice([600.0, 900.0, 1200.0]),
        reasons=rng.random() < 0.7,
    )


def _wander(rng: random.Random, full: int) -> Steps:
    """Ends with plenty, so that the work gets done."""
    steps: list[tuple[float, int]] = []
    at = 0.0
    while at < 24 * HOUR:
        share = rng.choice([0.0, 0.05, 0.3, 0.6, 1.0, 1.0])
        steps.append((at, round(full * share)))
        at += rng.uniform(1.0, 3.0) * HOUR if share == 0 else rng.uniform(600.0, 3 * HOUR)
    steps.append((at, full))
    return tuple(steps)
