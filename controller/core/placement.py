"""Which queue next: what a queue can hold, in which order queues are tried, and where each shard goes.

A shard goes to the first queue of its order that fits and has room; when that one is full the backlog overflows to
the next. The order is the settings' (or the request's) own, or that of price, or that of speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from controller.core.circuits import CircuitLimits
from controller.core.records import Circuit, QueueLoad, QueueState, Request, Shard


class Order(StrEnum):
    """Which of the queues with room comes first."""

    LISTED = "listed"
    COST = "cost"
    SPEED = "speed"


@dataclass(frozen=True, kw_only=True)
class QueueSpec:
    """What the settings say of a queue; the order of a sequence of them is the order of preference.

    `gpu_memory_mib` is that of its smallest family. Queues with one `quota` share `quota_vcpus`.
    """

    name: str
    max_live: int
    backlog: int
    price_usd_per_hour: float
    on_demand: bool = False
    multi_node: bool = False
    gpu_memory_mib: int | None = None
    quota: str = ""
    vcpus: int = 4


@dataclass(frozen=True, kw_only=True)
class PlacementLimits(CircuitLimits):
    """From settings.Placement."""

    stall_seconds: float
    order: Order = Order.LISTED
    cost_spread: float = 2.0


def depth(spec: QueueSpec, state: QueueState, load: QueueLoad, limits: PlacementLimits) -> int:
    """How many attempts may wait in the queue, so that there is always one for an instance that comes up.

    The backlog stays shallow so that a dry spell strands little, but not in proportion to what runs: capacity that
    comes back, or grows twentyfold, must find enough to do.
    """
    if state.paused:
        return 0
    if state.circuit is not Circuit.CLOSED:
        return min(spec.backlog, limits.probe_size + load.running)
    return spec.backlog


def room(spec: QueueSpec, state: QueueState, load: QueueLoad, limits: PlacementLimits) -> int:
    """How many more attempts the queue takes now; nothing new while its circuit is open."""
    sent = load.submitting + load.queued
    if state.circuit is Circuit.OPEN and not load.running:
        return 0
    return max(0, min(spec.max_live - sent - load.running, depth(spec, state, load, limits) - sent))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which queues a request may use, in which order. `speeds`: assets per second by model and queue, as measured;
    `needs_mib`: GPU memory by model."""

    queues: Sequence[QueueSpec]
    order: Order = Order.LISTED
    cost_spread: float = 2.0
    needs_mib: Mapping[str, int] | None = None
    speeds: Mapping[str, Mapping[str, float]] | None = None

    def of(self, request: Request, open_queues: frozenset[str] = frozenset()) -> list[QueueSpec]:
        """In order; `open_queues` are those without capacity now."""
        usable = [queue for queue in self.queues if self._fits(request, queue)]
        if request.queues is not None:
            by_name = {queue.name: queue for queue in usable}
            usable = [by_name[name] for name in request.queues if name in by_name]
        speeds = (self.speeds or {}).get(request.model, {})
        if self.order is Order.LISTED or any(speeds.get(queue.name, 0.0) <= 0 for queue in usable):
            return usable
        if self.order is Order.SPEED:
            return sorted(usable, key=lambda queue: -speeds[queue.name])
        return self._cheapest_first(usable, speeds, open_queues)

    def _fits(self, request: Request, queue: QueueSpec) -> bool:
        if request.multi_node and not queue.multi_node:
            return False
        need = (self.needs_mib or {}).get(request.model)
        return need is None or (queue.gpu_memory_mib is not None and need <= queue.gpu_memory_mib)

    def _cheapest_first(
        self, usable: Sequence[QueueSpec], speeds: Mapping[str, float], open_queues: frozenset[str]
    ) -> list[QueueSpec]:
        """By price per asset; one that is far dearer than the cheapest with capacity is not worth its haste."""
        price = {queue.name: queue.price_usd_per_hour / speeds[queue.name] for queue in usable}
        able = [price[queue.name] for queue in usable if queue.name not in open_queues]
        limit = min(able, default=float("inf")) * self.cost_spread
        return sorted((q for q in usable if price[q.name] <= limit), key=lambda queue: price[queue.name])


def place(
    shards: Sequence[Shard],
    orders: Mapping[str, Sequence[QueueSpec]],
    rooms: Mapping[str, int],
    wishes: Mapping[str, int] | None = None,
) -> list[tuple[str, Shard]]:
    """A queue for each shard that fits, in the order given: the first one of its request's `orders` with room.

    `wishes` are rooms to fill first, whatever the order. A shard that shall avoid a queue goes elsewhere if anything
    else has room.
    """
    left, wished = dict(rooms), dict(wishes or {})
    total = sum(left.values())
    placed: list[tuple[str, Shard]] = []
    for shard in shards:
        if total <= 0:
            break
        choices = [queue.name for queue in orders[shard.request_id] if left.get(queue.name, 0) > 0]
        first = [name for name in choices if wished.get(name, 0) > 0]
        elsewhere = [name for name in first or choices if name != shard.avoid_queue]
        for name in (elsewhere or choices)[:1]:
            left[name] -= 1
            total -= 1
            wished[name] = wished.get(name, 0) - 1
            placed.append((name, shard))
    return placed
