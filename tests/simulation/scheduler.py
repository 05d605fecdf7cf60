"""One thing at a time, in an order that a seed decides, on a virtual clock.

Every call of a port and every SQL statement of a controller parks at a gate. The scheduler opens one gate, waits until
nothing runs any more, and chooses again; so calls of several loops and controllers interleave in every way, and the
same seed interleaves them in the same way. Statements that wait for a lock in Postgres stay parked where they are.
Virtual time passes a little with each step, and jumps to the next timer when nobody can move.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import random
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")
EPOCH = datetime(2026, 12, 1, tzinfo=UTC)
#: Virtual seconds that one step takes at most.
STEP_SECONDS = 0.02


class PatientSelector(selectors.DefaultSelector):
    """Asks the system nothing while a task can go on: that is most of the time, and asking costs more than a step."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return [] if timeout is not None and timeout <= 0 else super().select(timeout)


def run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, for seeds. One leaves little garbage, and looking for it takes a fifth of the time."""
    gc.disable()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(PatientSelector())) as runner:
        return runner.run(main)


class Crashed(BaseException):
    """The process of this call is gone; nothing that it does from now on reaches the world."""


@dataclass(eq=False)
class Process:
    """A controller replica, in one life: after a crash another takes its place."""

    name: str
    skew_seconds: float = 0.0
    dead: bool = False
    frozen_until: float = 0.0


@dataclass(eq=False)
class Actor:
    """A loop of a process. `step_began`: virtual time at which its present step started."""

    process: Process
    loop: str
    step_began: float = 0.0
    tasks: dict[asyncio.Task[Any], int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.process.name}.{self.loop}"

    def task_number(self) -> int:
        """Children of one step are told apart by the order in which they first came to a gate."""
        task = asyncio.current_task()
        assert task is not None
        return self.tasks.setdefault(task, len(self.tasks))


#: The fault that ends the process at this gate.
CRASH = "crash"

ACTOR: ContextVar[Actor] = ContextVar("actor")


@dataclass(eq=False)
class Parked:
    actor: Actor
    task: int
    point: str
    opened: asyncio.Future[Any]

    @property
    def key(self) -> tuple[str, str, int]:
        return self.actor.process.name, self.actor.loop, self.task


class Scheduler:
    """`choose_fault(actor, point)` may answer a gate with something else than None: what to do wrong there."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.time = 0.0
        self.steps = 0
        self.log: list[str] = []
        self.choose_fault: Callable[[Actor, str], Any] = lambda _actor, _point: None
        #: Awaited when somebody is inside Postgres: False while there was something to wait for.
        self.database_settled: Callable[[], Any] | None = None
        #: Awaited when a process was killed.
        self.bury: Callable[[Process], Awaitable[None]] | None = None
        self._parked: list[Parked] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_number = 0

    # -- for the models and the controllers ----------------------------------------------------------

    def now(self, process: Process | None = None) -> datetime:
        return EPOCH + timedelta(seconds=self.time + (process.skew_seconds if process else 0.0))

    def note(self, text: str) -> None:
        self.log.append(f"{self.time:9.3f} {text}")

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._timer_number += 1
        heapq.heappush(self._timers, (self.time + seconds, self._timer_number, call))

    async def gate(self, point: str) -> Any:
        """Wait for our turn; gives the fault to commit here, or None."""
        actor = ACTOR.get()
        if actor.process.dead:
            raise Crashed
        opened = asyncio.get_running_loop().create_future()
        self._parked.append(Parked(actor, actor.task_number(), point, opened))
        return await opened

    async def sleep(self, seconds: float, until: list[asyncio.Future[None]] | None = None) -> None:
        """Virtual seconds; cut short by whoever resolves the future that is put into `until`."""
        actor = ACTOR.get()
        if actor.process.dead:
            raise Crashed
        slept = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not slept.done():
                slept.set_result(None)

        self.later(seconds, wake)
        if until is not None:
            until.append(slept)
        try:
            await slept
        finally:
            if until is not None and slept in until:
                until.remove(slept)
        if actor.process.dead:
            raise Crashed

    def crash(self, process: Process) -> None:
        """Kill a process: its parked calls never happen."""
        process.dead = True
        for parked in [one for one in self._parked if one.actor.process is process]:
            self._parked.remove(parked)
            parked.opened.set_exception(Crashed())

    # -- driving ---------------------------------------------------------------------------------------

    async def step(self) -> bool:
        """Open one gate, or let time jump to the next timer. False when there is neither."""
        await self._quiet()
        self._fire_timers()
        await self._quiet()
        movable = sorted(
            (one for one in self._parked if one.actor.process.frozen_until <= self.time), key=lambda one: one.key
        )
        if not movable:
            thaw = [one.actor.process.frozen_until for one in self._parked]
            due = [self._timers[0][0]] if self._timers else []
            if not thaw and not due:
                return False
            self.time = max(self.time, min(thaw + due))
            return True
        self.steps += 1
        self.time += self.dice.uniform(0, STEP_SECONDS)
        chosen = self.dice.choice(movable)
        self._parked.remove(chosen)
        fault = self.choose_fault(chosen.actor, chosen.point)
        self.note(f"{chosen.actor} {chosen.point}" + (f" !{fault}" if fault is not None else ""))
        if fault == CRASH:
            chosen.opened.set_exception(Crashed())
            self.crash(chosen.actor.process)
            if self.bury is not None:
                await self.bury(chosen.actor.process)
        else:
            chosen.opened.set_result(fault)
        await self._quiet()
        return True

    def _fire_timers(self) -> None:
        while self._timers and self._timers[0][0] <= self.time:
            heapq.heappop(self._timers)[2]()

    async def _quiet(self) -> None:
        """Until no task can go on by itself."""
        ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]  # nothing public tells this
        while True:
            while ready:  # noqa: ASYNC110 - whatever is ready, there is no event for it
                await asyncio.sleep(0)
            if (self.database_settled is None or await self.database_settled()) and not ready:
                return
