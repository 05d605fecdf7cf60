"""Our own placement as a player: `controller.core.cycle.plan` on aggregates of the world, round by round.

Between the plan and Batch stands what the loops add: a stop takes a while, a lost host is heard of late, a round sees
one page of due shards, speeds are measured from what has ended.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from controller.core.cycle import Situation, plan
from controller.core.decisions import KeepQueue, StartAttempts, StopUnstarted
from controller.core.placement import PlacementLimits, QueueSpec
from controller.core.records import QueueLoad, QueueState, Waiting
from controller.settings import GpuQueue, Loops, Placement
from tests.builders import request, shard
from tests.placement.baselines import RETRY_SECONDS, Result, play
from tests.placement.traces import FAMILIES, Trace
from tests.placement.world import Run, World

START = datetime(2026, 12, 1, tzinfo=UTC)
#: From the decision to stop to the word that it is cancelled.
STOP_SECONDS = 45.0
#: Reasons are read so often.
LOOK_SECONDS = 60.0
PAGE = Loops().page
PLACEMENT = Placement()
LIMITS = PlacementLimits(**PLACEMENT.model_dump(include=set(PlacementLimits.__dataclass_fields__)))
REQUEST = request(id="r-1", assets=20_000, shards=20_000)


def specs() -> list[QueueSpec]:
    """The defaults that ship."""
    made = [
        GpuQueue(name=family.name, job_definition="d:1", price_usd_per_hour=family.usd_per_hour) for family in FAMILIES
    ]
    return [
        QueueSpec(name=q.name, max_live=q.max_live, backlog=q.backlog, price_usd_per_hour=q.price_usd_per_hour)
        for q in made
    ]


class Controller:
    def __init__(self, world: World, quota_vcpus: dict[str, int], seed: int = 0) -> None:
        self.world = world
        self.quota_vcpus = quota_vcpus
        self.specs = specs()
        self.states: dict[str, QueueState] = {}
        self.busy: dict[str, datetime] = {}
        self.waiting: dict[str, dict[Run, None]] = {spec.name: {} for spec in self.specs}
        self.stopping: list[tuple[float, Run]] = []
        self.marked: dict[str, set[Run]] = {spec.name: set() for spec in self.specs}
        self.last_start: dict[str, float] = {}
        self.later: list[tuple[float, int]] = []
        self.due = list(range(len(world.left)))
        heapq.heapify(self.due)
        self.measured: dict[str, tuple[int, float]] = {}
        self._rng = random.Random(f"controller {seed}")
        self._next_look = 0.0

    def step(self) -> None:
        self._hear()
        now = _at(self.world.now)
        page = [heapq.heappop(self.due) for _ in range(min(PAGE, len(self.due)))]
        situation = Situation(
            queues=self.specs,
            states=self.states,
            loads={name: self._load(name) for name in self.waiting},
            shards=[_SHARDS[number] for number in page],
            requests={REQUEST.id: REQUEST},
            limits=LIMITS,
            array_max=PLACEMENT.array_max,
            jitter=self._rng.random(),
            waiting=[
                Waiting(queue=name, request_id=REQUEST.id, attempts=len(runs) - len(self.marked[name]))
                for name, runs in self.waiting.items()
            ],
            page_full=len(page) == PAGE,
            quota_vcpus=self.quota_vcpus,
            speeds={REQUEST.model: {name: count / seconds for name, (count, seconds) in self.measured.items()}},
        )
        left = set(page)
        for decision in plan(situation, now):
            if isinstance(decision, KeepQueue):
                self.states[decision.state.name] = decision.state
            elif isinstance(decision, StopUnstarted):
                self._stop(decision)
            else:
                left -= self._start(decision)
        for number in left:
            heapq.heappush(self.due, number)

    def _start(self, decision: StartAttempts) -> set[int]:
        numbers = [each.shard for each in decision.shards]
        self.waiting[decision.queue].update(dict.fromkeys(self.world.submit(decision.queue, numbers)))
        return set(numbers)

    def _stop(self, decision: StopUnstarted) -> None:
        queue = decision.queue
        chosen = [run for run in reversed(self.waiting[queue]) if run not in self.marked[queue]][: decision.attempts]
        self.marked[queue].update(chosen)
        self.stopping += [(self.world.now + STOP_SECONDS, run) for run in chosen]

    def _hear(self) -> None:
        world = self.world
        for run in world.finished:
            assert run.started_at is not None
            count, seconds = self.measured.get(run.queue, (0, 0.0))
            self.measured[run.queue] = (count + 1, seconds + world.last_done_at - run.started_at)
        for run in world.reclaimed:
            heapq.heappush(self.later, (world.now + RETRY_SECONDS, run.shard))
        world.reclaimed.clear()
        for name, runs in self.waiting.items():
            for run in [run for run in runs if run.started_at is not None]:
                del runs[run]
                self.marked[name].discard(run)
                self.last_start[name] = world.now
        due = [run for at, run in self.stopping if at <= world.now]
        self.stopping = [(at, run) for at, run in self.stopping if at > world.now]
        for run in due:
            if run.started_at is None:
                world.cancel(run)
                del self.waiting[run.queue][run]
                self.marked[run.queue].discard(run)
                heapq.heappush(self.due, run.shard)
        while self.later and self.later[0][0] <= world.now:
            heapq.heappush(self.due, heapq.heappop(self.later)[1])
        if world.now >= self._next_look:
            self._next_look = world.now + LOOK_SECONDS
            self._read_reasons()

    def _read_reasons(self) -> None:
        for name in self.waiting:
            reason, state = self.world.reason(name), self.states.get(name, QueueState(name=name))
            if reason is not None and reason != state.blocked_reason:
                self.states[name] = replace(state, blocked_reason=reason, blocked_since=_at(self.world.now))

    def _load(self, name: str) -> QueueLoad:
        runs = self.waiting[name]
        running = len(self.world.queues[name].environments[0].running)
        if running:
            self.busy[name] = _at(self.world.now)
        oldest = next(iter(runs), None)
        return QueueLoad(
            name=name,
            queued=len(runs),
            stopping=len(self.marked[name]),
            running=running,
            oldest_queued_at=None if oldest is None else _at(oldest.submitted_at),
            last_started_at=_at(self.last_start[name]) if name in self.last_start else None,
            last_busy_at=self.busy.get(name),
        )


_SHARDS = [shard(number, assets=1) for number in range(20_000)]


def _at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def ours(trace: Trace, work: list[float]) -> Result:
    world = World(trace, work, {family.name: [family.name] for family in FAMILIES})
    quota = trace.quota_at(0.0)
    known = {"": quota * 4} if quota < 100_000 else {}
    return play(world, Controller(world, known).step, len(work))
