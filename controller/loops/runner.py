"""Runs the loops: one task each, at its own pace, with a heartbeat, a back-off after errors, and a clean stop.

A loop's `step(now)` says whether it found work; then it is called again at once. An error of a port is logged,
counted and waited out; a bug is logged with its traceback and waited out too, so that one loop's trouble never
stops another. Cancellation is never swallowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Protocol

from controller.loops.context import Context, log
from controller.ports import Fenced, PortError


class Outcome(Enum):
    """Of one step: BUSY asks for the next at once, IDLE for a pause."""

    BUSY = "busy"
    IDLE = "idle"


class Loop(Protocol):
    name: str

    async def step(self, now: datetime) -> Outcome: ...


@dataclass
class Runner:
    """`run` returns after `stop`; no step is cut short but by the limit of the caller."""

    context: Context
    loops: Sequence[Loop]
    _beats: dict[str, float] = field(default_factory=dict[str, float])
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def silence_seconds(self) -> Mapping[str, float]:
        """Seconds since the last completed step of each loop, for /livez."""
        now = self.context.clock.monotonic()
        return {name: now - beat for name, beat in self._beats.items()}

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        for loop in self.loops:
            self._beats[loop.name] = self.context.clock.monotonic()
        async with asyncio.TaskGroup() as group:
            for loop in self.loops:
                group.create_task(self._keep_running(loop), name=loop.name)

    async def _keep_running(self, loop: Loop) -> None:
        errors = 0
        while not self._stopping.is_set():
            started = self.context.clock.monotonic()
            try:
                outcome = await loop.step(self.context.clock.now())
                errors, result = 0, outcome.value
            except Fenced:
                outcome, result = Outcome.IDLE, "fenced"
            except PortError as error:
                errors, outcome, result = errors + 1, Outcome.IDLE, "error"
                log.warning("loop_error", loop=loop.name, error=str(error), kind=type(error).__name__)
            except Exception:
                errors, outcome, result = errors + 1, Outcome.IDLE, "bug"
                log.exception("loop_bug", loop=loop.name)
            now = self.context.clock.monotonic()
            self._beats[loop.name] = now
            self.context.recorder.count("loop_steps", loop=loop.name, result=result)
            self.context.recorder.count("loop_seconds", now - started, loop=loop.name)
            if outcome is Outcome.IDLE:
                await self._pause(errors)

    async def _pause(self, errors: int) -> None:
        seconds = min(30.0, self.context.settings.loops.idle_seconds * 2 ** min(errors, 6))
        try:
            await asyncio.wait_for(self._stopping.wait(), timeout=seconds)
        except TimeoutError:
            return
