"""Every metric of the controller, by Prometheus' rules: base units, counters end in `_total`, no id is ever a label.

Counters of this replica start at 0 with its process. What only the database knows (rows by state, the totals that
worker reports add up to) is exported by the leader alone, from the snapshot that its tend loop publishes; a
replica that does not lead, or whose snapshot is old, exports nothing for them: not measured is not 0.

`Metrics` is the `Recorder` of the ports. A name or label that is not in the tables below is a bug and raises KeyError.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from controller.core.records import TotalKey
from schema.messages import MessageType, RejectCode
from schema.states import AttemptState, JobKind, JobState, Outcome, RequestState, ShardState, StopIntent

PREFIX = "reembed_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: A snapshot older than this is not exported: the leader's tend loop hangs, and old truth is no truth.
SNAPSHOT_LIMIT_SECONDS = 300.0
STEP_BUCKETS_SECONDS = (0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 60.0)


@dataclass(frozen=True)
class Counted:
    """A counter that the loops name: its help text and labels. `known` lists a label's values, exported from 0 on."""

    help: str
    labels: tuple[str, ...] = ()
    known: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])


_STATUS_EVENTS = [kind.value for kind in MessageType if kind.value.startswith("status.")]

#: By the name that a loop counts under; exported as reembed_<name>_total.
COUNTERS: Mapping[str, Counted] = {
    "loop_steps": Counted("Steps of a loop by how they went: busy, idle, fenced, error or bug.", ("loop", "result")),
    "requests_received": Counted(
        "Messages read from the requests queue, by what admission made of them.",
        ("type",),
        {"type": ("submit", "cancel", "amend", "reject")},
    ),
    "messages_rejected": Counted(
        "Messages put on the reject queue, by code.", ("code",), {"code": [code.value for code in RejectCode]}
    ),
    "reports_received": Counted(
        "Worker reports by kind, or stale (changed nothing), or unreadable.",
        ("result",),
        {"result": ("started", "heartbeat", "ended", "stale", "unreadable")},
    ),
    "batch_events": Counted(
        "Batch events by use: seen, stale (unknown or overtaken), queue_blocked, ignored.",
        ("result",),
        {"result": ("seen", "stale", "queue_blocked", "ignored")},
    ),
    "stale_writes": Counted(
        "Guarded writes that matched no row: somebody else was first.", ("table",), {"table": ("attempts", "shards")}
    ),
    "submissions": Counted(
        "SubmitJob calls and look-ups by kind of job and result.",
        ("kind", "result"),
        {
            "kind": [kind.value for kind in JobKind],
            "result": ("submitted", "adopted", "ambiguous", "refused", "absent"),
        },
    ),
    "duplicates_stopped": Counted("Batch jobs that a repeated SubmitJob left behind, found and stopped."),
    "attempts_ended": Counted(
        "Attempts that this replica closed, by outcome class and Batch queue.",
        ("outcome", "queue"),
        {"outcome": [outcome.value for outcome in Outcome]},
    ),
    "commits_found": Counted("Shards found committed when they were about to run again."),
    "markers_invalid": Counted("Commit markers that do not add up or name objects that are not there."),
    "circuit_changes": Counted("Changes of a queue's capacity circuit.", ("queue", "to")),
    "stops_requested": Counted(
        "Attempts that Batch was asked to stop, by stored intent.",
        ("intent",),
        {"intent": [intent.value for intent in StopIntent]},
    ),
    "orphan_scans": Counted(
        "Scans for Batch jobs of ours without a row: complete, or not_measured.",
        ("result",),
        {"result": ("complete", "not_measured")},
    ),
    "orphans_stopped": Counted("Batch jobs of ours without a row, stopped.", ("queue",)),
    "status_events": Counted("Status events sent to upstream, by type.", ("type",), {"type": _STATUS_EVENTS}),
}

#: By the name that a loop counts under: metric, help text, label. Observed, not added.
DURATIONS: Mapping[str, tuple[str, str, str]] = {
    "loop_seconds": ("loop_step_seconds", "Duration of one step of a loop, its long poll included.", "loop")
}

