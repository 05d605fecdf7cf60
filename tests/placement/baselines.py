"""Three ways to run the same work without our placement, each in its strongest form.

They have the same worker (chunks kept over a reclaim), the same instances, the same prices, and pay no API limits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.placement.traces import FAMILIES, Trace
from tests.placement.world import TICK_SECONDS, Run, World

#: Nobody waits longer; such a run counts as this long.
LIMIT_SECONDS = 14 * 24 * 3600.0
#: Retried so long after it was heard that a host is gone.
RETRY_SECONDS = 45.0
#: The time-outs from which the fixed-order fallback may choose, per trace, in hindsight.
TIMEOUTS = (600.0, 1800.0)
#: What the fixed-order fallback has in its queues at once.
IN_FLIGHT = 1200


@dataclass(frozen=True)
class Result:
    makespan_seconds: float
    usd: float
    moved: int = 0
    reclaims: int = 0


def single_queue(trace: Trace, work: list[float]) -> Result:
    """One queue of one family: the one that is best for this trace, known in hindsight."""
    return min((_batch_alone(trace, work, [family.name]) for family in FAMILIES), key=lambda r: r.makespan_seconds)


def ordered_environments(trace: Trace, work: list[float]) -> Result:
    """One queue with the three families as its compute environments in order, as Batch itself does it."""
    return _batch_alone(trace, work, [family.name for family in FAMILIES])


def _batch_alone(trace: Trace, work: list[float], families: list[str]) -> Result:
    world = World(trace, work, {"queue": families})
    world.submit("queue", list(range(len(work))))

    def step() -> None:
        again = [run.shard for run in world.reclaimed]
        world.reclaimed.clear()
        if again:
            world.submit("queue", again)

    return play(world, step, len(work))


def fixed_order(trace: Trace, work: list[float]) -> Result:
    """Every shard waits in the first queue for the time-out, then in the next, and after the last in the first again.

    The best of several time-outs for this trace, known in hindsight.
    """
    return min((_fixed_order(trace, work, seconds) for seconds in TIMEOUTS), key=lambda r: r.makespan_seconds)


def _fixed_order(trace: Trace, work: list[float], timeout_seconds: float) -> Result:
    order = [family.name for family in FAMILIES]
    world = World(trace, work, {name: [name] for name in order})
    due = list(range(len(work)))[::-1]
    waiting: dict[Run, None] = {}

    def step() -> None:
        again = [run.shard for run in world.reclaimed]
        world.reclaimed.clear()
        due.extend(again)
        moves: dict[str, list[int]] = {name: [] for name in order}
        for run in list(waiting):
            if run.started_at is None and world.now - run.submitted_at < timeout_seconds:
                break  # in the order of their submission, and each queue starts them in that order
            del waiting[run]
            if run.started_at is not None:
                continue
            world.cancel(run)
            moves[order[(order.index(run.queue) + 1) % len(order)]].append(run.shard)
        live = sum(queue.depth + len(queue.environments[0].running) for queue in world.queues.values())
        fresh = [due.pop() for _ in range(min(len(due), max(0, IN_FLIGHT - live)))]
        moves[order[0]] += fresh
        for name, shards in moves.items():
            waiting.update(dict.fromkeys(world.submit(name, shards)))

    return play(world, step, len(work))


def play(world: World, step: Callable[[], None], shards: int) -> Result:
    """Rounds until all is done."""
    while world.done < shards and world.now < LIMIT_SECONDS:
        step()
        world.finished.clear()
        world.gone.clear()
        world.advance(world.now + TICK_SECONDS)
    makespan = world.last_done_at if world.done == shards else LIMIT_SECONDS
    return Result(makespan, world.usd, moved=world.cancels, reclaims=world.reclaims)
