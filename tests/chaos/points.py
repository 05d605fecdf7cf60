"""The named crash points: what the ports and the worker's protocols can be asked to do, each before and after.

Nothing here is a list of what the product does today: a new port, method or index operation is a new crash point by
itself, and `test_crash_points` fails until a scenario passes it. What a store method writes takes effect with its
transaction, so its sides are before and after that commit; every loop's commits are points of their own too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, get_type_hints

from controller import main, ports
from controller.loops.context import Context, Inboxes, Outboxes
from schema.messages import ReportKind
from schema.states import JobKind
from tests.chaos.firing import index_operations, methods

SIDES = ("before", "after")
#: Transactions outside of any loop: the API's, and the lease's release at shutdown.
NO_LOOP = "api"
#: Ports that reach no other process.
INWARD = {"clock", "entropy", "recorder"}
#: Methods of the store that write nothing: a crash beside them is the crash before or after the next write.
READS = {
    "requests": {"get", "of_ids", "in_states", "search"},
    "shards": {"get", "due", "counts", "unindexed", "succeeded", "search"},
    "attempts": {"get", "by_batch_job_id", "of_job", "of_shard", "of_kind", "live", "stops_wanted", "loads"},
    "jobs": {"get", "of_ids", "intended", "known_names", "live_of_request"},
    "leases": {"fence"},
    "queues": {"all", "freeze"},
    "events": {"of_request"},
    "totals": {"all"},
    "operations": {"get", "pending", "audit_of"},
}
#: Aggregates that never write.
ONLY_READ = {"measures"}
#: What a worker writes to S3, by the kind of job that writes it.
OBJECTS = {
    JobKind.PREPARE: ("shard", "plan"),
    JobKind.INFER: ("chunk", "marker"),
    JobKind.INDEX: ("failures", "manifest"),
}
#: Points that no run passes, and why.
NOT_REACHED = {
    "objects.put_new": "no loop of the controller creates an object that may be there already",
    "worker.index.drop_shard": "only for a shard that an operator accepted as a gap after it was loaded",
}


def direct_ports() -> Iterator[tuple[str, type]]:
    """Every port that takes effect at once, by its place in the context: `batch`, `inboxes.reports`, …"""
    for name, kind in get_type_hints(Context).items():
        if kind in (Inboxes, Outboxes):
            yield from (
                (f"{name}.{field.name}", get_type_hints(kind)[field.name]) for field in dataclasses.fields(kind)
            )
        elif getattr(kind, "__module__", None) == ports.__name__ and name not in INWARD and kind is not ports.Store:
            yield name, kind


def written(aggregate: str) -> list[str]:
    """The writing methods of one aggregate of the store."""
    if aggregate in ONLY_READ:
        return []
    protocol = get_type_hints(ports.Transaction)[aggregate]
    return [name for name in methods(protocol) if name not in READS[aggregate]]


def loop_names() -> list[str]:
    """Of every loop of a replica."""
    nothing: Any = SimpleNamespace()
    return [loop.name for loop in main.loops(nothing)]


def _controller() -> Iterator[str]:
    for port, protocol in direct_ports():
        yield from (f"{port}.{name}" for name in methods(protocol))
    for aggregate in get_type_hints(ports.Transaction):
        yield from (f"store.{aggregate}.{name}" for name in written(aggregate))
    yield from (f"store.commit.{name}" for name in [*loop_names(), NO_LOOP])
    yield "store.ping"


def _worker() -> Iterator[str]:
    yield "worker.assignment"
    for kind, objects in OBJECTS.items():
        yield from (f"worker.{kind}.{name}" for name in objects)
        yield from (f"worker.{kind}.report_{report}" for report in ReportKind)
    yield from (f"worker.index.{name}" for name in index_operations())


def controller_points() -> list[str]:
    return [f"{name}:{side}" for name in _controller() for side in SIDES if name not in NOT_REACHED]


def worker_points() -> list[str]:
    return [f"{name}:{side}" for name in _worker() for side in SIDES if name not in NOT_REACHED]


def not_reached() -> list[str]:
    """Those left out; an error if one of them is no point at all."""
    every = {*_controller(), *_worker()}
    assert every >= set(NOT_REACHED)
    return [f"{name}:{side}" for name in NOT_REACHED for side in SIDES]
