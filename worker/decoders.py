"""The decode processes of a rank: keeps K of them busy, and outlives whatever an image does to one.

Each has up to `WINDOW` assets, the one it works on and the next, so that it never waits for the rank. Answers come
in order, so the first outstanding asset is the one that a death or an overrun is about:

- overrun of the deadline: the process is killed, the asset is `unreadable` (decode_timeout);
- death: the asset runs once more, alone in a fresh process; a second death makes it `poison`;
- the other outstanding asset starts again elsewhere.

A process that dies without an asset, or cannot start, is our failure and ends the rank (`DecoderBroken`).
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from schema.states import RowStatus
from worker import channel
from worker.channel import AsyncChannel
from worker.rows import Failure, Picture

if TYPE_CHECKING:
    from worker.models.plugin import Preprocessing

WINDOW = 2
DEATHS_OF_POISON = 2
STARTUP_SECONDS = 60.0


class DecoderBroken(Exception):
    """Decode processes do not work on this host at all."""


@dataclass(eq=False)
class _Job:
    body: bytes | memoryview
    slot: int
    verdict: asyncio.Future[Picture | Failure]
    deaths: int = 0


@dataclass(eq=False)
class _Process:
    """One living decode process and what was sent to it, oldest first."""

    popen: subprocess.Popen[bytes]
    channel: AsyncChannel
    outstanding: deque[_Job] = field(default_factory=deque)
    sent: asyncio.Event = field(default_factory=asyncio.Event)
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(WINDOW))
    answered: int = 0

    async def give(self, job: _Job) -> None:
        self.outstanding.append(job)
        self.sent.set()
        await self.channel.send({"slot": job.slot}, job.body)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()
        self.channel.close()


class Decoders:
    """A pool for one rank. `decode` may be called by any number of tasks."""

    def __init__(
        self, *, processes: int, pixels_descriptor: int, preprocessing: Preprocessing, max_pixels: int, seconds: float
    ) -> None:
        self._count = processes
        self._descriptor = pixels_descriptor
        self._hello = {"preprocessing": asdict(preprocessing), "max_pixels": max_pixels}
        self._deadline_seconds = seconds
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue()
        self._processes: set[_Process] = set()
        self.seconds = 0.0

    async def decode(self, body: bytes | memoryview, slot: int) -> Picture | Failure:
        """Pixels stand in `slot` when a `Picture` comes back."""
        job = _Job(body, slot, asyncio.get_running_loop().create_future())
        self._jobs.put_nowait(job)
        return await job.verdict

    async def run(self) -> None:
        """Serve until cancelled; raises `DecoderBroken`."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._count):
                    group.create_task(self._keep_one())
        finally:
            for process in list(self._processes):
                process.kill()

    async def _keep_one(self) -> None:
        """One place in the pool: a process, and after its death the next."""
        suspect: _Job | None = None
        while True:
            process = await self._start()
            if suspect is not None:
                await process.give(suspect)
            died_on = await self._serve(process, alone=suspect)
            self._bury(process)
            suspect = self._judge(died_on)

    async def _start(self) -> _Process:
        popen, end = channel.start("worker.decode", [self._descriptor])
        process = _Process(popen, await AsyncChannel.over(end))
        self._processes.add(process)
        await process.channel.send(self._hello)
        return process

    async def _serve(self, process: _Process, alone: _Job | None) -> _Job | None:
        """Feed and read one process until it is gone; gives the asset it died on, None if that has its verdict."""
        if alone is not None:
            if not await self._collect(process):
                return alone
            process.room.release()  # the suspect did not pass through the window
        feeding = asyncio.create_task(self._feed(process))
        try:
            while await self._collect(process):
                pass
        finally:
            feeding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await feeding
        return process.outstanding.popleft() if process.outstanding else None

    async def _feed(self, process: _Process) -> None:
        while True:
            await process.room.acquire()
            await process.give(await self._jobs.get())

    async def _collect(self, process: _Process) -> bool:
        """One answer. False when the process is gone, which leaves the job it was about first in line."""
        answering = asyncio.ensure_future(process.channel.receive())
        try:
            if not await self._wait_for_work(process, answering):
                raise DecoderBroken(f"a decode process ended by itself with code {process.popen.wait()}")
            allowance = self._deadline_seconds + (0 if process.answered else STARTUP_SECONDS)
            message = await asyncio.wait_for(answering, allowance)
        except TimeoutError:
            self._settle(process.outstanding.popleft(), Failure(RowStatus.UNREADABLE, "decode_timeout"))
            return False
        finally:
            answering.cancel()
        if message is None:
            return False
        process.answered += 1
        self.seconds += message[0].get("seconds", 0.0)
        self._settle(process.outstanding.popleft(), _verdict(message[0]))
        process.room.release()
        return True

    async def _wait_for_work(self, process: _Process, answering: asyncio.Future[Any]) -> bool:
        """Until something is outstanding, so that the deadline starts then. False if the process ends while idle."""
        while not process.outstanding:
            process.sent.clear()
            sent = asyncio.ensure_future(process.sent.wait())
            try:
                await asyncio.wait([sent, answering], return_when=asyncio.FIRST_COMPLETED)
            finally:
                sent.cancel()
            if answering.done() and not process.outstanding:
                return False
        return True

    def _bury(self, process: _Process) -> None:
        """Kill what is left of it; what it had not begun goes back to the queue."""
        self._processes.discard(process)
        process.kill()
        for job in process.outstanding:
            self._jobs.put_nowait(job)

    def _judge(self, job: _Job | None) -> _Job | None:
        """The asset to run alone next, or None."""
        if job is None or job.verdict.done():
            return None
        job.deaths += 1
        if job.deaths < DEATHS_OF_POISON:
            return job
        self._settle(job, Failure(RowStatus.POISON, f"killed its decode process {job.deaths} times"))
        return None

    @staticmethod
    def _settle(job: _Job, verdict: Picture | Failure) -> None:
        if not job.verdict.done():
            job.verdict.set_result(verdict)


def _verdict(reply: dict[str, Any]) -> Picture | Failure:
    status = RowStatus(reply["status"])
    if status is not RowStatus.OK:
        return Failure(status, str(reply["error"]))
    return Picture(int(reply["width"]), int(reply["height"]), str(reply["format"]))
