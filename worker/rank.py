"""One rank: a share of the shard's chunks through one engine. Run as `python -m worker.rank` by `worker.ranks`.

Takes its order as the first message; says `opened`, `closed` and figures as it goes and `done` at the end, or `failed`.
Ends without `done` when anything breaks: its open chunks are then lost, closed ones are not, and the parent decides.
Two chunks are open at a time, so that the engine does not run dry between them. `stop` means: open no more.

Assets that stay throttled leave their chunk as a partial, already stored; when the share is through, a final pass at
low concurrency fetches only those.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from schema.assignment import Entry, InferAssignment
from schema.exit_codes import ExitCode
from schema.layout import Location
from schema.plan import Figures
from schema.shardfile import Address, ShardFile
from schema.states import RowStatus
from worker import channel, chunks, logs, ring
from worker.batching import CPU_BATCH, LARGEST_BATCH, WINDOW, Batcher, EngineGone
from worker.channel import AsyncChannel
from worker.context import Stopped
from worker.decoders import DecoderBroken, Decoders
from worker.fetch import Fetcher
from worker.models import registry
from worker.pipeline import ChunkWriter, Pipeline
from worker.rows import Row, bad_rows, count, ok_rows
from worker.source import Body, Bucket, Expected

if TYPE_CHECKING:
    import socket
    import subprocess

    from worker.models.plugin import ModelPlugin

OPEN_CHUNKS = 2
FIGURES_SECONDS = 1.0
RING_BATCHES = 2 + WINDOW

log = logging.getLogger(__name__)


class ChunkOrder(BaseModel):
    """A chunk to do, and the key of the partial that holds its settled rows, if there is one."""

    chunk: int
    partial_key: str | None = None


class Order(BaseModel):
    """What the parent tells a rank. With `probe` it embeds those ordinals, writes nothing, and survives or not."""

    assignment: InferAssignment
    entry: Entry
    rank: int
    device: str
    threads: int
    decoders: int
    concurrency: int
    chunks: list[ChunkOrder]
    skip: list[int] = []
    probe: tuple[int, int] | None = None


@dataclass
class _Settled:
    """Rows that this rank has brought to a final status and stored."""

    assets: int = 0
    ok: int = 0
    bad: int = 0

    def add(self, before: dict[str, int], after: dict[str, int], *, finalise: bool) -> None:
        self.ok += ok_rows(after) - ok_rows(before)
        self.bad += bad_rows(after, with_retryable=finalise) - bad_rows(before, with_retryable=False)
        self.assets = self.ok + self.bad


class Rank:
    """The stages and the chunks of one rank."""

    def __init__(self, order: Order, shard: ShardFile, plugin: ModelPlugin, parent: AsyncChannel) -> None:
        self._order = order
        self._shard = shard
        self._plugin = plugin
        self._parent = parent
        self._output = Location.parse(order.assignment.output_uri)
        self._stopping = False
        self._settled = _Settled()
        self._partials: list[ChunkOrder] = []
        self._counts: dict[int, dict[str, int]] = {}
        self._done: set[int] = set()
        self._began = time.monotonic()

    async def run(self) -> None:
        """All chunks, then the final pass. Raises whatever breaks a stage."""
        engine, engine_channel = await self._start_stages()
        try:
            async with asyncio.TaskGroup() as group:
                services = [
                    group.create_task(self._decoders.run()),
                    group.create_task(self._batcher.run()),
                    group.create_task(self._obey()),
                    group.create_task(self._tell_figures()),
                ]
                await self._work()
                for service in services:
                    service.cancel()
        finally:
            engine_channel.close()
            engine.kill()
            engine.wait()
        await self._say({"done": True})

    async def _start_stages(self) -> tuple[subprocess.Popen[bytes], AsyncChannel]:
        """Every stage's process and memory; the engine first, as it takes longest to be ready."""
        order, plugin = self._order, self._plugin
        side = plugin.preprocessing.input_size
        largest = order.entry.batch_size or (CPU_BATCH if order.device == "cpu" else LARGEST_BATCH)
        slots = RING_BATCHES * largest + 2 * order.decoders
        pixels = ring.shared_memory(ring.pixels_bytes(slots, side))
        vectors = ring.shared_memory(ring.vectors_bytes(slots, plugin.dimensions))
        process, end = channel.start("worker.engine", [pixels, vectors])
        engine = await AsyncChannel.over(end)
        hello = {"model": order.assignment.model, "device": order.device, "threads": order.threads}
        await engine.send(hello | {"batch_size": order.entry.batch_size})
        self._batcher = Batcher(engine, ring.map_vectors(vectors, plugin.dimensions))
        self._decoders = Decoders(
            processes=order.decoders,
            pixels_descriptor=pixels,
            preprocessing=plugin.preprocessing,
            max_pixels=order.assignment.max_image_pixels,
            seconds=order.assignment.decode_seconds,
        )
        self._fetcher = Fetcher(
            Bucket(order.assignment.source_bucket),
            concurrency=order.concurrency,
            max_bytes=order.assignment.max_image_bytes,
        )
        self._pipeline = Pipeline(
            self._fetcher, self._decoders, self._batcher, ring.Slots(slots), frozenset(order.skip)
        )
        self._bucket = Bucket(self._output.bucket)
        self._writer = ChunkWriter(
            sink=self._bucket,
            output=self._output,
            shard=order.entry.shard or 0,
            dimensions=plugin.dimensions,
            dtype=order.assignment.dtype,
            finalise=False,
        )
        return process, engine

    # --- the work -------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        if self._order.probe is not None:
            await self._pipeline.embed_all(self._assets(*self._order.probe))
            return
        waiting = deque(self._order.chunks)
        async with asyncio.TaskGroup() as group:
            for _ in range(OPEN_CHUNKS):
                group.create_task(self._lane(waiting))
        self._fetcher.begin_final_pass()
        self._writer.finalise = self._order.entry.finalise_retryable
        for chunk in self._partials:
            if not self._stopping:
                await self._do(chunk)

    async def _lane(self, waiting: deque[ChunkOrder]) -> None:
        while waiting and not self._stopping:
            stored = await self._do(waiting.popleft())
            throttled = stored.statuses.get(RowStatus.THROTTLED, 0) + stored.statuses.get(RowStatus.DEADLINE, 0)
            if stored.partial and (throttled or self._order.entry.finalise_retryable):
                self._partials.append(ChunkOrder(chunk=stored.chunk, partial_key=stored.key))

    async def _do(self, order: ChunkOrder) -> chunks.Stored:
        """One chunk, or the holes of its partial, to one object."""
        await self._say({"opened": order.chunk})
        settled = await self._settled_rows(order)
        have = {row.ordinal for row in settled}
        size = self._order.assignment.chunk_assets
        assets = self._assets(order.chunk * size, (order.chunk + 1) * size)
        rows = settled + await self._pipeline.embed_all((o, address) for o, address in assets if o not in have)
        stored = await self._writer.write(order.chunk, rows)
        before = self._counts.get(order.chunk, count(row.status for row in settled))
        self._counts[order.chunk] = stored.statuses
        self._settled.add(before, stored.statuses, finalise=not stored.partial)
        if not stored.partial:
            self._done.add(order.chunk)
        poison = [row.ordinal for row in rows if row.status is RowStatus.POISON]
        await self._say({"closed": stored.to_json(), "poison": poison, "figures": self._figures()})
        return stored

    def _assets(self, start: int, stop: int) -> Iterable[tuple[int, Address]]:
        return enumerate(self._shard.slice(start, stop), start)

    async def _settled_rows(self, order: ChunkOrder) -> list[Row]:
        """The rows of the partial that need no second try; none if it cannot be read, which only costs time."""
        if order.partial_key is None:
            return []
        body = await self._bucket.get(self._output.join(order.partial_key).key.encode(), Expected())
        if not isinstance(body, Body):
            log.warning("partial chunk unreadable, done anew", extra={"key": order.partial_key, "error": body.error})
            return []
        rows = await asyncio.to_thread(chunks.decode, bytes(body.data))
        return [row for row in rows if not row.retryable]

    # --- talking to the parent ------------------------------------------------------------------------------------

    async def _say(self, header: dict[str, Any]) -> None:
        await self._parent.send(header)

    async def _obey(self) -> None:
        """`stop`: open no more chunks. A closed channel: the parent is gone, and so are we."""
        while await self._parent.receive() is not None:
            self._stopping = True
        os._exit(int(ExitCode.CRASHED))

    async def _tell_figures(self) -> None:
        while True:
            await asyncio.sleep(FIGURES_SECONDS)
            await self._say({"figures": self._figures()})

    def _figures(self) -> dict[str, Any]:
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Figures(
            **asdict(self._settled),
            bytes_fetched=self._fetcher.figures.bytes,
            throttled=self._fetcher.figures.throttled,
            fetch_seconds=self._fetcher.figures.seconds,
            decode_seconds=self._decoders.seconds,
            wait_seconds=self._batcher.wait_seconds,
            compute_seconds=self._batcher.compute_seconds,
            write_seconds=self._writer.seconds,
            wall_seconds=time.monotonic() - self._began,
            chunks_done=len(self._done),
            peak_memory_bytes=max(own, self._batcher.peak_memory_bytes),
            gpu_utilisation=self._batcher.gpu_utilisation,
        ).model_dump(exclude_none=True)


