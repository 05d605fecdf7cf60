"""I11, by reading: every listed asset has exactly one row in the committed output, or its shard is an accepted gap.

The plan says which assets there are and the shard files name them; every chunk object is read whole and compared with
them, key by key and in order. Counts are made of the rows. What a marker claims is compared with them, never copied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from schema import layout
from schema.assignment import IndexAssignment, IndexedShard
from schema.plan import CommitMarker, CommittedChunk, ManifestShard, Plan, PlannedShard
from schema.shardfile import ShardFile
from schema.states import RowStatus
from worker.context import ConfigError, Context
from worker.index.committed import Committed, NotAsPromised, describe_counts
from worker.patience import get


@dataclass
class Audit:
    """What the reading found so far; complete once `rows` has been exhausted."""

    plan: Plan
    shards: list[ManifestShard] = field(default_factory=list[ManifestShard])
    statuses: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def ok(self) -> int:
        return self.statuses.get(RowStatus.OK, 0)

    @property
    def bad(self) -> int:
        return sum(self.statuses.values()) - self.ok


@dataclass(frozen=True)
class CheckedChunk:
    """Rows that are exactly the assets that the plan put there."""

    shard: int
    chunk: CommittedChunk
    table: pa.Table


def load_plan(assignment: IndexAssignment, context: Context) -> Plan:
    """The request's plan; the assignment must account for each of its shards once."""
    key = layout.plan_key(assignment.request_id)
    plan = Plan.model_validate_json(get(context.s3, assignment.control_bucket, key, context.stop))
    named = sorted([shard.shard for shard in assignment.shards] + assignment.gaps)
    if named != [shard.shard for shard in plan.shards]:
        missing = sorted({shard.shard for shard in plan.shards} - set(named))
        raise ConfigError(
            f"I11: {len(named)} shards and gaps were given for the plan's {len(plan.shards)}; "
            f"missing are {missing[:20]}"
        )
    return plan


def rows(assignment: IndexAssignment, context: Context, audit: Audit) -> Generator[CheckedChunk]:
    """Every chunk of every committed shard, checked, in the order of the plan; adds to `audit` as it goes."""
    committed = Committed.of(assignment, context)
    planned = {shard.shard: shard for shard in audit.plan.shards}
    for shard in sorted(assignment.shards, key=lambda shard: shard.shard):
        marker = committed.marker(shard)
        file = _shard_file(assignment, context, planned[shard.shard])
        yield from _shard_rows(committed, shard, marker, file, audit)


def _shard_rows(
    committed: Committed, shard: IndexedShard, marker: CommitMarker, file: ShardFile, audit: Audit
) -> Iterator[CheckedChunk]:
    size = audit.plan.chunk_assets
    chunks = sorted(marker.chunks, key=lambda chunk: chunk.chunk)
    if [chunk.chunk for chunk in chunks] != list(range(-(-file.count // size))):
        raise NotAsPromised(f"I11: {shard.marker_key} does not name each of the shard's chunks once")
    found: list[CommittedChunk] = []
    statuses: dict[str, int] = {}
    for chunk, table in committed.tables(chunks):
        wanted = [address.key for address in file.slice(chunk.chunk * size, (chunk.chunk + 1) * size)]
        counts = _checked(chunk, table, wanted)
        ok = counts.get(RowStatus.OK, 0)
        found.append(chunk.model_copy(update={"rows": len(wanted), "ok": ok, "bad": len(wanted) - ok}))
        if found[-1] != chunk:
            raise NotAsPromised(f"{chunk.key} holds {describe_counts(counts)}; its commit says {chunk.ok} ok")
        for status, number in counts.items():
            statuses[status] = statuses.get(status, 0) + number
            audit.statuses[status] = audit.statuses.get(status, 0) + number
        yield CheckedChunk(shard.shard, chunk, table)
    if statuses != {status: number for status, number in marker.statuses.items() if number}:
        raise NotAsPromised(f"{shard.marker_key} says {marker.statuses}; its chunks hold {describe_counts(statuses)}")
    ok = sum(chunk.ok for chunk in found)
    audit.shards.append(
        ManifestShard(
            shard=shard.shard,
            marker=shard.marker_key,
            marker_digest=shard.marker_digest,
            rows=file.count,
            ok=ok,
            bad=file.count - ok,
            chunks=found,
        )
    )


def _checked(chunk: CommittedChunk, table: pa.Table, wanted: list[bytes]) -> dict[str, int]:
    """How often each status, after every row was found to be the asset that belongs there."""
    keys = table.column("key").to_pylist()
    if keys != wanted:
        place = next((n for n, (key, want) in enumerate(zip(keys, wanted, strict=False)) if key != want), len(wanted))
        raise NotAsPromised(f"I11: {chunk.key} has other assets than the plan, from row {place} on")
    if any(table.column("part").to_pylist()):
        raise NotAsPromised(f"I11: {chunk.key} has rows of a second part; assets have one")
    counts = {entry["values"]: entry["counts"] for entry in table.column("status").value_counts().to_pylist()}
    if unknown := set(counts) - set(RowStatus):
        raise NotAsPromised(f"{chunk.key} has unknown statuses: {unknown}")
    with_vector = pc.is_valid(table.column("embedding"))
    if not pc.all(pc.equal(with_vector, pc.equal(table.column("status"), str(RowStatus.OK)))).as_py():
        raise NotAsPromised(f"I11: {chunk.key} has ok rows without a vector or others with one")
    return counts


def _shard_file(assignment: IndexAssignment, context: Context, planned: PlannedShard) -> ShardFile:
    body = get(context.s3, assignment.control_bucket, planned.key, context.stop)
    if hashlib.sha256(body).hexdigest() != planned.sha256:
        raise NotAsPromised(f"{planned.key} is not the shard file that the plan names")
    return ShardFile.open(lambda offset, length: body[offset : offset + length], len(body))
