"""Batches: how large (pure), and how decoded slots become some (`Batcher`, in the rank).

The size is measured on a GPU: doubled until the gain is under 5 % or memory runs short. On a CPU a batch gains
nothing, so it stays small. Out of memory halves a batch and its cap; at one image it is that image's verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from schema.states import RowStatus
from worker.rows import Failure

if TYPE_CHECKING:
    from worker.channel import AsyncChannel

CPU_BATCH = 4
FIRST_BATCH = 8
LARGEST_BATCH = 1024
LEAST_GAIN = 0.05
MEMORY_SHARE = 0.85
WINDOW = 2
LINGER_SECONDS = 0.02


@dataclass(frozen=True)
class Measured:
    """One trial of a batch size. `memory_share`: of the device, at the peak."""

    images_per_second: float
    memory_share: float


def choose_batch_size(measure: Callable[[int], Measured | None], *, largest: int = LARGEST_BATCH) -> int:
    """Double until it stops paying. `measure` gives None where a size is out of memory."""
    size, best = 1, 0.0
    trial = min(FIRST_BATCH, largest)
    while trial <= largest:
        measured = measure(trial)
        if measured is None or measured.images_per_second < best * (1 + LEAST_GAIN):
            break
        size, best = trial, measured.images_per_second
        if measured.memory_share * 2 > MEMORY_SHARE:
            break
        trial *= 2
    return size


def embed_within_memory(
    slots: list[int],
    cap: int,
    embed: Callable[[list[int]], None],
    out_of_memory: tuple[type[BaseException], ...],
) -> tuple[list[int], int]:
    """Embed all slots in pieces of at most `cap`, halving at every out-of-memory.

    Gives the slots that do not fit even alone, and the cap that worked.
    """
    refused: list[int] = []
    waiting = [slots[at : at + cap] for at in range(0, len(slots), cap)]
    while waiting:
        piece = waiting.pop(0)
        try:
            embed(piece)
            continue
        except out_of_memory:
            # Leave the handler first: its traceback keeps the failed batch's tensors alive.
            pass
        if len(piece) == 1:
            refused += piece
            continue
        half = len(piece) // 2
        cap = min(cap, max(1, half))
        waiting[:0] = [piece[:half], piece[half:]]
    return refused, cap


class EngineGone(Exception):
    """The engine process ended; `kind` is the `ExitCode` by name that it gave as the reason."""

    def __init__(self, message: str, kind: str = "CRASHED") -> None:
        super().__init__(message)
        self.kind = kind


class Batcher:
    """Collects slots, keeps two batches at the engine (one computing, one next), hands vectors out."""

    def __init__(self, engine: AsyncChannel, vectors: npt.NDArray[np.float32]) -> None:
        self._engine = engine
        self._vectors = vectors
        self._pending: asyncio.Queue[tuple[int, asyncio.Future[npt.NDArray[np.float32] | Failure]]] = asyncio.Queue()
        self._outstanding: dict[int, asyncio.Future[npt.NDArray[np.float32] | Failure]] = {}
        self._window = asyncio.Semaphore(WINDOW)
        self.compute_seconds = 0.0
        self.wait_seconds = 0.0
        self.peak_memory_bytes = 0
        self.gpu_utilisation: float | None = None

    async def embed(self, slot: int) -> npt.NDArray[np.float32] | Failure:
        """float32 (D,) of the picture in `slot`, which is free again afterwards."""
        vector: asyncio.Future[npt.NDArray[np.float32] | Failure] = asyncio.get_running_loop().create_future()
        self._pending.put_nowait((slot, vector))
        return await vector

    async def run(self) -> None:
        """Serve until cancelled; raises `EngineGone`."""
        ready = await self._receive()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send(ready["batch_size"]))
            group.create_task(self._collect())

    async def _send(self, size: int) -> None:
        while True:
            await self._window.acquire()
            batch = await self._assemble(size)
            self._outstanding |= batch
            await self._engine.send({"slots": list(batch)})

    async def _assemble(self, size: int) -> dict[int, asyncio.Future[npt.NDArray[np.float32] | Failure]]:
        """Up to `size` slots; a short batch goes off once nothing more has come for a moment."""
        slot, vector = await self._pending.get()
        batch = {slot: vector}
        while len(batch) < size:
            try:
                slot, vector = await asyncio.wait_for(self._pending.get(), LINGER_SECONDS)
            except TimeoutError:
                break
            batch[slot] = vector
        return batch

    async def _collect(self) -> None:
        while True:
            answer = await self._receive()
            self.compute_seconds += answer["compute_seconds"]
            self.wait_seconds += answer["wait_seconds"]
            self.peak_memory_bytes = max(self.peak_memory_bytes, answer["peak_memory_bytes"])
            self.gpu_utilisation = answer.get("gpu_utilisation", self.gpu_utilisation)
            refused = set(answer["refused"])
            for slot in answer["slots"]:
                vector = self._outstanding.pop(slot)
                if vector.cancelled():
                    continue
                if slot in refused:
                    vector.set_result(Failure(RowStatus.UNREADABLE, "out_of_memory: not even alone in a batch"))
                elif not np.isfinite(self._vectors[slot]).all():
                    vector.set_result(Failure(RowStatus.UNREADABLE, "the model gave no finite vector"))
                else:
                    vector.set_result(self._vectors[slot].copy())
            self._window.release()

    async def _receive(self) -> dict:
        message = await self._engine.receive()
        if message is None:
            raise EngineGone("the engine process ended without a word")
        if "failed" in message[0]:
            raise EngineGone(message[0]["error"], message[0]["failed"])
        return message[0]
