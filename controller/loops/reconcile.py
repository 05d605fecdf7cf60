"""Reconcile: looks at every live attempt at least every `check_seconds` (I7), stops what shall stop, finds orphans.

1. Ask Batch about the attempts that are due, and note what it shows or that it knows nothing of them.
2. Settle those that have ended, and those lost: misses *and* silence.
3. Ask Batch to stop what has a stop intent; success of the call proves nothing, the next look does.
4. Close jobs whose attempts have all ended.
5. Now and then: list our name prefix in every queue and stop what has no live job row (I6). A job whose very request
   has no row tells of a database restored to an earlier time: the request comes back from its object on S3.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from controller.core import transitions
from controller.core.facts import JobView
from controller.core.records import Attempt, Job
from controller.core.recovery import remembered, request_of
from controller.loops.batch_events import see
from controller.loops.context import JOB_NAME_PREFIX, Context, log
from controller.loops.runner import Outcome
from controller.loops.settle import settle
from controller.ports import PortError
from schema.layout import request_key
from schema.plan import AskedRequest
from schema.states import JobKind, JobState, StopIntent

#: Ids a DescribeJobs call takes.
PAGE = 100


class Reconcile:
    name = "reconcile"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._last_good_look: float | None = None
        self._next_orphan_scan = 0.0

    async def step(self, now: datetime) -> Outcome:
        context = self._context
        await self._restart_clocks_after_outage(now)
        async with context.store.transaction() as tx:
            due = await tx.attempts.claim_due(context.holder, now, context.claim_until(now), PAGE)
        await self._look(due, now)
        stopped = await self._stop(now)
        async with context.store.transaction() as tx:
            closed = await tx.jobs.close_finished(context.clock.now(), limit=context.settings.loops.page)
        await self._stop_orphans(now)
        return Outcome.BUSY if len(due) == PAGE or stopped or closed else Outcome.IDLE

    async def _restart_clocks_after_outage(self, now: datetime) -> None:
        """Silence that we could not have heard through is no evidence: `lost` gets a fresh clock."""
        context = self._context
        limit = context.settings.reconcile.lost_seconds
        monotonic = context.clock.monotonic()
        blind = self._last_good_look is None or monotonic - self._last_good_look > limit / 2
        if blind:
            async with context.store.transaction() as tx:
                renewed = await tx.attempts.hear_again(now - timedelta(seconds=limit / 2), now)
            if renewed:
                log.info("contact_clocks_restarted", attempts=renewed)
        self._last_good_look = self._last_good_look if self._last_good_look is not None else monotonic

    # --- 1, 2 ----------------------------------------------------------------------------------------------------

    async def _look(self, due: Sequence[Attempt], now: datetime) -> None:
        if not due:
            self._last_good_look = self._context.clock.monotonic()
            return
        context = self._context
        try:
            ids = await self._batch_ids(due)
            views = await context.batch.describe(sorted(set(ids.values()))) if ids else {}
            self._last_good_look = context.clock.monotonic()
            for attempt in due:
                await self._examine(attempt, views.get(ids.get(attempt.id, "")), attempt.id in ids, now)
        finally:
            later = now + timedelta(seconds=context.settings.reconcile.check_seconds)
            soon = now + timedelta(seconds=min(later.timestamp() - now.timestamp(), self._grace / 2))
            async with context.store.transaction() as tx:
                ending = [a.id for a in due if a.batch_ended_at is not None or a.stop_intent is not None]
                await tx.attempts.checked(ending, context.holder, soon)
                await tx.attempts.checked([a.id for a in due if a.id not in ending], context.holder, later)

    @property
    def _grace(self) -> float:
        return self._context.settings.reconcile.report_grace_seconds

    async def _batch_ids(self, due: Sequence[Attempt]) -> dict[str, str]:
        """Attempt id → the id to describe; attempts whose job has none yet are left out."""
        async with self._context.store.transaction() as tx:
            jobs = await tx.jobs.of_ids({attempt.job_id for attempt in due})
        found: dict[str, str] = {}
        for attempt in due:
            job = jobs.get(attempt.job_id)
            name = attempt.batch_job_id or (None if job is None else batch_id(job, attempt))
            if name is not None:
                found[attempt.id] = name
        return found

    async def _examine(self, attempt: Attempt, view: JobView | None, asked: bool, now: datetime) -> None:
        context = self._context
        current: Attempt | None = attempt
        if view is not None:
            await self._note_reason(attempt, view, now)
            current = await see(context, view, now) or attempt
        elif asked:
            async with context.store.transaction() as tx:
                await tx.attempts.apply(transitions.missed(attempt))
                current = await tx.attempts.get(attempt.id)
        if current is None:
            return
        rules = context.settings.reconcile
        ended = transitions.has_ended(current, now, rules.report_grace_seconds)
        if ended or (asked and transitions.is_lost(current, now, rules.lost_seconds, rules.lost_misses)):
            await settle(context, attempt.id)

    async def _note_reason(self, attempt: Attempt, view: JobView, now: datetime) -> None:
        """A reason on a waiting job is the queue's: Batch shows it only at the head."""
        if attempt.kind is not JobKind.INFER or view.status != "RUNNABLE" or not view.status_reason:
            return
        async with self._context.store.transaction() as tx:
            await tx.queues.note_blocked(view.queue, view.status_reason, now)

    # --- 3 -------------------------------------------------------------------------------------------------------

    async def _stop(self, now: datetime) -> bool:
        context = self._context
        again = now - timedelta(seconds=context.settings.reconcile.check_seconds)
        async with context.store.transaction() as tx:
            wanted = await tx.attempts.stops_wanted(now, again, limit=PAGE)
        ids = await self._batch_ids(wanted)
        for attempt in wanted:
            if attempt.id not in ids:
                continue
            # CancelJob cannot kill what has just started; that is the point of it when we fall back or pause.
            gentle = attempt.stop_intent in (StopIntent.FALL_BACK, StopIntent.PAUSE)
            call = context.batch.cancel if gentle else context.batch.terminate
            # Batch overwrites the reason it gave with ours, so ours repeats it.
            because = f" ({attempt.batch_status_reason})" if attempt.batch_status_reason else ""
            await call(ids[attempt.id], f"reembed: {attempt.stop_intent}{because}")
            context.recorder.count("stops_requested", intent=str(attempt.stop_intent))
            async with context.store.transaction() as tx:
                await tx.attempts.apply(transitions.stop_asked(attempt, now))
                await tx.attempts.checked([attempt.id], context.holder, now)
        return bool(ids)

    # --- 5 -------------------------------------------------------------------------------------------------------

    async def _stop_orphans(self, now: datetime) -> None:
        context = self._context
        if context.clock.monotonic() < self._next_orphan_scan:
            return
        queues = [*context.gpu_queues, context.settings.cpu.queue]
        try:
            for queue in queues:
                await self._scan(queue)
        except PortError as error:
            log.warning("orphan_scan_failed", error=str(error))
            context.recorder.count("orphan_scans", result="not_measured")
        else:
            context.recorder.count("orphan_scans", result="complete")
        self._next_orphan_scan = context.clock.monotonic() + context.settings.reconcile.orphan_seconds

    async def _scan(self, queue: str) -> None:
        context = self._context
        views = await context.batch.list_named(queue, JOB_NAME_PREFIX)
        await self._recover({request_of(view.name) for view in views})
        alive = [view for view in views if not view.terminal]
        async with context.store.transaction() as tx:
            known = await tx.jobs.known_names([view.name for view in alive])
        for view in alive:
            if is_orphan(known.get(view.name), view, context.clock.now(), context.settings.reconcile.lost_seconds):
                await context.batch.terminate(view.batch_job_id, "reembed: no live job row of this name")
                context.recorder.count("orphans_stopped", queue=queue)
                log.error("orphan_stopped", batch_job_id=view.batch_job_id, name=view.name, queue=queue)

    async def _recover(self, request_ids: set[str | None]) -> None:
        """Insert the requests that only Batch and S3 remember (I1); one that is known changes nothing."""
        context = self._context
        names = set(filter(None, request_ids))
        if not names:
            return
        async with context.store.transaction() as tx:
            known = await tx.requests.of_ids(names)
        for request_id in sorted(names - known.keys()):
            body = await context.objects.get(context.control(request_key(request_id)))
            if body is None:
                continue
            request = remembered(AskedRequest.model_validate_json(body), context.clock.now())
            async with context.store.transaction() as tx:
                if await tx.requests.insert(request):
                    log.warning("request_recovered", request_id=request.id, tenant=request.tenant)


def batch_id(job: Job, attempt: Attempt) -> str | None:
    """The id of an attempt's child, node or lone job."""
    if job.batch_job_id is None:
        return None
    if job.multi_node:
        return f"{job.batch_job_id}#{attempt.array_index}"
    return job.batch_job_id if job.size == 1 else f"{job.batch_job_id}:{attempt.array_index}"


def is_orphan(job: Job | None, view: JobView, now: datetime, grace_seconds: float) -> bool:
    """No row, a row that was given up, a twin of the one that the row adopted, or one that outlives its row.

    A worker reports its end a moment before Batch sees it, so a closed job's own child may go on for the grace.
    """
    if job is None:
        return True
    if job.state is JobState.INTENDED:
        return False
    if job.batch_job_id is None or job.batch_job_id != view.batch_job_id:
        return True
    return job.closed_at is not None and now - job.closed_at > timedelta(seconds=grace_seconds)
