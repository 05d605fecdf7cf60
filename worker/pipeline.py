"""The data plane of one rank, on one screen: fetch → decode → batch → embed → row, and rows → chunk.

`embed` is the way of one asset; everything about order, limits and failure of a stage is in the stage's own file. An
asset always ends as exactly one `Row`. Three kinds of process work on it: this one (fetch and orchestration, asyncio),
the decoders, the engine; pixels and vectors pass through shared memory and never through here.

What holds what back: the engine takes two batches at a time; slots of the ring run out; decoders get no more; their
bodies stay in the fetch budget; fetching waits.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from schema.states import RowStatus
from worker import chunks
from worker.context import ConfigError
from worker.rows import Failure, Picture, Row
from worker.source import Body, PutError
from worker.throttle import pause_seconds

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from schema.layout import Location
    from schema.shardfile import Address
    from worker.fetch import Fetcher
    from worker.ring import Slots

PUT_TRIES = 8


class Decoder(Protocol):
    async def decode(self, body: bytes | memoryview, slot: int) -> Picture | Failure: ...


class Embedder(Protocol):
    async def embed(self, slot: int) -> npt.NDArray[np.float32] | Failure: ...


class Sink(Protocol):
    async def put(self, key: str, body: bytes) -> None: ...


@dataclass
class Pipeline:
    """The stages of a rank, put together. `skip`: ordinals of known poison."""

    fetcher: Fetcher
    decoders: Decoder
    batcher: Embedder
    slots: Slots
    skip: frozenset[int]

    async def embed(self, ordinal: int, address: Address) -> Row:
        """One asset, from its address to its row."""
        if ordinal in self.skip:
            return _failed(ordinal, address, Failure(RowStatus.POISON, "known to kill the worker; not tried"))
        async with self.fetcher.fetched(address) as body:
            if isinstance(body, Failure):
                return _failed(ordinal, address, body)
            slot = await self.slots.take()
            try:
                picture = await self.decoders.decode(body.data, slot)
            except BaseException:
                self.slots.give(slot)
                raise
        try:
            if isinstance(picture, Failure):
                return _failed(ordinal, address, picture, body)
            vector = await self.batcher.embed(slot)
        finally:
            self.slots.give(slot)
        if isinstance(vector, Failure):
            return _failed(ordinal, address, vector, body, picture)
        return Row(
            key=address.key,
            ordinal=ordinal,
            status=RowStatus.OK,
            bytes=body.size,
            picture=picture,
            etag=body.etag,
            embedding=vector,
        )

    async def embed_all(self, assets: Iterable[tuple[int, Address]]) -> list[Row]:
        """Many assets at once; each waits for its turn in the fetch budget, in this order."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.embed(ordinal, address)) for ordinal, address in assets]
        return [task.result() for task in tasks]


def _failed(
    ordinal: int, address: Address, failure: Failure, body: Body | None = None, picture: Picture | None = None
) -> Row:
    """The row of an asset that has no embedding, with all that is known of it."""
    return Row(
        key=address.key,
        ordinal=ordinal,
        status=failure.status,
        error=failure.error,
        http_status=failure.http_status,
        bytes=body.size if body else address.size,
        picture=picture,
        etag=body.etag if body else address.etag,
    )


@dataclass
class ChunkWriter:
    """Rows to one object below the output prefix."""

    sink: Sink
    output: Location
    shard: int
    dimensions: int
    dtype: str
    finalise: bool
    dice: Callable[[float, float], float] = random.uniform
    seconds: float = 0.0

    async def write(self, chunk: int, rows: Sequence[Row]) -> chunks.Stored:
        """Returns once the object exists; raises ConfigError when S3 refuses for good."""
        began = time.monotonic()
        body = await asyncio.to_thread(chunks.encode, rows, self.dimensions, self.dtype)
        stored = chunks.describe(self.shard, chunk, body, rows, final=self.finalise)
        for tries in range(1, PUT_TRIES + 1):
            try:
                await self.sink.put(self.output.join(stored.key).key, body)
                break
            except PutError as error:
                if not error.transient:
                    raise ConfigError(str(error)) from error
                if tries == PUT_TRIES:
                    raise
                await asyncio.sleep(pause_seconds(tries, self.dice))
        self.seconds += time.monotonic() - began
        return stored