def cause(error: BaseException) -> tuple[ExitCode, str]:
    """What to tell the parent: the first real cause inside nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, Stopped):
        return error.code, str(error)
    if isinstance(error, EngineGone):
        return ExitCode[error.kind], str(error)
    if isinstance(error, DecoderBroken):
        return ExitCode.CRASHED, str(error)
    if isinstance(error, MemoryError):
        return ExitCode.OUT_OF_MEMORY, "the rank ran out of memory"
    return ExitCode.CRASHED, f"{type(error).__name__}: {error}"


async def _main(end: socket.socket, shard_descriptor: int) -> int:
    parent = await AsyncChannel.over(end)
    message = await parent.receive()
    if message is None:
        return int(ExitCode.CRASHED)
    order = Order.model_validate(message[0])
    entry = order.entry
    logs.configure(
        request_id=order.assignment.request_id, shard=entry.shard, attempt_id=entry.attempt_id, rank=order.rank
    )
    try:
        shard = ShardFile.open(
            lambda offset, length: os.pread(shard_descriptor, length, offset), os.fstat(shard_descriptor).st_size
        )
        await Rank(order, shard, registry.find(order.assignment.model), parent).run()
    except Exception as error:
        code, text = cause(error)
        log.error("rank failed", extra={"exit_code": code.name}, exc_info=True)
        with suppress(Exception):
            await parent.send({"failed": code.name, "error": text})
        return int(code)
    return int(ExitCode.OK)


def main() -> None:
    end, descriptors = channel.attach()
    code = asyncio.run(_main(end, descriptors[0]))
    sys.stdout.flush()
    os._exit(code)  # no wait for threads that may still sit in a request


if __name__ == "__main__":
    main()
