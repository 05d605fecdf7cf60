"""The preparation job: a source becomes shard files and one `plan.json`.

Shards are runs of `shard_assets` addresses in global byte order (the last is what is left), written below the
attempt's own prefix, so attempts never meet before the plan. The plan is published with If-None-Match: whoever is
second keeps the first one's, and either way there is a plan, which is success. Running again is always safe.

Fails as `ConfigError` where the request has to change: unknown model, source that cannot be read, is empty or too
large. An empty source is an error, because a request about nothing is far more often a mistyped prefix.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice

from schema import layout, shardfile
from schema.assignment import Entry, PrepareAssignment
from schema.exit_codes import ExitCode
from schema.plan import Figures, Plan, PlannedShard
from schema.shardfile import Address
from worker import sources
from worker.context import ConfigError, Context, Ending, Interrupted
from worker.listing import OutOfOrder
from worker.models import registry
from worker.patience import Refused, patiently, put_once, refuse_if_void
from worker.spill import Spill

#: Shard files on their way to S3 at once; each is some 20 bytes an asset, and S3 takes about 0.1 s for one.
UPLOADS = 8
#: How many assets go by between two looks at the stop signal and two progress figures.
_PROGRESS_ASSETS = 10_000

log = logging.getLogger(__name__)


def run(assignment: PrepareAssignment, entry: Entry, context: Context) -> Ending:
    """List, pack, publish."""
    if _published(assignment, context):
        return Ending(ExitCode.OK)
    try:
        preprocessing_digest = registry.find(assignment.model).preprocessing_digest
    except registry.UnknownModel as error:
        raise ConfigError(str(error)) from error
    packed = _Packed(assignment, entry, context)
    try:
        # Closed in any case, so that an error in packing ends the threads of the listing too.
        with Spill() as spill, closing(sources.addresses(assignment, context.s3, spill, context.stop)) as found:
            packed.take(found)
    except OutOfOrder as error:
        raise ConfigError(f"{error}; only general purpose buckets can be listed") from error
    if not packed.shards:
        raise ConfigError(f"no objects under {sources.describe(assignment)}")
    _publish(assignment, entry, context, packed, preprocessing_digest)
    return Ending(ExitCode.OK)


class _Packed:
    """The shards made so far, and their uploads in flight."""

    def __init__(self, assignment: PrepareAssignment, entry: Entry, context: Context) -> None:
        self.shards: list[PlannedShard] = []
        self.assets = 0
        self.skipped = 0
        self._assignment = assignment
        self._entry = entry
        self._context = context

    def take(self, found: Iterable[Address]) -> None:
        """Cut the stream into shards; at most `UPLOADS` are in flight, which also bounds memory."""
        counted = self._counted(found)
        pending: deque[Future[PlannedShard]] = deque()
        with ThreadPoolExecutor(UPLOADS, thread_name_prefix="upload") as pool:
            number = 0
            while addresses := list(islice(counted, self._assignment.shard_assets)):
                if len(pending) == UPLOADS:
                    self.shards.append(pending.popleft().result())
                pending.append(pool.submit(self._store, number, addresses))
                number += 1
            self.shards += [future.result() for future in pending]
        self._report()

    def _counted(self, found: Iterable[Address]) -> Iterator[Address]:
        """Everything but the empty folder markers of the console, as long as the request may hold it."""
        listed = self._assignment.manifest_uri is None and self._assignment.inline_keys_uri is None
        for address in found:
            if listed and address.size == 0 and address.key.endswith(b"/"):
                self.skipped += 1
                continue
            self.assets += 1
            if self.assets > self._assignment.max_assets:
                raise ConfigError(
                    f"more than {self._assignment.max_assets} assets under {sources.describe(self._assignment)}: "
                    "split the request or have the limit raised"
                )
            if self.assets % _PROGRESS_ASSETS == 0:
                self._report()
                if self._context.stop.is_set():
                    raise Interrupted("stopped while listing")
            yield address

    def _report(self) -> None:
        self._context.report.update(Figures(assets=self.assets))

    def _store(self, number: int, addresses: list[Address]) -> PlannedShard:
        assignment = self._assignment
        body = shardfile.write(assignment.source_bucket, addresses)
        key = layout.shard_key(assignment.request_id, self._entry.attempt_id, number)
        client, bucket = self._context.s3, assignment.control_bucket
        patiently(
            lambda: client.put_object(Bucket=bucket, Key=key, Body=body),
            self._context.stop,
            f"write s3://{bucket}/{key}",
        )
        return PlannedShard(
            shard=number,
            key=key,
            sha256=hashlib.sha256(body).hexdigest(),
            assets=len(addresses),
            bytes=sum(address.size for address in addresses),
            chunks=-(-len(addresses) // assignment.chunk_assets),
            first_key_hex=addresses[0].key.hex(),
            last_key_hex=addresses[-1].key.hex(),
        )


def _published(assignment: PrepareAssignment, context: Context) -> bool:
    """Whether a plan of this request exists, whoever made it."""
    key = layout.plan_key(assignment.request_id)
    try:
        patiently(
            lambda: context.s3.head_object(Bucket=assignment.control_bucket, Key=key), context.stop, f"look for {key}"
        )
    except Refused as refused:
        # Without s3:ListBucket S3 answers 403 for what does not exist; writing will show whether access is missing.
        if refused.status in (403, 404):
            return False
        raise
    return True


def _publish(
    assignment: PrepareAssignment, entry: Entry, context: Context, packed: _Packed, preprocessing_digest: str
) -> None:
    plan = Plan(
        request_id=assignment.request_id,
        attempt_id=entry.attempt_id,
        bucket=assignment.source_bucket,
        model=assignment.model,
        preprocessing_digest=preprocessing_digest,
        chunk_assets=assignment.chunk_assets,
        assets=packed.assets,
        bytes=sum(shard.bytes for shard in packed.shards),
        skipped=packed.skipped,
        shards=packed.shards,
    )
    refuse_if_void(context)
    key = layout.plan_key(assignment.request_id)
    body = put_once(context.s3, assignment.control_bucket, key, plan.to_bytes(), context.stop)
    winner = Plan.model_validate_json(body).attempt_id
    log.info("plan published", extra={"assets": plan.assets, "shards": len(plan.shards), "by_attempt": winner})
