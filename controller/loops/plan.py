"""Plan: a request gets its preparation job; a published plan.json becomes shard rows, idempotently."""

from __future__ import annotations

import json
from datetime import datetime

from controller.core import transitions
from controller.core.jobs import prepare_job
from controller.core.progress import forecast
from controller.core.records import Request, Shard
from controller.core.recovery import asked
from controller.loops.context import RATE_WINDOW, Context, log
from controller.loops.events import announce
from controller.loops.runner import Outcome
from controller.ports import Transaction
from schema.layout import Location, inline_keys_key, output_digest, plan_key, request_key
from schema.messages import MessageType
from schema.plan import Plan
from schema.states import AttemptState, JobKind, RequestState, ShardState

#: Shard rows a transaction; a plan of a million shards is a thousand short transactions.
ROWS = 1000


class PlanLoop:
    name = "plan"

    def __init__(self, context: Context) -> None:
        self._context = context

    async def step(self, now: datetime) -> Outcome:
        context = self._context
        async with context.store.transaction() as tx:
            requests = await tx.requests.claim(
                [RequestState.ACCEPTED, RequestState.PREPARING], context.holder, now, context.claim_until(now), limit=20
            )
        moved = 0
        for request in requests:
            try:
                moved += await self._advance(request, context.clock.now())
            finally:
                async with context.store.transaction() as tx:
                    await tx.requests.release([request.id], context.holder)
        return Outcome.BUSY if moved else Outcome.IDLE

    async def _advance(self, request: Request, now: datetime) -> bool:
        if request.state is RequestState.ACCEPTED:
            return await self._start(request, now)
        body = await self._context.objects.get(self._context.control(plan_key(request.id)))
        if body is not None:
            return await self._publish(request, Plan.model_validate_json(body), now)
        return await self._retry(request, now)

    async def _start(self, request: Request, now: datetime) -> bool:
        """accepted → preparing, with the first preparation job."""
        context = self._context
        source = request.body["source"]
        if source["kind"] == "keys":
            # By reference: neither the environment nor the job row carries the keys.
            location = context.control(inline_keys_key(request.id))
            await context.objects.put(location, json.dumps(source["keys"]).encode())
        await context.objects.put(context.control(request_key(request.id)), asked(request).to_bytes())
        async with context.store.transaction() as tx:
            if not await tx.requests.apply(transitions.moved(request, RequestState.PREPARING, now)):
                return False
            await self._write_job(tx, request, now)
        return True

    async def _write_job(self, tx: Transaction, request: Request, now: datetime) -> None:
        context = self._context
        work = context.settings.work
        sizes = (work.shard_assets, work.chunk_assets, work.max_assets)
        made = prepare_job(request, context.settings.cpu.queue, context.identity(1), context.terms, sizes, now)
        await tx.jobs.insert(made.job)
        await tx.attempts.insert_many(made.attempts)

    async def _retry(self, request: Request, now: datetime) -> bool:
        """No plan yet: wait for the running job, start another when its back-off is over, or give up."""
        context = self._context
        async with context.store.transaction() as tx:
            if not await self._still_preparing(tx, request):
                return False
            every = await tx.attempts.of_kind(request.id, JobKind.PREPARE)
            history = transitions.since_reopened(request, every)
            if any(attempt.state is not AttemptState.ENDED for attempt in every):
                return False
            reason = transitions.give_up_reason(JobKind.PREPARE, history, now, context.retry_limits)
            if reason is not None:
                if await tx.requests.apply(transitions.moved(request, RequestState.ATTENTION, now, reason)):
                    await announce(context, tx, request, MessageType.STATUS_ATTENTION, now, reason=reason)
                log.error("preparation_gave_up", request_id=request.id, reason=reason)
                return True
            if now < transitions.retry_at(history, now, context.retry_limits):
                return False
            await self._write_job(tx, request, now)
        return True

    async def _still_preparing(self, tx: Transaction, request: Request) -> bool:
        """Read again, and locked: what is written beside a cancellation that has counted already would outlive it."""
        current = await tx.requests.get(request.id, lock=True)
        return current is not None and current.state is RequestState.PREPARING

    async def _publish(self, request: Request, plan: Plan, now: datetime) -> bool:
        """preparing → running. Rows first, in short transactions; the state last."""
        context = self._context
        digest = output_digest(
            request.id,
            plan.digest,
            plan.model,
            plan.preprocessing_digest,
            request.body["output"].get("dtype", "float16"),
        )
        output = Location.parse(request.body["output"]["uri"]).join(digest + "/")
        rows = [
            Shard(
                request_id=request.id,
                shard=planned.shard,
                state=ShardState.PENDING,
                generation=1,
                eligible_at=now,
                updated_at=now,
                key=planned.key,
                sha256=planned.sha256,
                assets=planned.assets,
                bytes=planned.bytes,
                chunks=planned.chunks,
            )
            for planned in plan.shards
        ]
        for start in range(0, len(rows), ROWS):
            async with context.store.transaction() as tx:
                if not await self._still_preparing(tx, request):
                    return False
                await tx.shards.insert_many(rows[start : start + ROWS])
        change = transitions.moved(
            request,
            RequestState.RUNNING,
            now,
            plan_digest=plan.digest,
            preprocessing_digest=plan.preprocessing_digest,
            output_uri=output.uri,
            chunk_assets=plan.chunk_assets,
            assets=plan.assets,
            bytes=plan.bytes,
            shards=len(rows),
        )
        async with context.store.transaction() as tx:
            if not await tx.requests.apply(change):
                return False
            await announce(
                context,
                tx,
                request,
                MessageType.STATUS_PLANNED,
                now,
                assets=plan.assets,
                bytes=plan.bytes,
                shards=len(rows),
                **await self._forecast(tx, request, plan, now),
            )
        log.info("request_planned", request_id=request.id, assets=plan.assets, shards=len(rows))
        return True

    async def _forecast(self, tx: Transaction, request: Request, plan: Plan, now: datetime) -> dict[str, float]:
        """Time and cost from rates measured with this model before; nothing when there are none."""
        context = self._context
        rates = await tx.measures.assets_per_second(request.model, now - RATE_WINDOW)
        return forecast(plan.assets, len(plan.shards), rates, context.queue_specs)
