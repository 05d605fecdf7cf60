"""Submission: job rows become Batch jobs, at most one each, although SubmitJob has no client token.

A fresh job: mark the call as started (fenced), put the assignment, call once. A job whose call was started and has
no id is ambiguous: its name is looked up and adopted (several of one name: the oldest stays, the rest are stopped).
Absent for longer than the grace, it is given up: the assignment is overwritten `void`, its attempts end
`superseded`, and its shards are pending again. A late job of that name ends itself, or is an orphan to reconcile.
"""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta

from controller.core import transitions
from controller.core.records import Attempt, Job, Request
from controller.loops.context import Context, log
from controller.loops.leader import Leadership
from controller.loops.settle import close_attempt
from controller.ports import Ambiguous, Refused, SubmitSpec, Throttled, Transaction
from controller.settings import GpuQueue
from schema.assignment import parse
from schema.layout import assignment_key
from schema.states import AttemptState, JobKind, RequestState, StopIntent

#: SubmitJob calls in flight at once; the adapter's rate budget sets the pace.
CONCURRENCY = 8


class Submission:
    """Used by the dispatch loop; the leader's alone."""

    def __init__(self, context: Context, leadership: Leadership) -> None:
        self._context = context
        self._leadership = leadership

    async def submit_intended(self, now: datetime) -> int:
        """Work through the job rows without a Batch id; the number that moved."""
        context = self._context
        async with context.store.transaction() as tx:
            jobs = await tx.jobs.intended(now, limit=context.settings.loops.page)
        moved = 0
        for start in range(0, len(jobs), CONCURRENCY):
            results = await asyncio.gather(*(self._drive(job) for job in jobs[start : start + CONCURRENCY]))
            moved += sum(results)
        return moved

    async def _drive(self, job: Job) -> bool:
        context = self._context
        now = context.clock.now()
        if job.submit_started_at is not None:
            return await self._look_up(job, now)
        async with context.store.transaction() as tx:
            request = await tx.requests.get(job.request_id)
        assert request is not None
        if request.state is RequestState.CANCELLING:
            return await self._withdraw(job, "request cancelled before submission", StopIntent.CANCEL, now)
        if request.paused:
            return False
        return await self._submit(job, request, now)

    async def _submit(self, job: Job, request: Request, now: datetime) -> bool:
        context = self._context
        location = context.control(assignment_key(job.id))
        async with context.store.transaction() as tx:
            lease = await self._leadership.fence(tx)
            if not await tx.jobs.apply(transitions.submit_started(job, now, lease.epoch)):
                return False
        await context.objects.put(location, parse_and_dump(job))
        if await self._is_frozen():
            return await self._put_off(job)
        self._leadership.check()
        try:
            batch_job_id = await context.batch.submit(self._spec(job, request, location.uri))
        except Throttled:
            await self._not_started(job)
            return False
        except Ambiguous as error:
            context.recorder.count("submissions", kind=job.kind.value, result="ambiguous")
            log.warning("submit_ambiguous", job_id=job.id, name=job.name, error=str(error))
            return False
        except Refused as error:
            context.recorder.count("submissions", kind=job.kind.value, result="refused")
            log.error("submit_refused", job_id=job.id, queue=job.queue, error=str(error))
            return await self._withdraw(job, f"MISCONFIGURATION: SubmitJob refused: {error.message}", None, now)
        await self._record(job, batch_job_id, adopted=False)
        return True

    def _spec(self, job: Job, request: Request, uri: str) -> SubmitSpec:
        settings = self._context.settings
        gpu = self._context.gpu_queues.get(job.queue)
        if job.kind is JobKind.PREPARE:
            definition = settings.cpu.prepare_definition
        elif job.kind is JobKind.INDEX:
            definition = settings.cpu.index_definition
        else:
            assert gpu is not None, f"queue {job.queue} is not in the settings any more"
            definition = (gpu.multi_node_job_definition or "") if job.multi_node else gpu.job_definition
        return SubmitSpec(
            name=job.name,
            queue=job.queue,
            job_definition=definition,
            size=job.size,
            assignment_uri=uri,
            multi_node=job.multi_node,
            timeout_seconds=settings.work.attempt_timeout_seconds,
            memory_mib=_memory_mib(job, gpu) if gpu and not job.multi_node else None,
            tags={
                "reembed:request": request.id,
                "reembed:job": job.id,
                "reembed:kind": job.kind.value,
                "reembed:tenant": request.tenant,
                "reembed:model": request.model,
            },
        )

    async def _put_off(self, job: Job) -> bool:
        await self._not_started(job)
        return False

    async def _is_frozen(self) -> bool:
        """Read just before each call, so that a freeze holds in every replica at once."""
        async with self._context.store.transaction() as tx:
            return (await tx.queues.freeze()).frozen

    async def _record(self, job: Job, batch_job_id: str, *, adopted: bool) -> None:
        """The id is a fact whoever leads now, so this write is guarded by the job's state alone."""
        context = self._context
        async with context.store.transaction() as tx:
            now = context.clock.now()
            if not await tx.jobs.apply(transitions.submitted(job, batch_job_id, now)):
                return
            for attempt in await tx.attempts.of_job(job.id):
                await tx.attempts.apply(transitions.queued(attempt, now))
        result = "adopted" if adopted else "submitted"
        context.recorder.count("submissions", kind=job.kind.value, result=result)
        log.info("job_" + result, job_id=job.id, batch_job_id=batch_job_id, queue=job.queue, size=job.size)

    async def _not_started(self, job: Job) -> None:
        async with self._context.store.transaction() as tx:
            await self._leadership.fence(tx)
            await tx.jobs.apply(transitions.submit_withdrawn(job))

    async def _look_up(self, job: Job, now: datetime) -> bool:
        context = self._context
        found = await context.batch.find(job.queue, job.name)
        if found:
            self._leadership.check()
            oldest, *others = sorted(found, key=lambda view: (view.created_at or now, view.batch_job_id))
            for duplicate in others:
                await context.batch.terminate(duplicate.batch_job_id, f"duplicate of {oldest.batch_job_id}")
                context.recorder.count("duplicates_stopped")
                log.warning("duplicate_stopped", job_id=job.id, batch_job_id=duplicate.batch_job_id)
            await self._record(job, oldest.batch_job_id, adopted=True)
            return True
        assert job.submit_started_at is not None
        grace = timedelta(seconds=context.settings.reconcile.lookup_grace_seconds)
        if now - job.submit_started_at < grace:
            return False
        context.recorder.count("submissions", kind=job.kind.value, result="absent")
        return await self._withdraw(job, "absent from Batch after SubmitJob", StopIntent.SUPERSEDE, now)

    async def _withdraw(self, job: Job, reason: str, intent: StopIntent | None, now: datetime) -> bool:
        """Close a job that will never run under its name, and free its shards. `void` first: a late twin obeys it."""
        context = self._context
        if job.submit_started_at is not None:
            void = parse(parse_and_dump(job)).model_copy(update={"void": True})
            await context.objects.put(context.control(assignment_key(job.id)), void.to_bytes())
        async with context.store.transaction() as tx:
            await self._leadership.fence(tx)
            if not await tx.jobs.apply(transitions.never_submitted(job, reason, now)):
                return False
            for attempt in await tx.attempts.of_job(job.id):
                # A worker of the job that nobody found may have reported its end already.
                if attempt.state is not AttemptState.ENDED:
                    await self._end(tx, attempt, reason, intent, now)
        log.warning("job_withdrawn", job_id=job.id, reason=reason)
        return True

    async def _end(
        self, tx: Transaction, attempt: Attempt, reason: str, intent: StopIntent | None, now: datetime
    ) -> None:
        ended = transitions.never_ran(attempt, reason, intent)
        await close_attempt(self._context, tx, ended, marker=None, done=False, now=now)


def _memory_mib(job: Job, gpu: GpuQueue) -> int | None:
    """Children of an array share their overrides, so one that needs the large memory gets it for all."""
    large = any(entry.get("large_memory") for entry in job.assignment["entries"])
    return (large and gpu.large_memory_mib) or gpu.memory_mib


def parse_and_dump(job: Job) -> bytes:
    """The assignment as the worker will read it; our own bug if the row does not hold a valid one."""
    return parse(json.dumps(dict(job.assignment)).encode()).to_bytes()
