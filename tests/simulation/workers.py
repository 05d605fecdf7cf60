"""Workers as generators of pauses: what the containers of prepare, infer and index jobs do to S3 and SQS.

They keep the worker's contract (start, chunks, void check, commit, report) and break down in every way that a container
may. Commits go through the worker's own code. A chunk is a small JSON object that names its rows, so that the output
can be read at the end.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field

from schema import assignment as assignments
from schema.assignment import Entry, IndexAssignment, InferAssignment, PrepareAssignment
from schema.exit_codes import ExitCode
from schema.layout import Location, chunk_key, chunk_prefix, commit_key, partial_key, plan_key, shard_key
from schema.messages import MessageType, ReportKind, WorkerReport, encode
from schema.plan import CommitMarker, CommittedChunk, Figures, Plan, PlannedShard
from tests.simulation.batch import Child, Worker
from tests.simulation.messages import Queue
from tests.simulation.objects import Objects, WorkerClient
from tests.simulation.scheduler import Scheduler
from worker import commit as commits
from worker.context import Stopped

SHARD_ASSETS, CHUNK_ASSETS = 30, 15
CHUNKS = SHARD_ASSETS // CHUNK_ASSETS
SEGMENTATION_FAULT = 139
PREPROCESSING = "pre-1"


@dataclass
class Habits:
    """How often things go wrong in a container, 0..1; all of them stop when the faults stop."""

    crash: float = 0.0
    incomplete: float = 0.0
    out_of_memory: float = 0.0
    host_sick: float = 0.0
    silent_end: float = 0.0
    forged: float = 0.0
    bad_marker: float = 0.0
    commit_fault: float = 0.0
    #: (request, ordinal of the shard, ordinal in the shard) that kills whoever decodes it.
    poison: frozenset[tuple[str, int, int]] = frozenset()


@dataclass
class World:
    """What containers can reach, and what they did."""

    scheduler: Scheduler
    objects: Objects
    reports: Queue
    habits: Habits = field(default_factory=Habits)
    fired: Callable[[str], None] = lambda _kind: None
    #: request → shards to plan
    shards: dict[str, int] = field(default_factory=dict)
    #: (attempt, token, seq) of every report that was sent
    said: set[tuple[str, str, int]] = field(default_factory=set)
    #: attempt → its latest figures in a report that was sent; and the marker that it wrote
    markers: dict[str, CommitMarker] = field(default_factory=dict)
    ledger: dict[str, dict[int, str]] = field(default_factory=dict)
    alias: dict[str, str] = field(default_factory=dict)
    #: attempts whose container has begun, and those whose container is over
    begun: dict[str, Child] = field(default_factory=dict)

    def chance(self, share: float, kind: str) -> bool:
        hit = self.scheduler.dice.random() < share
        if hit:
            self.fired(kind)
        return hit

    def commit_fault(self) -> str | None:
        if not self.chance(self.habits.commit_fault, "s3 conditional write"):
            return None
        return self.scheduler.dice.choice(["lost", "409", "503"])


def start(world: World, child: Child) -> Worker:
    body = world.objects.read(Location.parse(child.job.spec.assignment_uri))
    if body is None:
        return _exit(ExitCode.CONFIG_ERROR)
    assignment = assignments.parse(body)
    if child.index >= len(assignment.entries):
        return _exit(ExitCode.ASSIGNMENT_MISMATCH)
    if assignment.void:
        return _exit(ExitCode.VOID)
    entry = assignment.entries[child.index]
    world.begun[entry.attempt_id] = child
    voice = Voice(world, child, entry, assignment.request_id)
    if isinstance(assignment, PrepareAssignment):
        return _prepare(world, voice, assignment, entry)
    if isinstance(assignment, IndexAssignment):
        return _index(world, voice, assignment)
    return _infer(world, voice, assignment, entry, child)


def _exit(code: ExitCode) -> Worker:
    yield 0.1
    return int(code)


class Voice:
    """Reports of one container, with growing sequence numbers and cumulative figures."""

    def __init__(self, world: World, child: Child, entry: Entry, request_id: str) -> None:
        self.figures = Figures()
        self._world, self._child, self._entry, self._request_id = world, child, entry, request_id
        self._seq = 0

    def say(self, kind: ReportKind, code: ExitCode | None = None, **more: object) -> None:
        world = self._world
        if kind is ReportKind.ENDED and world.chance(world.habits.silent_end, "report never sent"):
            return
        forged = world.chance(world.habits.forged, "report with another token")
        self._send(self._entry.token, kind, code, **more)
        if forged:
            self._send("not-the-token", ReportKind.ENDED, ExitCode.CONFIG_ERROR)

    def _send(self, token: str, kind: ReportKind, code: ExitCode | None, **more: object) -> None:
        world, entry = self._world, self._entry
        report = WorkerReport.model_validate(
            {
                "attempt_id": entry.attempt_id,
                "token": token,
                "kind": kind,
                "seq": self._seq,
                "batch_job_id": self._child.id,
                "queue": self._child.job.spec.queue,
                "request_id": self._request_id,
                "shard": entry.shard,
                "exit_code": code,
                "figures": self.figures,
                **more,
            }
        )
        world.said.add((entry.attempt_id, token, self._seq))
        self._seq += 1
        world.reports.put(
            encode(MessageType.WORKER_REPORT, report, event_id=f"{entry.attempt_id}-{self._seq}", source="w")
        )


def _prepare(world: World, voice: Voice, assignment: PrepareAssignment, entry: Entry) -> Worker:
    voice.say(ReportKind.STARTED)
    yield world.scheduler.dice.uniform(2, 10)
    if world.chance(world.habits.crash, "container crashed"):
        return SEGMENTATION_FAULT
    shards = []
    for number in range(world.shards[assignment.request_id]):
        key = shard_key(assignment.request_id, entry.attempt_id, number)
        body = f"{assignment.request_id} {number} by {entry.attempt_id}".encode()
        world.objects.write(Location(assignment.control_bucket, key), body)
        digest = hashlib.sha256(body).hexdigest()
        shards.append(PlannedShard(shard=number, key=key, sha256=digest, assets=SHARD_ASSETS, bytes=1, chunks=CHUNKS))
    plan = Plan(
        request_id=assignment.request_id,
        attempt_id=entry.attempt_id,
        bucket=assignment.source_bucket,
        model=assignment.model,
        preprocessing_digest=PREPROCESSING,
        chunk_assets=CHUNK_ASSETS,
        assets=SHARD_ASSETS * len(shards),
        bytes=len(shards),
        shards=shards,
    )
    draft = f"requests/{assignment.request_id}/plan/{entry.attempt_id}/plan.json"
    world.objects.write(Location(assignment.control_bucket, draft), plan.to_bytes())
    yield world.scheduler.dice.uniform(0, 5)
    place = Location(assignment.control_bucket, plan_key(assignment.request_id))
    if world.objects.read(place) is None:
        world.objects.write(place, plan.to_bytes())
    voice.say(ReportKind.ENDED, ExitCode.OK)
    return 0


def _infer(world: World, voice: Voice, assignment: InferAssignment, entry: Entry, child: Child) -> Worker:
    assert entry.shard is not None
    dice, output = world.scheduler.dice, Location.parse(assignment.output_uri)
    client = WorkerClient(world.objects, world.commit_fault)
    voice.say(ReportKind.STARTED, open_chunks=[0])
    if world.chance(world.habits.host_sick, "host sick"):
        voice.say(ReportKind.ENDED, ExitCode.HOST_SICK)
        return int(ExitCode.HOST_SICK)
    found: dict[int, CommittedChunk] = {}
    poison: list[int] = []
    left = False
    for number in range(entry.chunks):
        there = _existing(world, output, entry.shard, number)
        if there is not None:
            found[number] = there
            voice.figures = voice.figures.model_copy(update={"chunks_reused": voice.figures.chunks_reused + 1})
            continue
        voice.say(ReportKind.HEARTBEAT, open_chunks=[number], poison=poison)
        yield dice.uniform(2, 12)
        if child.sigterm:
            voice.say(ReportKind.ENDED, ExitCode.INTERRUPTED)
            return int(ExitCode.INTERRUPTED)
        deadly = [
            p
            for r, s, p in sorted(world.habits.poison)
            if (r, s, p // CHUNK_ASSETS) == (assignment.request_id, entry.shard, number)
        ]
        deadly = [ordinal for ordinal in deadly if ordinal not in entry.skip]
        if deadly and number not in entry.isolate:
            world.fired("poison")
            return SEGMENTATION_FAULT
        if deadly:
            poison += deadly
        if world.chance(world.habits.crash, "container crashed"):
            return SEGMENTATION_FAULT
        if world.chance(world.habits.out_of_memory, "out of memory"):
            child.container_reason = "OutOfMemoryError: Container killed due to memory usage"
            return 137
        partial = not entry.finalise_retryable and world.chance(world.habits.incomplete, "throttled to the end")
        stored = _store(world, output, entry, number, deadly, partial=partial)
        if partial:
            left = True
            continue
        found[number] = stored
        done = voice.figures
        voice.figures = done.model_copy(
            update={
                "assets": done.assets + CHUNK_ASSETS,
                "ok": done.ok + stored.ok,
                "chunks_done": done.chunks_done + 1,
            }
        )
    if left:
        voice.say(ReportKind.ENDED, ExitCode.INCOMPLETE, retryable_rows=1, poison=poison)
        return int(ExitCode.INCOMPLETE)
    yield dice.uniform(0, 3)
    try:
        commits.check_not_void(client, child.job.spec.assignment_uri)
        chunks = [found[number] for number in range(entry.chunks)]
        if world.chance(world.habits.bad_marker, "marker that names what is not there"):
            chunks[0] = _not_there(world, output, entry, chunks[0])
        marker = CommitMarker(
            request_id=assignment.request_id,
            shard=entry.shard,
            generation=entry.generation,
            attempt_id=entry.attempt_id,
            rows=sum(chunk.rows for chunk in chunks),
            ok=sum(chunk.ok for chunk in chunks),
            bad=sum(chunk.bad for chunk in chunks),
            statuses={"ok": sum(chunk.ok for chunk in chunks)},
            chunks=chunks,
            figures=voice.figures,
        )
        place = output.join(commit_key(entry.shard, entry.generation))
        held = commits.commit(client, output, place, marker, sleep=lambda _seconds: None)
        world.markers.setdefault(held.attempt_id, held)
    except Stopped as stopped:
        voice.say(ReportKind.ENDED, stopped.ending.code, error=stopped.ending.error)
        return int(stopped.ending.code)
    except Exception as error:
        voice.say(ReportKind.ENDED, ExitCode.CRASHED, error=str(error))
        return int(ExitCode.CRASHED)
    voice.say(ReportKind.ENDED, ExitCode.OK, poison=poison)
    return 0


def _existing(world: World, output: Location, shard: int, number: int) -> CommittedChunk | None:
    """A finished object of a chunk, the first by key."""
    prefix = output.join(f"{chunk_prefix(shard)}{number:05d}/").key
    places = world.objects.content.items()
    found = [key for (bucket, key), _ in places if key.startswith(prefix) and bucket == output.bucket]
    whole = sorted(key for key in found if not key.endswith(".partial.parquet"))
    return _describe(shard, number, world.objects.content[output.bucket, whole[0]]) if whole else None


def _store(
    world: World, output: Location, entry: Entry, number: int, poison: list[int], *, partial: bool
) -> CommittedChunk:
    assert entry.shard is not None
    rows = list(range(number * CHUNK_ASSETS, (number + 1) * CHUNK_ASSETS))
    body = json.dumps({"rows": rows, "poison": poison, "by": entry.attempt_id, "partial": partial}).encode()
    described = _describe(entry.shard, number, body)
    world.objects.write(output.join(described.key), body)
    return described


def _not_there(world: World, output: Location, entry: Entry, chunk: CommittedChunk) -> CommittedChunk:
    """A chunk that no marker may name: a partial one, or one of another size than the object has."""
    if world.scheduler.dice.random() < 0.5:
        return _store(world, output, entry, chunk.chunk, [], partial=True)
    return chunk.model_copy(update={"bytes": chunk.bytes + 1})


def _describe(shard: int, number: int, body: bytes) -> CommittedChunk:
    content = json.loads(body)
    digest = hashlib.sha256(body).hexdigest()
    bad = len(content["poison"])
    key = partial_key(shard, number, digest) if content["partial"] else chunk_key(shard, number, digest)
    rows = len(content["rows"])
    return CommittedChunk(chunk=number, key=key, sha256=digest, bytes=len(body), rows=rows, ok=rows - bad, bad=bad)


def _index(world: World, voice: Voice, assignment: IndexAssignment) -> Worker:
    voice.say(ReportKind.STARTED)
    yield world.scheduler.dice.uniform(1, 6)
    if world.chance(world.habits.crash, "container crashed"):
        return SEGMENTATION_FAULT
    output = Location.parse(assignment.output_uri)
    loaded = {shard.shard: shard.marker_digest for shard in assignment.shards}
    if assignment.action == "load":
        world.ledger.setdefault(assignment.index_table, {}).update(loaded)
        voice.say(ReportKind.ENDED, ExitCode.OK, loaded=loaded)
        return 0
    manifest = output.join("manifest.json")
    shards = {shard.shard: shard.marker_key for shard in assignment.shards}
    world.objects.write(manifest, json.dumps({"markers": shards, "gaps": assignment.gaps}).encode())
    if assignment.index is not None:
        world.alias[assignment.index] = assignment.index_table
    voice.say(
        ReportKind.ENDED, ExitCode.OK, manifest_uri=manifest.uri, failures_uri=output.join("failures.parquet").uri
    )
    return 0
