"""The inference job: one shard, from its address file to its commit marker.

`run` is the recipe. It owns what spans ranks: which chunks are left, what was heard, when to give up, the commit. It
embeds nothing itself and imports neither torch nor Pillow.

Every way to end keeps the chunks that were closed: the next attempt finds them by listing, not by being told.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from schema import layout
from schema.assignment import Entry, InferAssignment
from schema.exit_codes import ExitCode
from schema.layout import Location
from schema.plan import CommitMarker, Figures
from schema.shardfile import ShardFile, ShardFileError
from worker import chunks, devices, ring
from worker.aws import REFUSALS
from worker.chunks import Stored
from worker.commit import check_not_void, commit, is_valid, read_marker
from worker.context import ConfigError, Context, Ending, Interrupted, Stopped
from worker.isolation import TooDeadly, find_poison
from worker.models import registry
from worker.peers import wait_for_peers
from worker.progress import Progress
from worker.rank import Order
from worker.ranks import Crashed, Ranks, share
from worker.rows import bad_rows, ok_rows

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shard:
    """The verified address file, in memory that ranks can read, and how it falls into chunks."""

    descriptor: int
    assets: int
    chunk_assets: int

    @property
    def rows_of(self) -> list[int]:
        """Rows of chunk 0, 1, …"""
        starts = range(0, self.assets, self.chunk_assets)
        return [min(self.chunk_assets, self.assets - start) for start in starts]


def run(assignment: InferAssignment, entry: Entry, context: Context) -> Ending:
    """Embed the shard of `entry`, wait for the other nodes if they depend on us, and say how it ended."""
    try:
        return _run(assignment, entry, context)
    except Stopped as stopped:
        return stopped.ending
    finally:
        wait_for_peers(assignment, entry, context)


def _run(assignment: InferAssignment, entry: Entry, context: Context) -> Ending:
    began = time.monotonic()
    output = Location.parse(assignment.output_uri)
    number = entry.shard if entry.shard is not None else 0
    marker_place = output.join(layout.commit_key(number, entry.generation))

    # 1. What was ordered can be done here.
    _check_model(assignment)
    check_source(context.s3, assignment)
    shard = open_shard(context.s3, assignment, entry)

    # 2. What is already done: the whole shard, or chunks of it.
    marker = read_marker(context.s3, marker_place)
    if marker is not None and is_valid(context.s3, output, marker, shard=number, rows=shard.assets):
        log.info("shard already committed", extra={"by": marker.attempt_id})
        return Ending(ExitCode.OK)
    found = chunks.find(context.s3, output, number, shard.rows_of)
    progress = Progress(context.report, shard.rows_of, found, assignment.tolerance, entry.finalise_retryable)

    # 3. Do the rest: first find what kills workers, then run all ranks to their end.
    skip = set(entry.skip) | set(_isolate(assignment, entry, context, shard, progress))
    _embed(assignment, entry, context, shard, progress, sorted(skip))

    # 4. Judge the whole.
    progress.raise_for(progress.verdict())
    left = progress.undone_chunks()
    if left:
        retryable = progress.retryable_rows()
        text = f"{retryable} rows in {len(left)} chunks are left for a later attempt"
        return Ending(ExitCode.INCOMPLETE, text, poison=progress.poison(), retryable_rows=retryable)

    # 5. Commit.
    check_not_void(context.s3, context.assignment_uri)
    held = commit(context.s3, output, marker_place, _marker(assignment, entry, progress, time.monotonic() - began))
    log.info("committed", extra={"by": held.attempt_id, "rows": held.rows, "ok": held.ok, "bad": held.bad})
    return Ending(ExitCode.OK, poison=progress.poison())


def _check_model(assignment: InferAssignment) -> None:
    try:
        plugin = registry.find(assignment.model)
    except registry.UnknownModel as error:
        raise ConfigError(str(error)) from error
    if plugin.preprocessing_digest != assignment.preprocessing_digest:
        raise ConfigError(
            f"{assignment.model} on this image preprocesses as {plugin.preprocessing_digest}, "
            f"the plan was made for {assignment.preprocessing_digest}; run the image that made the plan"
        )


def check_source(s3: Any, assignment: InferAssignment) -> None:
    """The bucket is there and is whose it should be. Asked once: obstore cannot send the owner signed.

    Without an expected owner a 403 proves nothing, as a role may read objects without being allowed to list.
    """
    owner = {"ExpectedBucketOwner": assignment.source_owner} if assignment.source_owner else {}
    try:
        s3.head_bucket(Bucket=assignment.source_bucket, **owner)
    except s3.exceptions.ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        if status == 403 and not owner:
            return
        if status not in REFUSALS:
            raise
        reasons = {403: f"denied, or not owned by {assignment.source_owner}", 404: "no such bucket"}
        reason = reasons.get(status, "is it in another region?")
        raise ConfigError(f"source bucket {assignment.source_bucket}: {reason} (HTTP {status})") from error


def open_shard(s3: Any, assignment: InferAssignment, entry: Entry) -> Shard:
    """Fetch and verify the address file; ConfigError when it is not the planned one."""
    body = s3.get_object(Bucket=assignment.control_bucket, Key=entry.shard_key)["Body"].read()
    if entry.shard_sha256 and hashlib.sha256(body).hexdigest() != entry.shard_sha256:
        raise ConfigError(f"{entry.shard_key} has another sha256 than the plan says")
    descriptor = ring.shared_memory(len(body))
    os.pwrite(descriptor, body, 0)
    try:
        opened = ShardFile.open(lambda offset, length: body[offset : offset + length], len(body))
    except ShardFileError as error:
        raise ConfigError(f"{entry.shard_key}: {error}") from error
    if opened.bucket != assignment.source_bucket:
        raise ConfigError(f"{entry.shard_key} is about bucket {opened.bucket}, not {assignment.source_bucket}")
    return Shard(descriptor, opened.count, assignment.chunk_assets)


def _isolate(
    assignment: InferAssignment, entry: Entry, context: Context, shard: Shard, progress: Progress
) -> list[int]:
    """Run the chunks that killed earlier attempts piece by piece; gives the ordinals that kill."""
    base = _order(assignment, entry, context, world=1)
    skip = list(entry.skip)

    def survives(low: int, high: int) -> bool:
        ranks = Ranks(shard.descriptor, progress, context.stop, context.settings.stop_seconds)
        try:
            ranks.run([base.model_copy(update={"probe": (low, high), "skip": skip})], lives=1)
        except Crashed:
            return False
        if context.stop.is_set():
            raise Interrupted("stopped while looking for the asset that kills")
        return True

    for chunk in [order.chunk for order in progress.undone_chunks() if order.chunk in entry.isolate]:
        progress.isolating(chunk)
        start = chunk * shard.chunk_assets
        try:
            poison = find_poison(start, start + shard.rows_of[chunk], survives)
        except TooDeadly as error:
            raise Crashed(f"chunk {chunk}: {error}") from error
        log.warning("isolated", extra={"chunk": chunk, "poison": poison})
        skip += poison
    progress.isolating(None)
    return skip


def _embed(
    assignment: InferAssignment,
    entry: Entry,
    context: Context,
    shard: Shard,
    progress: Progress,
    skip: Sequence[int],
) -> None:
    shares = share(progress.undone_chunks(), devices.ranks(context.settings.ranks))
    base = _order(assignment, entry, context, world=max(1, len(shares)))
    orders = [
        base.model_copy(update={"rank": rank, "device": devices.device(rank), "chunks": mine, "skip": list(skip)})
        for rank, mine in enumerate(shares)
    ]
    ranks = Ranks(shard.descriptor, progress, context.stop, context.settings.stop_seconds)
    in_time = context.stop.is_set() or ranks.run(orders)
    if context.stop.is_set() and progress.unopened_chunks():
        late = "" if in_time else f"; open chunks did not end within {context.settings.stop_seconds:g} seconds"
        raise Interrupted(f"stopped with {len(progress.unopened_chunks())} chunks left{late}")


def _order(assignment: InferAssignment, entry: Entry, context: Context, world: int) -> Order:
    """What all ranks are told; CPUs and requests in flight are divided among them."""
    decoders, threads = devices.divide_cpus(world, context.settings.decoders)
    concurrency = entry.fetch_concurrency or assignment.fetch_concurrency
    return Order(
        assignment=assignment,
        entry=entry.model_copy(update={"isolate": [], "skip": []}),
        rank=0,
        device=devices.device(0),
        threads=threads,
        decoders=decoders,
        concurrency=max(1, concurrency // world),
        chunks=[],
    )


def _marker(assignment: InferAssignment, entry: Entry, progress: Progress, wall_seconds: float) -> CommitMarker:
    stored: list[Stored] = progress.stored()
    statuses = progress.statuses()
    figures: Figures = progress.figures().model_copy(update={"wall_seconds": wall_seconds})
    return CommitMarker(
        request_id=assignment.request_id,
        shard=entry.shard if entry.shard is not None else 0,
        generation=entry.generation,
        attempt_id=entry.attempt_id,
        rows=sum(statuses.values()),
        ok=ok_rows(statuses),
        bad=bad_rows(statuses, with_retryable=True),
        statuses=statuses,
        chunks=[chunk.committed() for chunk in stored],
        figures=figures,
        model=assignment.model,
        preprocessing_digest=assignment.preprocessing_digest,
    )
