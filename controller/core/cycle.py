"""One dispatch cycle: aggregates and a bounded page in, decisions out.

1. Look at every queue's load and move its circuit.
2. A queue that ran dry gives back what it has not started, if another queue can take it.
3. Count the room of each queue.
4. Place the page of due shards, preferred queue first.
5. Cut the placed shards into array jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from controller.core.batching import batches
from controller.core.decisions import Decision, KeepQueue, StopUnstarted
from controller.core.placement import CircuitLimits, QueueSpec, next_circuit, place, room
from controller.core.records import Circuit, QueueLoad, QueueState, Request, Shard
from schema.states import StopIntent


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What one cycle sees; `shards` is a page, in the order they shall be served."""

    queues: Sequence[QueueSpec]
    states: Mapping[str, QueueState]
    loads: Mapping[str, QueueLoad]
    shards: Sequence[Shard]
    requests: Mapping[str, Request]
    circuit_limits: CircuitLimits
    array_max: int
    jitter: float


def plan(seen: Situation, now: datetime) -> list[Decision]:
    decisions: list[Decision] = []
    states: dict[str, QueueState] = {}
    loads = {spec.name: seen.loads.get(spec.name, QueueLoad(name=spec.name)) for spec in seen.queues}

    # 1. circuits
    for spec in seen.queues:
        before = seen.states.get(spec.name, QueueState(name=spec.name))
        states[spec.name] = next_circuit(before, loads[spec.name], now, seen.circuit_limits, seen.jitter)
        if states[spec.name] != before:
            decisions.append(KeepQueue(state=states[spec.name]))

    # 2. fall back
    takers = {name for name, state in states.items() if state.circuit is Circuit.CLOSED and not state.paused}
    for name, state in states.items():
        waiting = loads[name].submitting + loads[name].queued
        if state.paused and waiting:
            decisions.append(StopUnstarted(queue=name, intent=StopIntent.PAUSE))
        elif state.circuit is Circuit.OPEN and waiting and takers - {name}:
            decisions.append(StopUnstarted(queue=name, intent=StopIntent.FALL_BACK))

    # 3. room
    rooms = {spec.name: room(spec, states[spec.name], loads[spec.name], seen.circuit_limits) for spec in seen.queues}

    # 4. place
    placed = place(seen.shards, seen.requests, seen.queues, rooms)

    # 5. jobs
    decisions += batches(placed, dict(seen.requests), seen.array_max)
    return decisions
