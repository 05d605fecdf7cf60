"""Throughput, time left with an interval, and cost, from counts and measured seconds. All of it is an estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from controller.core.placement import QueueSpec
from controller.core.records import Request, ShardCounts
from schema.plan import Figures
from schema.states import Outcome, ShardState

#: Fewer finished shards than this say nothing about the rest.
MIN_SHARDS_FOR_ETA = 3


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Progress of one request. `eta_*_seconds` and `cost_usd` are None while nothing was measured."""

    assets: int
    done: int
    ok: int
    bad: int
    shards: int
    shards_done: int
    eta_seconds: float | None = None
    eta_low_seconds: float | None = None
    eta_high_seconds: float | None = None
    cost_usd: float | None = None
    wasted_usd: float | None = None


def summarise(
    request: Request,
    counts: ShardCounts,
    attempt_seconds: Mapping[tuple[str, str | None, str], float],
    prices_usd_per_hour: Mapping[str, float],
    now: datetime,
) -> Summary:
    """`attempt_seconds`: (queue, compute environment, outcome or `running`) → seconds, as Measures gives them. The
    price is that of the environment if it has one of its own, else the queue's."""
    low, middle, high = _eta(request, counts, now)
    prices = prices_usd_per_hour
    costs = {
        key: seconds / 3600 * prices.get(key[1] or key[0], prices.get(key[0], 0.0))
        for key, seconds in attempt_seconds.items()
    }
    wasted = sum(cost for (_, _, outcome), cost in costs.items() if outcome not in (Outcome.SUCCEEDED, "running"))
    return Summary(
        assets=request.assets,
        done=counts.assets_done,
        ok=counts.ok,
        bad=counts.bad,
        shards=request.shards,
        shards_done=counts[ShardState.SUCCEEDED],
        eta_seconds=middle,
        eta_low_seconds=low,
        eta_high_seconds=high,
        cost_usd=round(sum(costs.values()), 6) if costs else None,
        wasted_usd=round(wasted, 6) if costs else None,
    )


def _eta(request: Request, counts: ShardCounts, now: datetime) -> tuple[float | None, float | None, float | None]:
    """Low, middle, high: the rate so far, give or take one standard error of a Poisson count of shards."""
    finished = counts[ShardState.SUCCEEDED]
    elapsed = (now - request.created_at).total_seconds()
    left = request.assets - counts.assets_done
    if finished < MIN_SHARDS_FOR_ETA or counts.assets_done <= 0 or elapsed <= 0:
        return None, None, None
    middle = left * elapsed / counts.assets_done
    error = 1 / finished**0.5
    return round(middle * (1 - error / 2), 1), round(middle, 1), round(middle * (1 + error), 1)


def forecast(
    assets: int, shards: int, assets_per_second: Mapping[str, float], queues: Sequence[QueueSpec]
) -> dict[str, float]:
    """`eta_seconds` and `cost_usd` before the first shard ran, from rates measured on each queue; empty without any.

    Supposes that the preferred measured queue takes as many shards at once as its cap allows.
    """
    for queue in queues:
        rate = assets_per_second.get(queue.name, 0.0)
        if rate > 0:
            attempt_seconds = assets / rate
            at_once = max(1, min(shards, queue.max_live))
            return {
                "eta_seconds": round(attempt_seconds / at_once, 1),
                "cost_usd": round(attempt_seconds / 3600 * queue.price_usd_per_hour, 6),
            }
    return {}


def forecast_usd(summary: Summary) -> float | None:
    """What the whole request will have cost at the price per asset so far."""
    if summary.cost_usd is None or summary.done <= 0:
        return None
    return summary.cost_usd * summary.assets / summary.done


#: Figures that add up over attempts, and the name of the total each goes to.
_COUNTED = (
    "assets",
    "ok",
    "bad",
    "bytes_fetched",
    "throttled",
    "fetch_seconds",
    "decode_seconds",
    "wait_seconds",
    "compute_seconds",
    "write_seconds",
    "chunks_done",
    "chunks_reused",
)


def figure_deltas(before: Figures, after: Figures) -> dict[str, float]:
    """What a newer report of the same attempt adds to the totals; figures are cumulative, so never negative."""
    deltas = {name: getattr(after, name) - getattr(before, name) for name in _COUNTED}
    return {name: float(delta) for name, delta in deltas.items() if delta > 0}
