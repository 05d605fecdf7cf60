"""A deployment in virtual time: the real loops over the real store, with Batch, S3 and SQS in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from controller.core.invariants import check
from controller.core.records import Attempt, Job, Operation, OperationKind, Request, Shard
from controller.loops.context import Context, Inboxes, Outboxes
from controller.main import loops
from controller.ports import PortError, Store
from controller.settings import Settings
from schema.exit_codes import ExitCode
from schema.layout import Location, chunk_key, commit_key
from schema.messages import MessageType, WorkerReport, encode
from schema.plan import CommittedChunk
from schema.states import Outcome, ShardState
from tests import builders
from tests.builders import NOW
from tests.ports import (
    Child,
    CountedEntropy,
    CountingRecorder,
    ManualClock,
    MemoryBatch,
    MemoryInbox,
    MemoryObjects,
    MemoryOutbox,
)
from tests.store_rows import fill

#: Groups of settings that a test may change, with what suits virtual time.
FAST: Mapping[str, Mapping[str, Any]] = {
    "loops": {"poll_seconds": 0},
    "reconcile": {"orphan_seconds": 0},
}


class Replica:
    """One controller process: its own leadership, memory and recorder."""

    def __init__(self, site: Site, name: str) -> None:
        self.recorder = CountingRecorder()
        self.errors: list[PortError] = []
        self.context = Context(
            settings=site.settings,
            store=site.store,
            clock=site.clock,
            entropy=CountedEntropy(name),
            batch=site.batch,
            objects=site.objects,
            inboxes=Inboxes(requests=site.requests, reports=site.reports, batch_events=site.events),
            outboxes=Outboxes(requests=MemoryOutbox(), rejects=site.rejects, status=site.status),
            recorder=self.recorder,
            holder=f"replica-{name}",
            policy=site.settings.policy(),
        )
        self._loops = {loop.name: loop for loop in loops(self.context)}

    async def step(self, *names: str) -> None:
        """One step of these loops, or of all; what a port refuses waits for the next, as in the runner."""
        for name in names or tuple(self._loops):
            try:
                await self._loops[name].step(self.context.clock.now())
            except PortError as error:
                self.errors.append(error)


class Site:
    def __init__(self, store: Store, settings: Settings) -> None:
        self.store, self.settings = store, settings
        self.clock = ManualClock(NOW)
        self.requests, self.reports, self.events = MemoryInbox(), MemoryInbox(), MemoryInbox()
        self.status, self.rejects = MemoryOutbox(), MemoryOutbox()
        self.batch = MemoryBatch(self.clock, self.events)
        self.objects = MemoryObjects()
        self._replicas = 0
        self._orders = 0
        self._sequence = 0
        self.replica = self.start()

    def start(self) -> Replica:
        """Another process; the first one may be gone or not."""
        self._replicas += 1
        self.replica = Replica(self, str(self._replicas))
        return self.replica

    async def step(self, *names: str) -> None:
        await self.replica.step(*names)

    async def rounds(self, count: int, seconds: float = 30.0) -> None:
        """Time goes on: Batch starts what fits, then every loop takes a step."""
        for _ in range(count):
            self.clock.seconds += seconds
            self.batch.tick()
            await self.step()

    # --- rows ----------------------------------------------------------------------------------------------------

    async def running(self, shards: int = 1, **changes: Any) -> Request:
        """A planned request, all of its shards due."""
        request = builders.request(shards=shards, assets=40 * shards, **changes)
        await fill(self.store, request, *(builders.shard(n, request_id=request.id) for n in range(shards)))
        return request

    async def request(self, name: str = "r-1") -> Request:
        async with self.store.transaction() as tx:
            found = await tx.requests.get(name)
        assert found is not None
        return found

    async def shards(self, name: str = "r-1") -> Sequence[Shard]:
        async with self.store.transaction() as tx:
            return await tx.shards.search(name, states=None, outcome=None, after=-1, limit=20_000)

    async def shard(self, number: int = 0) -> Shard:
        return (await self.shards())[number]

    async def attempts(self, number: int = 0) -> Sequence[Attempt]:
        """Of one shard, oldest first."""
        async with self.store.transaction() as tx:
            return await tx.attempts.of_shard("r-1", number)

    async def outcomes(self, number: int = 0) -> list[Outcome | None]:
        return [attempt.outcome for attempt in await self.attempts(number)]

    async def attempt_of(self, child: Child) -> Attempt:
        async with self.store.transaction() as tx:
            found = await tx.attempts.by_batch_job_id(child.id)
        assert found is not None
        return found

    async def states(self) -> dict[ShardState, int]:
        async with self.store.transaction() as tx:
            return dict((await tx.shards.counts("r-1")).by_state)

    async def jobs(self) -> list[Job]:
        attempts = [attempt for shard in await self.shards() for attempt in await self.attempts(shard.shard)]
        async with self.store.transaction() as tx:
            found = [await tx.jobs.get(name) for name in sorted({attempt.job_id for attempt in attempts})]
        return [job for job in found if job is not None]

    async def entry(self, attempt: Attempt) -> Mapping[str, Any]:
        """What the worker of an attempt is told."""
        async with self.store.transaction() as tx:
            job = await tx.jobs.get(attempt.job_id)
        assert job is not None
        return job.assignment["entries"][attempt.array_index]

    async def check(self) -> None:
        """The invariants of the moment."""
        shards = await self.shards()
        attempts = [attempt for shard in shards for attempt in await self.attempts(shard.shard)]
        assert check([await self.request()], shards, attempts, await self.jobs()) == []

    # --- people and workers --------------------------------------------------------------------------------------

    async def order(self, kind: OperationKind, **selector: Any) -> Operation:
        """An operator's order, carried out; as it is then."""
        self._orders += 1
        order = Operation(
            id=f"o-{self._orders}",
            kind=kind,
            request_id="r-1",
            selector=selector,
            actor="ann",
            reason="by hand",
            created_at=self.clock.now(),
        )
        async with self.store.transaction() as tx:
            await tx.operations.insert(order)
        await self.step("operations")
        async with self.store.transaction() as tx:
            done = await tx.operations.get(order.id)
        assert done is not None
        return done

    async def report(self, child: Child, exit_code: ExitCode | None = None, **fields: Any) -> None:
        """A worker says how it is, or how it ended."""
        attempt = await self.attempt_of(child)
        self._sequence += 1
        kind = "heartbeat" if exit_code is None else "ended"
        values = {
            "attempt_id": attempt.id,
            "token": attempt.token,
            "kind": kind,
            "seq": self._sequence,
            "batch_job_id": child.id,
            "request_id": attempt.request_id,
            "shard": attempt.shard,
            "exit_code": exit_code,
        }
        report = WorkerReport.model_validate(values | fields)
        event = encode(
            MessageType.WORKER_REPORT, report, event_id=f"w-{self._sequence}", source="worker", time=self.clock.now()
        )
        self.reports.put(event)

    async def commit(self, child: Child) -> None:
        """The worker of `child` writes its chunks and its marker."""
        attempt = await self.attempt_of(child)
        assert attempt.shard is not None
        shard = next(s for s in await self.shards(attempt.request_id) if s.shard == attempt.shard)
        output = Location.parse((await self.request(attempt.request_id)).output_uri or "")
        chunks = []
        for number in range(shard.chunks):
            body = f"{shard.shard}/{number}".encode()
            digest = hashlib.sha256(body).hexdigest()
            key = chunk_key(shard.shard, number, digest)
            self.objects.content[output.join(key)] = body
            rows = shard.assets // shard.chunks
            chunks.append(
                CommittedChunk(chunk=number, key=key, sha256=digest, bytes=len(body), rows=rows, ok=rows, bad=0)
            )
        marker = builders.marker(shard, chunks=chunks, attempt_id=attempt.id)
        self.objects.content[output.join(commit_key(shard.shard, shard.generation))] = marker.to_bytes()

    async def finish(self, *children: Child) -> None:
        """Committed, and the container ended well."""
        for child in children:
            await self.commit(child)
            self.batch.end(child, 0)
        await self.step("batch_events")
        self.clock.seconds += 61
        await self.step("reconcile")

    async def fail(self, child: Child, *arguments: Any, **options: Any) -> Attempt:
        """Batch ends it so; the attempt as it is settled, once the worker's own word had time to arrive."""
        if child.status == "RUNNABLE" and options.pop("started", True):
            self.batch.start(child)
        self.batch.end(child, *arguments, **options)
        await self.step("batch_events")
        self.clock.seconds += 61
        await self.step("reports", "reconcile")
        return await self.attempt_of(child)

    async def again(self) -> list[Child]:
        """Wait for the next attempts; the children that Batch has then and had not before."""
        before = {child.id for child in self.batch.children()}
        for _ in range(40):
            self.clock.seconds += 60
            await self.step("dispatch")
            new = [child for child in self.batch.children() if child.id not in before]
            if new:
                return new
        return []


def settings(**groups: Mapping[str, Any]) -> Settings:
    """The least settings, with changes by group; a group that is a list is taken as it is."""
    base = builders.settings()
    for name, group in {**FAST, **groups}.items():
        base[name] = {**FAST.get(name, {}), **group} if isinstance(group, Mapping) else group
    return Settings.model_validate(base)


def queue(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "job_definition": "infer:1", **changes}


def with_settings(site: Site, **groups: Any) -> Site:
    """The same store under other settings."""
    return Site(site.store, settings(**groups))
