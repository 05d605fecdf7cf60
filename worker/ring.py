"""Shared memory between decode and engine: a ring of pixel slots and a ring of vectors.

Slot *i* of the pixels is one decoded image, uint8 (3, S, S), R G B; slot *i* of the vectors is its embedding, float32
(D,). Whoever holds a slot's number may write it; only the rank hands numbers out.

Anonymous memory (`memfd`), passed as descriptors: it has no name to collide or to be left behind after a kill, and it
is not bounded by the size of /dev/shm, of which a container has 64 MB unless told otherwise. Pages are taken when
first written, so a generous number of slots costs nothing.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import tempfile

import numpy as np
import numpy.typing as npt


def shared_memory(size_bytes: int) -> int:
    """A descriptor of `size_bytes` of zeroed memory that children can inherit."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("reembed")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size_bytes)
    return descriptor


def pixels_bytes(slots: int, input_size: int) -> int:
    return slots * 3 * input_size * input_size


def map_pixels(descriptor: int, input_size: int) -> npt.NDArray[np.uint8]:
    """uint8 (slots, 3, S, S)."""
    return np.frombuffer(_map(descriptor), np.uint8).reshape(-1, 3, input_size, input_size)


def vectors_bytes(slots: int, dimensions: int) -> int:
    return slots * dimensions * 4


def map_vectors(descriptor: int, dimensions: int) -> npt.NDArray[np.float32]:
    """float32 (slots, D)."""
    return np.frombuffer(_map(descriptor), np.float32).reshape(-1, dimensions)


def _map(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, os.fstat(descriptor).st_size)


class Slots:
    """Hands out slot numbers, lowest first, so that memory stays small while little is in flight."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.PriorityQueue[int]()
        for slot in range(count):
            self._free.put_nowait(slot)

    async def take(self) -> int:
        """Waits while all are taken: this is what holds decoding back when the engine is slower."""
        return await self._free.get()

    def give(self, slot: int) -> None:
        self._free.put_nowait(slot)
