"""Dispatch (leader): due shards become jobs on the best queue with room, and job rows become Batch jobs.

A shard that ran before may have been committed meanwhile by a worker nobody heard: its marker is read before any
new attempt is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from controller.core import cycle, transitions
from controller.core.decisions import KeepQueue, StartAttempts, StopUnstarted
from controller.core.jobs import infer_job
from controller.core.records import Attempt, QueueLoad, Request, Shard
from controller.loops.context import RATE_WINDOW, Context, log
from controller.loops.leader import Leadership
from controller.loops.runner import Outcome
from controller.loops.settle import finish_found, read_marker
from controller.loops.submit import Submission
from controller.ports import Transaction
from schema.states import AttemptState, RequestState


class Dispatch:
    name = "dispatch"

    def __init__(self, context: Context, leadership: Leadership) -> None:
        self._context = context
        self._leadership = leadership
        self._submission = Submission(context, leadership)
        self._busy_at: dict[str, datetime] = {}
        self._speeds: dict[str, Mapping[str, float]] = {}
        self._speeds_until: dict[str, float] = {}

    async def step(self, now: datetime) -> Outcome:
        if await self._leadership.hold(now) is None:
            return Outcome.IDLE
        situation = await self._gather()
        decisions = cycle.plan(situation, now)
        started = 0
        for decision in decisions:
            if isinstance(decision, StartAttempts):
                left = await self._without_commits(decision.shards, situation.requests, again=False)
                if left:
                    started += await self._start_or_skip(replace(decision, shards=tuple(left)), now)
            else:
                await self._tend_queue(decision)
        moved = await self._submission.submit_intended(now)
        return Outcome.BUSY if started or moved else Outcome.IDLE

    async def _gather(self) -> cycle.Situation:
        context = self._context
        async with context.store.transaction() as tx:
            shards = await tx.shards.due(context.clock.now(), context.settings.loops.page)
            waiting = await tx.attempts.waiting(context.settings.loops.page)
            names = {shard.request_id for shard in shards} | {held.request_id for held in waiting}
            requests = await tx.requests.of_ids(names)
            states = await tx.queues.all()
            freeze = await tx.queues.freeze()
            loads = {load.name: self._remember_busy(load) for load in await tx.attempts.loads()}
        return cycle.Situation(
            queues=context.queue_specs,
            states=states,
            loads=loads,
            shards=await self._without_commits(shards, requests, again=True),
            requests=requests,
            limits=context.placement_limits,
            waiting=waiting,
            frozen=freeze.frozen,
            page_full=len(shards) == context.settings.loops.page,
            needs_mib=context.settings.placement.model_gpu_memory_mib,
            quota_vcpus=context.settings.placement.quota_vcpus,
            speeds=await self._measured({request.model for request in requests.values()}),
            array_max=context.settings.placement.array_max,
            jitter=context.entropy.uniform(),
        )

    async def _measured(self, models: set[str]) -> Mapping[str, Mapping[str, float]]:
        """Speeds by model and queue; they change slowly and read many rows, so they are kept for a while."""
        context = self._context
        now, keep = context.clock.monotonic(), context.settings.placement.speed_seconds
        for model in sorted(models):
            if now < self._speeds_until.get(model, now):
                continue
            async with context.store.transaction() as tx:
                self._speeds[model] = await tx.measures.assets_per_second(model, context.clock.now() - RATE_WINDOW)
            self._speeds_until[model] = now + keep
        return {model: self._speeds[model] for model in models}

    def _remember_busy(self, load: QueueLoad) -> QueueLoad:
        """A queue whose last attempt has just ended is not dry: the next one needs a moment to start."""
        if load.running:
            self._busy_at[load.name] = self._context.clock.now()
        return replace(load, last_busy_at=self._busy_at.get(load.name))

    async def _without_commits(
        self, shards: Sequence[Shard], requests: Mapping[str, Request], *, again: bool
    ) -> Sequence[Shard]:
        """Finish those that have a valid marker already; the others are left to place.

        `again`: look at those that ran before, or else at those that never did. The latter only once they are chosen:
        they have a marker only if the database was restored to a time before their commit.
        """
        context = self._context
        looked_at = [shard for shard in shards if (shard.last_outcome is not None) is again]
        markers = await asyncio.gather(*(read_marker(context, requests[s.request_id], s) for s in looked_at))
        finished: set[tuple[str, int]] = set()
        for shard, marker in zip(looked_at, markers, strict=True):
            if marker is None:
                continue
            async with context.store.transaction() as tx:
                await finish_found(context, tx, shard, marker, context.clock.now())
            finished.add((shard.request_id, shard.shard))
            context.recorder.count("commits_found")
        return [shard for shard in shards if (shard.request_id, shard.shard) not in finished]

    async def _start_or_skip(self, decision: StartAttempts, now: datetime) -> int:
        try:
            return await self._start(decision, now)
        except _Overtaken:
            self._context.recorder.count("stale_writes", table="shards")
            return 0

    async def _start(self, decision: StartAttempts, now: datetime) -> int:
        """Write the job, its attempts and the shards' new state; all or nothing."""
        context = self._context
        async with context.store.transaction() as tx:
            await self._leadership.fence(tx)
            request = await tx.requests.get(decision.request_id)
            if request is None or request.state is not RequestState.RUNNING or request.paused:
                return 0
            histories = [await self._history(tx, shard) for shard in decision.shards]
            made = infer_job(
                request,
                decision.queue,
                context.identity(len(decision.shards)),
                context.terms,
                decision.shards,
                histories,
                now,
            )
            await tx.jobs.insert(made.job)
            for shard, attempt in zip(decision.shards, made.attempts, strict=True):
                if not await tx.shards.apply(transitions.assigned(shard, attempt, now)):
                    raise _Overtaken
            await tx.attempts.insert_many(made.attempts)
        log.info(
            "job_written",
            job_id=made.job.id,
            request_id=request.id,
            queue=decision.queue,
            size=made.job.size,
            shards=[shard.shard for shard in decision.shards][:20],
        )
        return len(decision.shards)

    async def _history(self, tx: Transaction, shard: Shard) -> Sequence[Attempt]:
        if shard.last_outcome is None:
            return []
        attempts = await tx.attempts.of_shard(shard.request_id, shard.shard)
        return [a for a in attempts if a.generation == shard.generation and a.state is AttemptState.ENDED]

    async def _tend_queue(self, decision: StopUnstarted | KeepQueue) -> None:
        context = self._context
        async with context.store.transaction() as tx:
            await self._leadership.fence(tx)
            if isinstance(decision, KeepQueue):
                await tx.queues.put(decision.state)
                log.warning("circuit", queue=decision.state.name, circuit=decision.state.circuit.value)
                context.recorder.count("circuit_changes", queue=decision.state.name, to=decision.state.circuit.value)
                return
            limit = min(decision.attempts or context.settings.loops.page, context.settings.loops.page)
            stopped = await tx.attempts.intend_stop_queue(decision.queue, decision.intent, limit, decision.request_id)
        if stopped:
            log.warning("falling_back", queue=decision.queue, attempts=stopped, intent=decision.intent.value)


class _Overtaken(Exception):
    """A shard moved between the page and the write; the transaction is rolled back, the next cycle sees it."""
