"""The index job: `load` some committed shards into the request's index table, or `finalise` the request.

Both may be run again at any time. A shard whose ledger line names another commit than the assignment is loaded anew;
one that agrees is left alone. Finalising reads the whole output once more (I11), brings the ledger and the commits to
agree, writes failures and manifest, and only then changes the alias that search uses.

It stops between chunks when asked to; the open transaction is undone, and the next attempt loads that shard again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import closing

from schema.assignment import Entry, IndexAssignment, IndexedShard
from schema.exit_codes import ExitCode
from schema.layout import FAILURES, MANIFEST
from schema.plan import CommittedChunk, Figures, Manifest
from worker.context import ConfigError, Context, Ending, Interrupted
from worker.index import audit, outcome
from worker.index.committed import Committed, batch
from worker.index.pgvector import PgvectorWriter
from worker.index.writer import Batch, IndexWriter
from worker.patience import refuse_if_void

log = logging.getLogger(__name__)


def run(assignment: IndexAssignment, entry: Entry, context: Context) -> Ending:
    """What the assignment asks for. An assignment without an alias has nothing to load."""
    if assignment.index is None:
        return Ending(ExitCode.OK) if assignment.action == "load" else _finalise(assignment, context, None)
    with closing(PgvectorWriter.from_environment()) as writer:
        if assignment.action == "finalise":
            return _finalise(assignment, context, writer)
        return Ending(ExitCode.OK, loaded=_Loading(assignment, context, writer).bring_up_to_date(assignment.shards))


class _Loading:
    """Loads shards at no more than the assignment's rate, and reports what was done."""

    def __init__(self, assignment: IndexAssignment, context: Context, writer: IndexWriter) -> None:
        self._table = assignment.index_table
        self._rate = assignment.rows_per_second
        self._context = context
        self._writer = writer
        self._committed = Committed.of(assignment, context)
        self._started = time.monotonic()
        self._rows = 0

    def bring_up_to_date(self, shards: Sequence[IndexedShard]) -> dict[int, str]:
        """Load what the ledger has not, or has of another commit; the digests of all these shards."""
        ledger = self._writer.ledger(self._table)
        for shard in shards:
            if ledger.get(shard.shard) != shard.marker_digest:
                marker = self._committed.marker(shard)
                rows = self._writer.load_shard(
                    self._table, shard.shard, shard.marker_digest, self._batches(marker.chunks)
                )
                log.info("shard loaded", extra={"shard": shard.shard, "rows": rows, "index_table": self._table})
        return {shard.shard: shard.marker_digest for shard in shards}

    def _batches(self, chunks: Sequence[CommittedChunk]) -> Iterator[Batch]:
        with closing(self._committed.tables(chunks)) as tables:
            for chunk, table in tables:
                self._wait_for_turn()
                found = batch(chunk, table)
                self._rows += len(found.keys)
                self._context.report.update(Figures(assets=self._rows, ok=self._rows))
                yield found

    def _wait_for_turn(self) -> None:
        """Hold the rate: the index also answers searches."""
        due = self._started + self._rows / self._rate if self._rate else 0.0
        if self._context.stop.wait(max(0.0, due - time.monotonic())):
            raise Interrupted("stopped while loading")


def _finalise(assignment: IndexAssignment, context: Context, writer: IndexWriter | None) -> Ending:
    # 1. Read everything (I11).
    audited = audit.Audit(audit.load_plan(assignment, context))
    failures = outcome.collect(audit.rows(assignment, context, audited))
    if audited.plan.assets != sum(shard.rows for shard in audited.shards) + _assets_of_gaps(assignment, audited):
        raise ConfigError("I11: the plan's own counts do not add up")
    # 2. The index holds what the commits say, no more and no less.
    if writer is not None:
        _agree(assignment, context, writer)
    # 3. Say what there is, unless we were withdrawn meanwhile.
    refuse_if_void(context)
    committed = Committed.of(assignment, context)
    manifest = Manifest(
        request_id=assignment.request_id,
        model=assignment.model,
        dtype=assignment.dtype,
        assets=audited.plan.assets,
        ok=audited.ok,
        bad=audited.bad,
        statuses=dict(sorted(audited.statuses.items())),
        shards=audited.shards,
        gaps=sorted(assignment.gaps),
        failures=FAILURES,
        index=assignment.index,
    )
    outcome.publish(context.s3, committed.output, manifest, failures, context.stop)
    # 4. Let search use it.
    if writer is not None and assignment.index is not None:
        writer.activate(assignment.index, assignment.index_table, assignment.request_id)
    log.info("output finalised", extra={"assets": manifest.assets, "ok": manifest.ok, "bad": manifest.bad})
    return Ending(
        ExitCode.OK,
        loaded={shard.shard: shard.marker_digest for shard in assignment.shards} if writer is not None else {},
        manifest_uri=committed.output.join(MANIFEST).uri,
        failures_uri=committed.output.join(FAILURES).uri,
    )


def _agree(assignment: IndexAssignment, context: Context, writer: IndexWriter) -> None:
    """Load what is missing, drop what became a gap, compare, and build the index."""
    table = assignment.index_table
    _Loading(assignment, context, writer).bring_up_to_date(assignment.shards)
    wanted = {shard.shard: shard.marker_digest for shard in assignment.shards}
    for stray in set(writer.ledger(table)) - set(wanted):
        writer.drop_shard(table, stray)
    if writer.ledger(table) != wanted:
        raise RuntimeError(f"the ledger of {table} changed while it was compared; the next attempt looks again")
    writer.build(table)


def _assets_of_gaps(assignment: IndexAssignment, audited: audit.Audit) -> int:
    gaps = set(assignment.gaps)
    return sum(shard.assets for shard in audited.plan.shards if shard.shard in gaps)
