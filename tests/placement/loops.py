"""The real loops on a trace: dispatch, reports, Batch events and reconcile, on a real Postgres, in virtual time.

Around them only what is outside of the controller is played: Batch by `tests.placement.world`, S3 by a dictionary,
the queues by lists, and workers that report once when they end.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

from controller.core.facts import JobView
from controller.core.records import Request
from controller.loops.batch_events import BatchEvents
from controller.loops.context import Context, Inboxes
from controller.loops.dispatch import Dispatch
from controller.loops.leader import Leadership
from controller.loops.reconcile import Reconcile
from controller.loops.reports import Reports
from controller.loops.runner import Outcome
from controller.ports import Delivery, ObjectInfo, Store, SubmitSpec
from controller.settings import Settings
from schema.exit_codes import ExitCode
from schema.layout import Location, chunk_key, commit_key
from schema.messages import MessageType, ReportKind, WorkerReport, encode
from schema.plan import CommitMarker, CommittedChunk, Figures
from tests.builders import NOW, request, shard
from tests.placement.baselines import Result
from tests.placement.traces import FAMILIES, Trace
from tests.placement.world import TICK_SECONDS, Run, World

ASSETS = 1000
_REASON = "Host EC2 (instance i-0123456789abcdef0) terminated."
_IDLE = Trace(name="idle", about="nothing ever starts", queues={family.name: ((0.0, 0),) for family in FAMILIES})


def loop_settings(scale: int) -> Settings:
    """The defaults; caps are cut as the trace is, and attempts are looked at less often, since nothing is ever lost."""
    queues = [
        {
            "name": family.name,
            "job_definition": "d:1",
            "price_usd_per_hour": family.usd_per_hour,
            "backlog": 200 // scale,
            "max_live": 2000 // scale,
        }
        for family in FAMILIES
    ]
    return Settings.model_validate(
        {
            "database": {"url": "postgresql+asyncpg://nobody@127.0.0.1/none"},
            "sqs": {name: f"sqs://{name}" for name in ("requests", "reports", "batch_events", "rejects", "status")},
            "storage": {"control_bucket": "control"},
            "cpu": {"queue": "cpu", "prepare_definition": "p:1", "index_definition": "i:1"},
            "gpu_queues": queues,
            "models": ["tiny@1"],
            "tenants": {"stock": {"inputs": ["s3://photos/"], "outputs": ["s3://embeddings/"]}},
            "reconcile": {"orphan_seconds": 1e9},
        }
    )


class Objects:
    """S3 as a dictionary."""

    def __init__(self) -> None:
        self.content: dict[Location, bytes] = {}

    async def get(self, location: Location) -> bytes | None:
        return self.content.get(location)

    async def head(self, location: Location) -> ObjectInfo | None:
        body = self.content.get(location)
        return None if body is None else ObjectInfo(len(body))

    async def put(self, location: Location, body: bytes) -> None:
        self.content[location] = body


class Messages:
    """An SQS queue that delivers each message once."""

    def __init__(self) -> None:
        self.bodies: list[str] = []

    async def receive(self, limit: int, wait_seconds: float) -> Sequence[Delivery]:
        taken, self.bodies = self.bodies[:limit], self.bodies[limit:]
        return [Delivery(body, "") for body in taken]

    async def delete(self, deliveries: Sequence[Delivery]) -> None:
        """Receiving took it."""


@dataclass
class Child:
    batch_id: str
    run: Run
    entry: Mapping[str, Any]
    running: bool = False


class Site:
    """One replica of the controller, and the world around it."""

    def __init__(self, store: Store, world: World | None = None, scale: int = 1) -> None:
        self.world = world or World(_IDLE, [1.0] * 100, {family.name: [family.name] for family in FAMILIES})
        self.submitted: list[SubmitSpec] = []
        self.before_submit: Callable[[], Awaitable[None]] | None = None
        self._children: dict[str, Child] = {}
        self._of_run: dict[Run, Child] = {}
        self._queued: dict[Run, None] = {}
        self._rng = random.Random("ids")
        self._objects, self._reports, self._events = Objects(), Messages(), Messages()
        settings = loop_settings(scale)
        self._context = Context(
            settings=settings,
            store=store,
            clock=cast("Any", self),
            entropy=cast("Any", self),
            batch=cast("Any", self),
            objects=cast("Any", self._objects),
            inboxes=Inboxes(
                requests=cast("Any", None), reports=cast("Any", self._reports), batch_events=cast("Any", self._events)
            ),
            outboxes=cast("Any", None),
            recorder=cast("Any", SimpleNamespace(count=lambda *_, **__: None, withdraw=lambda: None)),
            holder="one",
            policy=settings.policy(),
        )
        self._dispatch = Dispatch(self._context, Leadership(self._context))
        self._loops = [Reports(self._context), BatchEvents(self._context), Reconcile(self._context)]

    # --- clock, entropy ----------------------------------------------------------------------------------------------

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.world.now)

    def monotonic(self) -> float:
        return self.world.now

    def new_id(self, prefix: str) -> str:
        return f"{prefix}-{self._rng.getrandbits(80):020x}"

    def token(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    def uniform(self) -> float:
        return self._rng.random()

    # --- Batch -------------------------------------------------------------------------------------------------------

    async def submit(self, spec: SubmitSpec) -> str:
        self.submitted.append(spec)
        parent = self.new_id("b")
        body = self._objects.content[Location.parse(spec.assignment_uri)]
        entries = json.loads(body)["entries"]
        runs = self.world.submit(spec.queue, [entry["shard"] for entry in entries])
        for index, (run, entry) in enumerate(zip(runs, entries, strict=True)):
            child = Child(parent if spec.size == 1 else f"{parent}:{index}", run, entry)
            self._children[child.batch_id] = self._of_run[run] = child
            self._queued[run] = None
        return parent

    async def describe(self, batch_job_ids: Sequence[str]) -> Mapping[str, JobView]:
        views = {name: self._view(self._children[name]) for name in batch_job_ids}
        for queue in self.world.queues.values():
            head = next((run for run in queue.waiting if not run.cancelled), None)
            reason = self.world.reason(queue.name)
            if head is not None and reason is not None:
                blocked = {"jobQueue": queue.name, "statusReason": reason}
                self._emit("Batch Job Queue Blocked", blocked)
        return views

    async def list_named(self, queue: str, prefix: str) -> Sequence[JobView]:
        return []

    async def cancel(self, batch_job_id: str, reason: str) -> None:
        self.world.cancel(self._children[batch_job_id].run)

    def _view(self, child: Child) -> JobView:
        run = child.run
        status = "RUNNABLE" if run.started_at is None else "RUNNING"
        reason = None
        if run.over:
            status, reason = ("FAILED", "reembed: cancelled") if run.cancelled else ("FAILED", _REASON)
        started = None if run.started_at is None else NOW + timedelta(seconds=run.started_at)
        return JobView(
            batch_job_id=child.batch_id,
            name="",
            queue=run.queue,
            status=status,
            status_reason=reason,
            started_at=started,
        )

    # --- rounds ------------------------------------------------------------------------------------------------------

    async def dispatch(self) -> None:
        if self.before_submit is not None:
            objects, hook = self._objects, self.before_submit
            put = objects.put

            async def put_then(location: Location, body: bytes) -> None:
                await put(location, body)
                await hook()

            objects.put = put_then  # type: ignore[method-assign]
            try:
                await self._dispatch.step(self.now())
            finally:
                del objects.put  # type: ignore[attr-defined]
            return
        await self._dispatch.step(self.now())

    async def turn(self) -> None:
        """What happened since the last turn, then a step of each loop until it has no more to do."""
        self._tell()
        for loop in self._loops:
            while await loop.step(self.now()) is Outcome.BUSY:
                pass
        await self.dispatch()

    def _tell(self) -> None:
        world = self.world
        for run in [run for run in self._queued if run.started_at is not None or run.over]:
            del self._queued[run]
            if not run.over:
                self._state(self._of_run[run], "RUNNING")
        for run in world.finished:
            self._commit(self._of_run[run])
        for run in (*world.reclaimed, *world.gone):
            self._state(self._of_run[run], "FAILED", _REASON if run in world.reclaimed else "cancelled")
        for heard in (world.finished, world.reclaimed, world.gone):
            heard.clear()

    def _state(self, child: Child, status: str, reason: str = "") -> None:
        started = child.run.started_at
        detail: dict[str, Any] = {"jobId": child.batch_id, "jobQueue": child.run.queue, "status": status}
        if started is not None:
            detail["startedAt"] = int((NOW + timedelta(seconds=started)).timestamp() * 1000)
        self._emit("Batch Job State Change", detail | ({"statusReason": reason} if reason else {}))

    def _emit(self, kind: str, detail: Mapping[str, Any]) -> None:
        self._events.bodies.append(json.dumps({"source": "aws.batch", "detail-type": kind, "detail": detail}))

    def _commit(self, child: Child) -> None:
        """What a worker does at the end: the chunk, the marker, the report."""
        number, generation = child.entry["shard"], child.entry["generation"]
        output, body = Location.parse(_REQUEST.output_uri or ""), b"chunk"
        sha256 = hashlib.sha256(body).hexdigest()
        key = chunk_key(number, 0, sha256)
        chunk = CommittedChunk(chunk=0, key=key, sha256=sha256, bytes=len(body), rows=ASSETS, ok=ASSETS, bad=0)
        marker = CommitMarker(
            request_id=_REQUEST.id,
            shard=number,
            generation=generation,
            attempt_id=child.entry["attempt_id"],
            rows=ASSETS,
            ok=ASSETS,
            bad=0,
            statuses={"ok": ASSETS},
            chunks=[chunk],
        )
        self._objects.content[output.join(key)] = body
        self._objects.content[output.join(commit_key(number, generation))] = marker.model_dump_json().encode()
        report = WorkerReport(
            attempt_id=child.entry["attempt_id"],
            token=child.entry["token"],
            kind=ReportKind.ENDED,
            seq=1,
            batch_job_id=child.batch_id,
            request_id=_REQUEST.id,
            shard=number,
            figures=Figures(assets=ASSETS, ok=ASSETS),
            exit_code=ExitCode.OK,
        )
        body_text = encode(MessageType.WORKER_REPORT, report, event_id=self.new_id("e"), source="/worker")
        self._reports.bodies.append(body_text)


_REQUEST: Request = request(assets=ASSETS)


async def play_loops(store: Store, trace: Trace, work: list[float], scale: int) -> Result:
    """The trace, its levels cut by `scale`, through the loops."""
    world = World(trace, work, {family.name: [family.name] for family in FAMILIES})
    site = Site(store, world, scale)
    shards = [shard(number, assets=ASSETS, chunks=1) for number in range(len(work))]
    async with store.transaction() as tx:
        assert await tx.requests.insert(request(assets=ASSETS * len(work), shards=len(work)))
        await tx.shards.insert_many(shards)
    while world.done < len(work):
        await site.turn()
        world.advance(world.now + 2 * TICK_SECONDS)
        if world.now > 14 * 24 * 3600:
            raise TimeoutError(f"{trace.name}: {world.done} of {len(work)} shards done")
    await site.turn()
    return Result(world.last_done_at, world.usd, moved=world.cancels, reclaims=world.reclaims)


def scaled(trace: Trace, scale: int) -> Trace:
    """The same trace with `scale` times fewer instances."""
    queues = {name: tuple((at, round(level / scale)) for at, level in steps) for name, steps in trace.queues.items()}
    return Trace(**{**vars(trace), "queues": queues, "quota": tuple((at, round(q / scale)) for at, q in trace.quota)})
