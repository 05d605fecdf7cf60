"""Why the main node of a multi-node job ends last: Batch stops all other nodes when it does.

So it waits until every other entry's shard is committed. A peer that ended without a commit writes nothing more; after
`peers_idle_seconds` without a new object of any of them the wait is over, and the controller retries their shards.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from schema import layout
from schema.assignment import Entry, InferAssignment
from schema.layout import Location
from worker.commit import read_marker
from worker.context import Context

POLL_SECONDS = 2.0

log = logging.getLogger(__name__)


def wait_for_peers(assignment: InferAssignment, entry: Entry, context: Context) -> None:
    """Returns at once on any node but the main one of a multi-node job."""
    batch = context.settings.batch
    if batch.node_index is None or batch.node_index != batch.main_node_index:
        return
    output = Location.parse(assignment.output_uri)
    waiting = [peer for peer in assignment.entries if peer.attempt_id != entry.attempt_id]
    seen: dict[int, int] = {}
    quiet_since = time.monotonic()
    while not context.stop.is_set():
        try:
            waiting = [peer for peer in waiting if not _committed(context.s3, output, peer)]
            if not waiting:
                return
            now_seen = {peer.shard or 0: _objects(context.s3, output, peer.shard or 0) for peer in waiting}
        except Exception as error:  # no news; the shard of this node has ended already
            log.warning("peers could not be looked at", extra={"error": str(error)[:300]})
            now_seen = seen
        if now_seen != seen:
            seen, quiet_since = now_seen, time.monotonic()
        if time.monotonic() - quiet_since > context.settings.peers_idle_seconds:
            log.warning(
                "peers gave no sign for too long", extra={"shards": sorted(peer.shard or 0 for peer in waiting)}
            )
            return
        context.stop.wait(POLL_SECONDS)


def _committed(s3: Any, output: Location, peer: Entry) -> bool:
    return read_marker(s3, output.join(layout.commit_key(peer.shard or 0, peer.generation))) is not None


def _objects(s3: Any, output: Location, shard: int) -> int:
    prefix = output.join(layout.chunk_prefix(shard))
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=prefix.bucket, Prefix=prefix.key)
    return sum(page.get("KeyCount", 0) for page in pages)
