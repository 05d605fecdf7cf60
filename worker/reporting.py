"""What the worker tells the controller: started, heartbeats from a thread of its own, ended.

Reports carry cumulative figures, so the highest `seq` says all and a lost one loses nothing. A report that cannot
be sent never fails the work: the commit marker is the fact. Messages go over SQS; sending is the only thing this
module does with AWS.
"""

from __future__ import annotations

import logging
import random
import threading
import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from schema.assignment import Common, Entry
from schema.messages import MessageType, ReportKind, WorkerReport, encode
from schema.plan import Figures
from worker.context import Ending
from worker.settings import BatchIdentity

SEND_TRIES = 5
FIRST_PAUSE_SECONDS = 0.5
ERROR_CHARACTERS = 4000

log = logging.getLogger(__name__)


class Reporter:
    """Reports of one attempt. `update` is cheap and safe from any thread; the heartbeat thread does the sending."""

    def __init__(self, sqs: Any, assignment: Common, entry: Entry, batch: BatchIdentity) -> None:
        self._sqs = sqs
        self._assignment = assignment
        self._entry = entry
        self._batch = batch
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._seq = 0
        self._figures = Figures()
        self._open_chunks: list[int] = []
        self._chunks_left: int | None = None
        self._ending = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Send `started` and begin the heartbeats."""
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def update(
        self,
        figures: Figures | None = None,
        *,
        open_chunks: Iterable[int] | None = None,
        chunks_left: int | None = None,
    ) -> None:
        """What the next report says; None leaves a value as it is."""
        with self._lock:
            if figures is not None:
                self._figures = figures
            if open_chunks is not None:
                self._open_chunks = sorted(open_chunks)
            if chunks_left is not None:
                self._chunks_left = chunks_left

    @property
    def figures(self) -> Figures:
        with self._lock:
            return self._figures

    def nudge(self) -> None:
        """Let the next heartbeat come at once, for news that a sudden death must not take along: the open chunks.

        A death shortly after opening a chunk would otherwise leave nobody knowing which one it was.
        """
        self._wake.set()

    def end(self, ending: Ending) -> None:
        """Stop the heartbeats and send `ended`. Returns when it is sent or given up."""
        self._ending = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._send(ReportKind.ENDED, ending)

    def _run(self) -> None:
        self._send(ReportKind.STARTED)
        while not self._ending:
            self._wake.wait(self._assignment.heartbeat_seconds)
            self._wake.clear()
            if not self._ending:
                self._send(ReportKind.HEARTBEAT)

    def _send(self, kind: ReportKind, ending: Ending | None = None) -> None:
        try:
            with self._send_lock:  # keeps seq and the order of sending the same
                body = self._body(kind, ending)
                _with_retries(lambda: self._deliver(body), give_up=self._give_up(kind))
        except Exception:
            log.warning("report not sent", extra={"report": kind}, exc_info=True)

    def _give_up(self, kind: ReportKind) -> Callable[[], bool]:
        """A heartbeat is not worth keeping the end of the job waiting for."""
        return (lambda: False) if kind is ReportKind.ENDED else (lambda: self._ending)

    def _body(self, kind: ReportKind, ending: Ending | None) -> str:
        with self._lock:
            report = WorkerReport(
                attempt_id=self._entry.attempt_id,
                token=self._entry.token,
                kind=kind,
                seq=self._seq,
                batch_job_id=self._batch.job_id,
                queue=self._batch.queue,
                compute_environment=self._batch.compute_environment,
                request_id=self._assignment.request_id,
                shard=self._entry.shard,
                open_chunks=self._open_chunks,
                chunks_left=self._chunks_left,
                figures=self._figures,
                **_ending_fields(ending),
            )
            self._seq += 1
        return encode(
            MessageType.WORKER_REPORT,
            report,
            event_id=str(uuid.uuid4()),
            source=f"reembed/worker/{self._entry.attempt_id}",
            time=datetime.now(UTC),
        )

    def _deliver(self, body: str) -> None:
        ids = {"request_id": self._assignment.request_id, "attempt_id": self._entry.attempt_id}
        if self._entry.shard is not None:
            ids["shard"] = str(self._entry.shard)
        self._sqs.send_message(
            QueueUrl=self._assignment.report_queue_url,
            MessageBody=body,
            MessageAttributes={name: {"DataType": "String", "StringValue": value} for name, value in ids.items()},
        )


def _ending_fields(ending: Ending | None) -> dict[str, Any]:
    if ending is None:
        return {}
    return {
        "exit_code": ending.code,
        "error": ending.error[:ERROR_CHARACTERS] if ending.error else None,
        "poison": list(ending.poison),
        "retryable_rows": ending.retryable_rows,
        "loaded": dict(ending.loaded),
        "manifest_uri": ending.manifest_uri,
        "failures_uri": ending.failures_uri,
    }


def _with_retries(send: Callable[[], None], *, give_up: Callable[[], bool]) -> None:
    """Exponential pauses with full jitter: thousands of workers meet the same broken minute."""
    for attempt in range(SEND_TRIES):
        try:
            return send()
        except Exception:
            if attempt == SEND_TRIES - 1 or give_up():
                raise
        threading.Event().wait(random.uniform(0, FIRST_PAUSE_SECONDS * 2**attempt))
    return None
