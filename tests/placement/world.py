"""AWS Batch in virtual time: queues of jobs, compute environments that grow and shrink, spot reclaims.

What it keeps of the real thing: a queue is served in order; waiting jobs make an environment launch instances, which
take minutes to come up and then take whatever is at the head; an instance takes the next job when one ends and goes
after idling; several environments of one queue are asked in order, the next one only when those before it have been
short for the dwell; a head that is blocked for the dwell may get a reason; a cancelled job that has started goes on.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tests.placement.traces import FAMILIES, Family, Trace

#: From the wish for an instance to the first line of the worker on it: EC2, ECS agent, image.
COLD_SECONDS = 180.0
#: An instance that is up takes the next job within.
WARM_SECONDS = 5.0
#: Every attempt loads the model first; nothing is kept of it.
MODEL_SECONDS = 30.0
#: A mean shard is so many chunks; what a reclaim keeps is whole chunks.
CHUNKS = 15
#: An idle instance goes after.
LINGER_SECONDS = 120.0
TICK_SECONDS = 30.0
CAPACITY = "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity requested"


@dataclass(eq=False, slots=True)
class Run:
    """One job (or child) in Batch."""

    shard: int
    queue: str
    submitted_at: float
    started_at: float | None = None
    environment: Environment | None = None
    cancelled: bool = False
    over: bool = False


@dataclass(eq=False)
class Environment:
    """One compute environment of one family; `level` is what the world would give it."""

    family: Family
    level: int = 0
    launching: dict[int, int] = field(default_factory=dict[int, int])
    idle_since: list[float] = field(default_factory=list[float])
    running: dict[Run, None] = field(default_factory=dict[Run, None])
    short_since: float | None = None
    instance_seconds: float = 0.0

    @property
    def size(self) -> int:
        return sum(self.launching.values()) + len(self.idle_since) + len(self.running)


@dataclass(eq=False)
class Queue:
    name: str
    environments: list[Environment]
    waiting: deque[Run] = field(default_factory=deque[Run])
    depth: int = 0
    """Of the waiting, those not cancelled."""
    blocked_since: float | None = None


class World:
    """`queues`: name → families in order. The player calls submit and cancel; `events` says what it hears."""

    def __init__(self, trace: Trace, work: list[float], queues: dict[str, list[str]], seed: int = 0) -> None:
        self.trace = trace
        self.left = list(work)
        self.now = 0.0
        self.done = 0
        self.starts = 0
        self.reclaims = 0
        self.cancels = 0
        self.last_done_at = 0.0
        self._rng = random.Random(f"world {seed}")
        self._heap: list[tuple[float, int, str, Any]] = []
        self._number = 0
        families = {family.name: family for family in FAMILIES}
        self.queues = {
            name: Queue(name, [Environment(families[each]) for each in chosen]) for name, chosen in queues.items()
        }
        self.finished: list[Run] = []
        self.reclaimed: list[Run] = []
        self.gone: list[Run] = []
        for at in trace.changes():
            self._at(at, "level", None)

    # --- what a player does ------------------------------------------------------------------------------------------

    def submit(self, queue: str, shards: list[int]) -> list[Run]:
        target = self.queues[queue]
        runs = [Run(shard, queue, self.now) for shard in shards]
        target.waiting.extend(runs)
        target.depth += len(runs)
        self._fill(target)
        return runs

    def cancel(self, run: Run) -> None:
        """CancelJob: nothing happens to what has started."""
        if run.started_at is None and not run.cancelled and not run.over:
            run.cancelled, run.over = True, True
            self.queues[run.queue].depth -= 1
            self.cancels += 1
            self.gone.append(run)

    def reason(self, queue: str) -> str | None:
        """What DescribeJobs shows on the head of the queue."""
        target = self.queues[queue]
        if not self.trace.reasons or target.blocked_since is None:
            return None
        short = all(env.size >= env.level for env in target.environments)
        return CAPACITY if short and self.now - target.blocked_since >= self.trace.dwell_seconds else None

    # --- time --------------------------------------------------------------------------------------------------------

    def advance(self, until: float) -> None:
        while self._heap and self._heap[0][0] <= until:
            at, _, kind, what = heapq.heappop(self._heap)
            self._pass(at)
            getattr(self, f"_on_{kind}")(what)
        self._pass(until)
        for queue in self.queues.values():
            self._retire(queue)
        for queue in self._in_any_order():
            self._fill(queue)

    @property
    def usd(self) -> float:
        """Every instance from its launch to its end, idle or not."""
        each = (env for queue in self.queues.values() for env in queue.environments)
        return sum(env.instance_seconds / 3600 * env.family.usd_per_hour for env in each)

    def _pass(self, until: float) -> None:
        for queue in self.queues.values():
            for env in queue.environments:
                env.instance_seconds += env.size * (until - self.now)
        self.now = until

    def _at(self, when: float, kind: str, what: Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (when, self._number, kind, what))

    # --- what happens ------------------------------------------------------------------------------------------------

    def _on_level(self, _: None) -> None:
        for queue in self.queues.values():
            for env in queue.environments:
                env.level = self.trace.level(env.family.name, self.now)
                self._shrink(env)
        for queue in self._in_any_order():
            self._fill(queue)

    def _shrink(self, env: Environment) -> None:
        while env.size > env.level and env.launching:
            batch = next(reversed(env.launching))
            env.launching[batch] -= 1
            if not env.launching[batch]:
                del env.launching[batch]
        while env.size > env.level and env.idle_since:
            env.idle_since.pop()
        if self.trace.reclaims and env.size > env.level:
            for run in self._rng.sample(list(env.running), env.size - env.level):
                self._reclaim(env, run)

    def _reclaim(self, env: Environment, run: Run) -> None:
        assert run.started_at is not None
        worked = max(0.0, self.now - run.started_at - MODEL_SECONDS) / env.family.seconds
        kept = int(worked * CHUNKS) / CHUNKS
        self.left[run.shard] -= min(kept, self.left[run.shard] - 1 / CHUNKS / 2)
        del env.running[run]
        run.over = True
        self.reclaims += 1
        self.reclaimed.append(run)

    def _on_up(self, what: tuple[Queue, Environment, int]) -> None:
        queue, env, batch = what
        env.idle_since += [self.now] * env.launching.pop(batch, 0)
        self._fill(queue)

    def _on_end(self, what: tuple[Queue, Environment, Run]) -> None:
        queue, env, run = what
        if run.over:
            return
        del env.running[run]
        run.over = True
        self.done += 1
        self.last_done_at = self.now
        self.finished.append(run)
        if env.size < env.level:
            env.idle_since.append(self.now)
        self._fill(queue)

    def _retire(self, queue: Queue) -> None:
        for env in queue.environments:
            env.idle_since = [at for at in env.idle_since if self.now - at < LINGER_SECONDS]

    def _in_any_order(self) -> list[Queue]:
        queues = list(self.queues.values())
        self._rng.shuffle(queues)
        return queues

    # --- scheduling --------------------------------------------------------------------------------------------------

    def _fill(self, queue: Queue) -> None:
        for env in queue.environments:
            while env.idle_since and queue.depth:
                env.idle_since.pop()
                self._start(queue, env)
        self._launch(queue)
        if queue.depth == 0 or any(env.launching for env in queue.environments):
            queue.blocked_since = None
        elif queue.blocked_since is None:
            queue.blocked_since = self.now

    def _launch(self, queue: Queue) -> None:
        coming = sum(sum(env.launching.values()) for env in queue.environments)
        wanted = queue.depth - coming
        asked = True
        for env in queue.environments:
            if not asked or wanted <= 0:
                env.short_since = None
                continue
            count = max(0, min(wanted, env.level - env.size, self._quota_left()))
            if count:
                self._number += 1
                env.launching[self._number] = count
                self._at(self.now + COLD_SECONDS, "up", (queue, env, self._number))
                wanted -= count
            env.short_since = None if wanted <= 0 else self.now if env.short_since is None else env.short_since
            asked = env.short_since is not None and self.now - env.short_since >= self.trace.dwell_seconds

    def _quota_left(self) -> int:
        used = sum(env.size for queue in self.queues.values() for env in queue.environments)
        return self.trace.quota_at(self.now) - used

    def _start(self, queue: Queue, env: Environment) -> None:
        run = queue.waiting.popleft()
        while run.cancelled:
            run = queue.waiting.popleft()
        queue.depth -= 1
        queue.blocked_since = None
        run.started_at, run.environment = self.now, env
        env.running[run] = None
        self.starts += 1
        seconds = WARM_SECONDS + MODEL_SECONDS + self.left[run.shard] * env.family.seconds
        self._at(self.now + seconds, "end", (queue, env, run))
