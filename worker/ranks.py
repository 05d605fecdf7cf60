"""The ranks of one node as the parent sees them: started, heard, restarted once, stopped.

Ranks share a shard by chunk, never by asset: the shares are disjoint and together are all chunks left. A rank that
dies is started once more with what it has not closed; if it dies again, the others still finish theirs and then the
job is `crashed`, with every closed chunk kept. What would fail alike anywhere (`config_error`) or on this host
(`host_sick`, `out_of_memory`) ends the job at once.
"""

from __future__ import annotations

import logging
import queue
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from schema.exit_codes import ExitCode
from worker import channel
from worker.channel import Channel
from worker.context import ConfigError, HostSick, OutOfMemory, Stopped
from worker.rank import ChunkOrder, Order

LIVES = 2
TICK_SECONDS = 0.2

log = logging.getLogger(__name__)
T = TypeVar("T")


class Crashed(Stopped):
    """A rank died twice."""

    code = ExitCode.CRASHED


AT_ONCE: dict[ExitCode, type[Stopped]] = {
    ExitCode.CONFIG_ERROR: ConfigError,
    ExitCode.HOST_SICK: HostSick,
    ExitCode.OUT_OF_MEMORY: OutOfMemory,
}


class Observer(Protocol):
    """Hears what ranks say; may raise `Stopped` to end them all. `lost` tells what a dead rank leaves undone."""

    def heard(self, rank: int, message: dict[str, Any]) -> None: ...

    def lost(self, rank: int, chunks: Sequence[ChunkOrder]) -> list[ChunkOrder]: ...


def share(items: Sequence[T], world: int) -> list[list[T]]:
    """Item *i* goes to rank *i* mod `world`. Disjoint, complete; rather fewer ranks than an empty share."""
    return [list(items[rank::world]) for rank in range(min(world, len(items)))]


@dataclass
class _Living:
    order: Order
    process: subprocess.Popen[bytes]
    channel: Channel
    lives: int
    done: bool = False
    failed: tuple[ExitCode, str] | None = None
    reader: threading.Thread = field(init=False)


class Ranks:
    """Runs orders to their end. One use each call of `run`."""

    def __init__(self, shard_descriptor: int, observer: Observer, stop: threading.Event, stop_seconds: float) -> None:
        self._descriptor = shard_descriptor
        self._observer = observer
        self._stop = stop
        self._stop_seconds = stop_seconds
        self._heard: queue.Queue[tuple[_Living, dict[str, Any] | None]] = queue.Queue()
        self._living: dict[int, _Living] = {}
        self._crash: str | None = None

    def run(self, orders: Sequence[Order], *, lives: int = LIVES) -> bool:
        """Until every rank has ended. True if none was cut short by `stop`; raises `Stopped` when they failed."""
        in_time = True
        try:
            for order in orders:
                self._start(order, lives)
            in_time = self._listen()
        finally:
            for living in list(self._living.values()):
                self._end(living)
        if self._crash is not None:
            raise Crashed(self._crash)
        return in_time

    def _start(self, order: Order, lives: int) -> None:
        process, end = channel.start("worker.rank", [self._descriptor])
        living = _Living(order, process, Channel(end), lives)
        living.reader = threading.Thread(target=self._read, args=(living,), daemon=True)
        self._living[order.rank] = living
        try:
            living.channel.send(order.model_dump(mode="json"))
        except OSError:
            log.warning("rank died at its start", extra={"rank": order.rank})
        living.reader.start()

    def _read(self, living: _Living) -> None:
        try:
            while (message := living.channel.receive()) is not None:
                self._heard.put((living, message[0]))
        except (OSError, ValueError, channel.ChannelError):
            log.warning("rank's channel broke", extra={"rank": living.order.rank}, exc_info=True)
        self._heard.put((living, None))

    def _listen(self) -> bool:
        deadline: float | None = None
        while self._living:
            if self._stop.is_set() and deadline is None:
                deadline = time.monotonic() + self._stop_seconds
                self._tell_to_stop()
            if deadline is not None and time.monotonic() > deadline:
                return False
            try:
                living, message = self._heard.get(timeout=TICK_SECONDS)
            except queue.Empty:
                continue
            if message is None:
                self._ended(living)
            elif "failed" in message:
                living.failed = (ExitCode[message["failed"]], str(message["error"]))
            elif "done" in message:
                living.done = True
            else:
                self._observer.heard(living.order.rank, message)
        return True

    def _tell_to_stop(self) -> None:
        for living in self._living.values():
            try:
                living.channel.send({"stop": True})
            except OSError:
                log.info("rank had already ended", extra={"rank": living.order.rank})

    def _ended(self, living: _Living) -> None:
        """A rank's channel is closed: done, failed for good, or to be started again."""
        order = living.order
        self._end(living)
        if living.done:
            return
        code, text = living.failed or (ExitCode.CRASHED, f"rank {order.rank} ended with {living.process.returncode}")
        log.error("rank lost", extra={"rank": order.rank, "exit_code": code.name, "error": text})
        if code in AT_ONCE:
            raise AT_ONCE[code](text)
        undone = self._observer.lost(order.rank, order.chunks)
        if self._stop.is_set() or (not undone and order.probe is None):
            return
        if living.lives > 1:
            self._start(order.model_copy(update={"chunks": undone}), living.lives - 1)
        else:
            self._crash = text

    def _end(self, living: _Living) -> None:
        self._living.pop(living.order.rank, None)
        if not living.done:
            living.process.kill()
        living.process.wait()
        living.channel.shutdown()
