"""Batch sizes, out of memory, and the batcher in front of an engine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.batching import Batcher, EngineGone, Measured, choose_batch_size, embed_within_memory
from worker.channel import AsyncChannel
from worker.rows import Failure

LIMIT_SECONDS = 10.0


@pytest.mark.parametrize(
    ("rates", "shares", "expected"),
    [
        ({8: 100, 16: 190, 32: 300, 64: 310}, {}, 32),
        ({8: 100, 16: 90}, {}, 8),
        ({8: 100, 16: 200, 32: 400}, {16: 0.5}, 16),
        ({8: 100, 16: 200}, {}, 16),
        ({}, {}, 1),
    ],
    ids=["gain under 5 %", "slower", "memory would run short", "out of memory at 32", "nothing fits"],
)
def test_the_batch_size_doubles_until_it_stops_paying(
    rates: dict[int, float], shares: dict[int, float], expected: int
) -> None:
    def measure(size: int) -> Measured | None:
        return Measured(rates[size], shares.get(size, 0.1)) if size in rates else None

    assert choose_batch_size(measure) == expected


def test_the_batch_size_has_a_ceiling() -> None:
    assert choose_batch_size(lambda size: Measured(float(size), 0.0), largest=64) == 64
    assert choose_batch_size(lambda size: Measured(float(size), 0.0), largest=4) == 4


@given(count=st.integers(0, 60), cap=st.integers(1, 64), fits=st.integers(1, 64), deadly=st.sets(st.integers(0, 59)))
def test_out_of_memory_costs_no_slot_that_fits_alone(count: int, cap: int, fits: int, deadly: set[int]) -> None:
    embedded: list[int] = []

    def embed(slots: list[int]) -> None:
        if len(slots) > fits or deadly & set(slots):
            raise MemoryError
        embedded.extend(slots)

    refused, lower = embed_within_memory(list(range(count)), cap, embed, (MemoryError,))
    assert sorted(embedded + refused) == list(range(count))
    assert set(refused) == deadly & set(range(count))
    assert 1 <= lower <= cap


def test_other_errors_are_not_swallowed() -> None:
    def embed(_slots: list[int]) -> None:
        raise RuntimeError("kernel")

    with pytest.raises(RuntimeError, match="kernel"):
        embed_within_memory([1], 4, embed, (MemoryError,))


class FakeEngine:
    """The other end of the channel."""

    def __init__(self, channel: AsyncChannel, vectors: np.ndarray) -> None:
        self.channel = channel
        self.vectors = vectors
        self.batches: list[list[int]] = []
        self.broken: int | None = None

    async def serve(self, batch_size: int, refused: frozenset[int] = frozenset(), batches: int = 10**9) -> None:
        await self.channel.send({"batch_size": batch_size})
        for _ in range(batches):
            message = await self.channel.receive()
            assert message is not None
            slots = message[0]["slots"]
            self.batches.append(slots)
            for slot in slots:
                self.vectors[slot] = np.nan if slot == self.broken else slot
            figures = {"wait_seconds": 0.25, "compute_seconds": 0.5, "peak_memory_bytes": 7, "gpu_utilisation": None}
            await self.channel.send({"slots": slots, "refused": sorted(refused & set(slots)), **figures})
        self.channel.close()


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Batcher, FakeEngine]]:
    """A batcher and the engine it talks to; what runs of them is stopped afterwards."""
    ours, theirs = socket.socketpair()
    vectors = np.zeros((64, 3), np.float32)
    channel, engine = await AsyncChannel.over(ours), FakeEngine(await AsyncChannel.over(theirs), vectors)
    before = asyncio.all_tasks()
    yield Batcher(channel, vectors), engine
    started = asyncio.all_tasks() - before - {asyncio.current_task()}  # the teardown is a task of its own
    for task in started:
        task.cancel()
    await asyncio.gather(*started, return_exceptions=True)
    channel.close()
    engine.channel.close()
    await asyncio.sleep(0)


async def test_every_slot_gets_its_own_vector_in_batches_of_the_engines_size(pair: tuple[Batcher, FakeEngine]) -> None:
    batcher, engine = pair
    running = [asyncio.create_task(batcher.run()), asyncio.create_task(engine.serve(8))]
    vectors = await asyncio.wait_for(asyncio.gather(*(batcher.embed(slot) for slot in range(20))), LIMIT_SECONDS)
    assert [float(vector[0]) for vector in vectors if not isinstance(vector, Failure)] == list(range(20))
    assert [len(batch) for batch in engine.batches] == [8, 8, 4]
    assert (batcher.compute_seconds, batcher.wait_seconds, batcher.peak_memory_bytes) == (1.5, 0.75, 7)
    assert not any(task.done() for task in running)


async def test_a_refused_slot_and_a_vector_of_nan_are_failures(pair: tuple[Batcher, FakeEngine]) -> None:
    batcher, engine = pair
    engine.broken = 1
    running = [asyncio.create_task(batcher.run()), asyncio.create_task(engine.serve(4, frozenset({2})))]
    vectors = await asyncio.wait_for(asyncio.gather(*(batcher.embed(slot) for slot in range(4))), LIMIT_SECONDS)
    assert [isinstance(vector, Failure) for vector in vectors] == [False, True, True, False]
    assert not any(task.done() for task in running)


async def test_an_engine_that_ends_ends_the_batcher(pair: tuple[Batcher, FakeEngine]) -> None:
    batcher, engine = pair
    running = asyncio.create_task(batcher.run())
    await engine.serve(4, batches=0)
    with pytest.raises(ExceptionGroup) as raised:
        await running
    assert isinstance(raised.value.exceptions[0], EngineGone)


async def test_an_engine_that_cannot_load_says_why(pair: tuple[Batcher, FakeEngine]) -> None:
    batcher, engine = pair
    await engine.channel.send({"failed": "HOST_SICK", "error": "no device"})
    with pytest.raises(EngineGone, match="no device") as raised:
        await batcher.run()
    assert raised.value.kind == "HOST_SICK"
