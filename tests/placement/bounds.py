"""What nobody can beat on a trace: the shortest makespan, and the cheapest plan of a given makespan.

Both know the whole trace, lose nothing to reclaims or tails, split work at will, and use every instance from the
moment it can be up. Only what each plan must pay is counted: an instance that appears needs its start-up (and is paid
for meanwhile), and each shard needs its model loaded (counted at the share it has of the largest shard, so that this
stays a bound for any choice of shards). The quota must stand still: a lower one kills nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.placement.traces import FAMILIES, Steps, Trace
from tests.placement.world import COLD_SECONDS, MODEL_SECONDS


@dataclass(frozen=True)
class Layer:
    """`count` instances of a family that exist from `start` to `end`, and can work from a start-up later."""

    family: str
    start: float
    end: float
    count: int


@dataclass(frozen=True)
class Plan:
    work: float
    usd: float


def shortest_seconds(trace: Trace, work: Sequence[float]) -> float:
    """When the capacity integral, at each moment the fastest families first within the quota, reaches the work."""
    speed = _work_per_second(max(work))
    layers = _layers(trace, float("inf"))
    left = sum(work)
    for start, end in _stretches(layers):
        left -= _spared(trace, start) * max(work)
        rate, quota = 0.0, trace.quota_at(start)
        for layer in sorted(_working(layers, start), key=lambda layer: -speed[layer.family]):
            used = min(layer.count, quota)
            rate, quota = rate + used * speed[layer.family], quota - used
        if rate and left <= rate * (end - start):
            return start + max(0.0, left) / rate
        left -= rate * (end - start) if rate else 0.0
    raise ValueError(f"{trace.name} has not enough capacity, ever")


def cheapest_usd(trace: Trace, work: Sequence[float], makespan_seconds: float) -> float:
    """A linear program with one coupling row (all the work gets done), solved by its price: at a price of work, each
    moment uses the instances that are worth theirs. Between the two nearest prices the plan is a mixture."""
    speed = _work_per_second(max(work))
    layers = _layers(trace, makespan_seconds)
    wanted = sum(work) - sum(_spared(trace, at) for at in trace.changes() if at < makespan_seconds) * max(work)
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _plan(trace, layers, speed, middle).work >= wanted else (middle, high)
    less, more = _plan(trace, layers, speed, low), _plan(trace, layers, speed, high)
    if more.work < wanted * (1 - 1e-6):
        raise ValueError(f"{trace.name}: no plan of {makespan_seconds:.0f} s does the work")
    share = 1.0 if more.work <= less.work else min(1.0, max(0.0, (wanted - less.work) / (more.work - less.work)))
    return less.usd + share * (more.usd - less.usd)


def _plan(trace: Trace, layers: Sequence[Layer], speed: Mapping[str, float], price: float) -> Plan:
    """What is used when a mean shard is worth `price` USD."""
    usd_per_hour = {family.name: family.usd_per_hour for family in FAMILIES}

    def usd_per_second(layer: Layer) -> float:
        # However short its use, a start-up is paid: at best it is spread over the whole life of the instance.
        life = layer.end - layer.start
        return usd_per_hour[layer.family] / 3600 * life / (life - COLD_SECONDS)

    def gain(layer: Layer) -> float:
        return price * speed[layer.family] - usd_per_second(layer)

    done = usd = 0.0
    worth = sorted((layer for layer in layers if gain(layer) > 0), key=lambda layer: -gain(layer))
    for start, end in _stretches(layers):
        quota = trace.quota_at(start)
        for layer in _working(worth, start):
            used = min(layer.count, quota)
            quota -= used
            done += used * speed[layer.family] * (end - start)
            usd += used * usd_per_second(layer) * (end - start)
    return Plan(done, usd)


def _work_per_second(largest: float) -> dict[str, float]:
    """Of one instance, in mean shards."""
    return {family.name: 1 / (family.seconds + MODEL_SECONDS / largest) for family in FAMILIES}


def _layers(trace: Trace, until: float) -> list[Layer]:
    """The last to come are the first to go: so the others live longest, which is what a plan would wish."""
    found = [layer for name, steps in trace.queues.items() for layer in _of_steps(name, steps, until)]
    return [layer for layer in found if layer.end - layer.start > COLD_SECONDS]


def _of_steps(name: str, steps: Steps, until: float) -> list[Layer]:
    layers: list[Layer] = []
    standing: list[tuple[float, int]] = []
    level = 0
    for at, wanted in steps:
        if at >= until:
            break
        if wanted > level:
            standing.append((at, wanted - level))
        while wanted < level:
            start, count = standing.pop()
            gone = min(count, level - wanted)
            layers.append(Layer(name, start, at, gone))
            level -= gone
            if gone < count:
                standing.append((start, count - gone))
        level = wanted
    return layers + [Layer(name, start, until, count) for start, count in standing]


def _stretches(layers: Sequence[Layer]) -> list[tuple[float, float]]:
    """Between these moments nothing changes."""
    moments = sorted({at for layer in layers for at in (layer.start + COLD_SECONDS, layer.end)})
    return list(itertools.pairwise(moments))


def _working(layers: Sequence[Layer], at: float) -> list[Layer]:
    return [layer for layer in layers if layer.start + COLD_SECONDS <= at < layer.end]


def _spared(trace: Trace, at: float) -> int:
    """Instances that go at this moment where nothing is reclaimed: each may still end a shard, so each is given one."""
    falls = (max(0, trace.level(name, at - 1) - trace.level(name, at)) for name in trace.queues)
    return 0 if trace.reclaims else sum(falls)