#: Totals of the database by name: metric, help text, label for `TotalKey.label`.
TOTALS: Mapping[str, tuple[str, str, str]] = {
    "attempts": ("worker_attempts", "Ended attempts by outcome.", "outcome"),
    "assets": ("worker_assets", "Assets that attempts worked on, those of lost work included.", ""),
    "ok": ("worker_assets_ok", "Assets embedded.", ""),
    "bad": ("worker_assets_bad", "Assets that got a row without a vector.", ""),
    "bytes_fetched": ("worker_fetched_bytes", "Bytes read from the source bucket.", ""),
    "throttled": ("worker_throttled", "Answers 429 or 503 of the object store.", ""),
    "fetch_seconds": ("worker_fetch_seconds", "Time spent fetching, summed over processes.", ""),
    "decode_seconds": ("worker_decode_seconds", "Time spent decoding, summed over processes.", ""),
    "wait_seconds": ("worker_wait_seconds", "Time an engine waited for a batch.", ""),
    "compute_seconds": ("worker_compute_seconds", "Time an engine computed.", ""),
    "write_seconds": ("worker_write_seconds", "Time spent writing chunks.", ""),
    "chunks_done": ("worker_chunks_done", "Chunks written.", ""),
    "chunks_reused": ("worker_chunks_reused", "Chunks of an earlier attempt that were kept.", ""),
}

STATES: Mapping[str, type[StrEnum]] = {
    "request": RequestState,
    "shard": ShardState,
    "attempt": AttemptState,
    "job": JobState,
}


@dataclass(frozen=True)
class Snapshot:
    """What the leader last read; `at` in seconds since the epoch."""

    states: Mapping[tuple[str, str], int]
    totals: Mapping[TotalKey, float]
    at: float


class Metrics:
    """A registry of its own, so that tests and replicas in one process do not share counters."""

    def __init__(self, *, version: str = "", queues: Iterable[str] = (), now: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        self._now = now
        self._counters = {
            name: Counter(PREFIX + name, counted.help, counted.labels, registry=self.registry)
            for name, counted in COUNTERS.items()
        }
        self._durations = {
            name: Histogram(PREFIX + metric, text, (label,), buckets=STEP_BUCKETS_SECONDS, registry=self.registry)
            for name, (metric, text, label) in DURATIONS.items()
        }
        self._leader = Gauge(PREFIX + "leader", "1 while this replica leads.", registry=self.registry)
        info = Gauge(PREFIX + "build_info", "Always 1; the version is a label.", ("version",), registry=self.registry)
        info.labels(version=version).set(1)
        self._snapshot = _SnapshotCollector(now)
        self.registry.register(self._snapshot)
        self._start_from_zero(list(queues))

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        if name in self._durations:
            self._durations[name].labels(**labels).observe(amount)
            return
        counter = self._counters[name]
        if set(labels) != set(COUNTERS[name].labels):
            raise KeyError(f"metric {name} has the labels {COUNTERS[name].labels}, not {sorted(labels)}")
        (counter.labels(**labels) if labels else counter).inc(amount)

    def publish(self, states: Mapping[tuple[str, str], int], totals: Mapping[TotalKey, float]) -> None:
        self._leader.set(1)
        self._snapshot.latest = Snapshot(dict(states), dict(totals), self._now())

    def withdraw(self) -> None:
        self._leader.set(0)
        self._snapshot.latest = None

    def exposition(self) -> bytes:
        """The text format that Prometheus scrapes."""
        return generate_latest(self.registry)

    def _start_from_zero(self, queues: list[str]) -> None:
        """Export every series whose labels are known beforehand, so that `rate()` sees the first failure."""
        for name, counted in COUNTERS.items():
            known = {"queue": queues, **counted.known}
            if counted.labels and all(label in known for label in counted.labels):
                for values in product(*(known[label] for label in counted.labels)):
                    self._counters[name].labels(*values)


class _SnapshotCollector(Collector):
    """Turns the latest snapshot into metrics at scrape time; nothing while there is none."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.latest: Snapshot | None = None

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        snapshot = self.latest
        if snapshot is None or self._now() - snapshot.at > SNAPSHOT_LIMIT_SECONDS:
            return
        name, text = PREFIX + "snapshot_timestamp_seconds", "When the leader last read the figures of the database."
        yield GaugeMetricFamily(name, text, value=snapshot.at)
        for kind, states in STATES.items():
            gauge = GaugeMetricFamily(f"{PREFIX}{kind}s", f"Rows of {kind}s by state.", labels=["state"])
            for state in states:
                gauge.add_metric([state.value], snapshot.states.get((kind, state.value), 0))
            yield gauge
        for name, (metric, text, label) in TOTALS.items():
            labels = ["model", "queue", *([label] if label else [])]
            counter = CounterMetricFamily(PREFIX + metric, text, labels=labels)
            for key, value in sorted(snapshot.totals.items(), key=lambda item: repr(item[0])):
                if key.name == name:
                    counter.add_metric([key.model, key.queue, *([key.label] if label else [])], value)
            yield counter
