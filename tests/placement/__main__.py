"""`python -m tests.placement`: every trace, ours and the baselines; one JSON line at the end.

The committed traces and 20 generated ones, from seeds that nobody has seen: unless given, they come from the system's
randomness, and are printed, so that a run can be repeated.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from tests.placement.baselines import Result, fixed_order, ordered_environments, single_queue
from tests.placement.bounds import cheapest_usd, shortest_seconds
from tests.placement.controller import ours
from tests.placement.traces import Trace, committed, generated

SHARDS = 20_000
GENERATED = 20
BASELINES: dict[str, Callable[[Trace, list[float]], Result]] = {
    "single_queue": single_queue,
    "ordered_environments": ordered_environments,
    "fixed_order": fixed_order,
}


@dataclass(frozen=True)
class Score:
    """`over_bound` and `over_cheapest` are ratios; the cheapest plan is that of ours' own makespan."""

    name: str
    hard: bool
    bound_seconds: float
    over_bound: dict[str, float]
    over_cheapest: dict[str, float]

    @property
    def beaten_by(self) -> list[str]:
        return [name for name in BASELINES if self.over_bound[name] <= self.over_bound["ours"]]


def work_of(shards: int) -> list[float]:
    """Sizes of the shards in mean shards: equal but for 15 %."""
    rng = random.Random(f"{shards} shards")
    return [rng.uniform(0.85, 1.15) for _ in range(shards)]


def score(trace: Trace, shards: int = SHARDS) -> Score:
    work = work_of(shards)
    bound = shortest_seconds(trace, work)
    results = {name: run(trace, work) for name, run in {"ours": ours, **BASELINES}.items()}
    return Score(
        name=trace.name,
        hard=trace.hard,
        bound_seconds=bound,
        over_bound={name: result.makespan_seconds / bound for name, result in results.items()},
        over_cheapest={
            name: result.usd / cheapest_usd(trace, work, max(bound, result.makespan_seconds))
            for name, result in results.items()
        },
    )


def report(scores: Sequence[Score]) -> dict[str, object]:
    lost = [f"{each.name}: {name}" for each in scores if each.hard for name in each.beaten_by]
    return {
        "traces": len(scores),
        "makespan_over_bound": round(sum(each.over_bound["ours"] for each in scores) / len(scores), 4),
        "cost_over_cheapest": round(sum(each.over_cheapest["ours"] for each in scores) / len(scores), 4),
        "beaten_by_a_baseline": lost,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(prog="python -m tests.placement")
    options.add_argument("--first-seed", type=int, default=secrets.randbelow(10**9))
    options.add_argument("--shards", type=int, default=SHARDS)
    chosen = options.parse_args(arguments)
    seeds = range(chosen.first_seed, chosen.first_seed + GENERATED)
    traces = [*committed(), *(generated(seed) for seed in seeds)]
    _print("makespan over the lower bound / cost over the cheapest plan of that makespan")
    _print(f"{'trace':24}{'bound':>8}  " + "".join(f"{name:>22}" for name in ("ours", *BASELINES)))
    scores: list[Score] = []
    with ProcessPoolExecutor(max_workers=2) as pool:
        for each in pool.map(score, traces, [chosen.shards] * len(traces)):
            cells = (f"{each.over_bound[n]:.3f} / {each.over_cheapest[n]:.3f}" for n in ("ours", *BASELINES))
            _print(f"{each.name:24}{each.bound_seconds / 3600:7.2f}h  " + "".join(f"{cell:>22}" for cell in cells))
            scores.append(each)
    _print(json.dumps(report(scores)))


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
