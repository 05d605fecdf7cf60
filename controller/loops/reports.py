"""Reports: what workers say, from SQS. Each is recorded in one transaction that also adds its figures to the totals.

A report only changes the attempt whose token it carries; anything else is counted as stale and dropped. An `ended`
report is followed by settling, which reads the commit marker rather than the report.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import ValidationError

from controller.core import transitions
from controller.core.progress import figure_deltas
from controller.core.records import Attempt, TotalKey
from controller.core.wire import storable
from controller.loops.context import Context, log
from controller.loops.runner import Outcome
from controller.loops.settle import settle
from controller.ports import Delivery, Transaction, Unavailable
from schema.exit_codes import ExitCode
from schema.messages import Envelope, MessageType, ReportKind, WorkerReport
from schema.states import JobKind

#: A worker's report has a few thousand; with its longest error and a poisoned chunk still far below.
MOST_CHARACTERS = 256 * 1024


class Reports:
    name = "reports"

    def __init__(self, context: Context) -> None:
        self._context = context

    async def step(self, now: datetime) -> Outcome:
        context = self._context
        deliveries = await context.inboxes.reports.receive(limit=50, wait_seconds=context.settings.loops.poll_seconds)
        done: list[Delivery] = []
        for delivery in deliveries:
            report = parse(delivery.body)
            if report is None:
                context.recorder.count("reports_received", result="unreadable")
                log.warning("report_unreadable", body=delivery.body[:200])
                done.append(delivery)
                continue
            try:
                await self._take(report, context.clock.now())
            except Unavailable as error:
                log.warning("report_postponed", attempt_id=report.attempt_id, error=str(error))
                continue
            done.append(delivery)
        if done:
            await context.inboxes.reports.delete(done)
        return Outcome.BUSY if deliveries else Outcome.IDLE

    async def _take(self, report: WorkerReport, now: datetime) -> None:
        context = self._context
        async with context.store.transaction() as tx:
            # Locked: a report that loses a race against SubmitJob's answer would be taken for stale, and be gone.
            attempt = await tx.attempts.get(report.attempt_id, lock=True)
            heard = None if attempt is None else transitions.heard(attempt, report, now)
            fresh = heard is not None and await tx.attempts.apply(heard)
            if fresh:
                assert attempt is not None
                await self._add_up(tx, attempt, report, now)
        context.recorder.count("reports_received", result=report.kind.value if fresh else "stale")
        if report.kind is not ReportKind.ENDED or attempt is None:
            return
        # Also for a stale one: a commit is a fact about the shard, and settling only ever closes a live attempt.
        if report.token == attempt.token:
            await settle(context, attempt.id)

    async def _add_up(self, tx: Transaction, attempt: Attempt, report: WorkerReport, now: datetime) -> None:
        deltas = figure_deltas(attempt.figures, report.figures) if attempt.kind is JobKind.INFER else {}
        indexed = attempt.kind is JobKind.INDEX and report.exit_code is ExitCode.OK
        if not deltas and not indexed:
            return
        request = await tx.requests.get(attempt.request_id)
        assert request is not None
        if deltas:
            keys = {TotalKey(name=n, model=request.model, queue=attempt.queue): d for n, d in deltas.items()}
            await tx.totals.add(keys)
        if indexed:
            await tx.shards.mark_indexed(request.id, report.loaded, now)
            if report.manifest_uri is not None:
                await tx.requests.apply(transitions.finalised(request, report.manifest_uri, report.failures_uri, now))


def parse(body: str) -> WorkerReport | None:
    """The report in an SQS body; None for anything else, and for what no row can hold: such a report would come again
    for ever."""
    if len(body) > MOST_CHARACTERS:
        return None
    try:
        envelope = Envelope.model_validate_json(body)
        if envelope.type != MessageType.WORKER_REPORT:
            return None
        report = WorkerReport.model_validate(envelope.data)
    except (ValidationError, UnicodeError):
        return None
    return report if storable(report.model_dump()) else None
