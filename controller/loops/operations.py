"""Operations (leader): what operators ordered, applied in bounded batches, each with an audit row.

A requeue opens a new generation of the failed shards it matches; what has moved on meanwhile is counted as skipped.
"""

from __future__ import annotations

from datetime import datetime

from controller.core import transitions
from controller.core.records import Operation, OperationKind, Request, Shard
from controller.loops.context import Context, log
from controller.loops.events import announce
from controller.loops.finish import final_figures
from controller.loops.leader import Leadership
from controller.loops.runner import Outcome as Step
from controller.ports import Transaction
from schema.messages import MessageType
from schema.states import Outcome, RequestState, ShardState


class Operations:
    name = "operations"

    def __init__(self, context: Context, leadership: Leadership) -> None:
        self._context = context
        self._leadership = leadership

    async def step(self, now: datetime) -> Step:
        context = self._context
        if await self._leadership.hold(now) is None:
            return Step.IDLE
        async with context.store.transaction() as tx:
            orders = await tx.operations.pending(limit=10)
        for order in orders:
            async with context.store.transaction() as tx:
                await self._leadership.fence(tx)
                await self._carry_out(tx, order, context.clock.now())
        return Step.BUSY if orders else Step.IDLE

    async def _carry_out(self, tx: Transaction, order: Operation, now: datetime) -> None:
        # Locked: what finishes a request has either seen the shards that are pending again, or waits and will.
        request = await tx.requests.get(order.request_id, lock=True)
        assert request is not None
        if order.kind is OperationKind.REQUEUE_SHARDS:
            moved, skipped = await self._requeue(tx, order, request, now)
        else:
            moved = int(await self._move_request(tx, order, request, now))
            skipped = 1 - moved
        state = "done" if moved or not skipped else "refused"
        await tx.operations.finish(order.id, state=state, moved=moved, skipped=skipped, now=now)
        await tx.operations.audit(
            id=self._context.entropy.new_id("u"),
            at=now,
            actor=order.actor,
            action=order.kind.value,
            target=request.id,
            reason=order.reason,
            detail={"operation": order.id, "selector": dict(order.selector), "moved": moved, "skipped": skipped},
        )
        log.warning("operation", kind=order.kind.value, request_id=request.id, actor=order.actor, moved=moved)

    async def _requeue(self, tx: Transaction, order: Operation, request: Request, now: datetime) -> tuple[int, int]:
        reopened = request.state in (RequestState.ATTENTION, RequestState.FAILED, RequestState.RUNNING)
        if not reopened:
            return 0, 1
        if request.output_uri is None:
            # Nothing was planned: the only thing to do again is the preparation.
            again = request.state is RequestState.ATTENTION
            return (int(await self._prepare_again(tx, request, now)), 0) if again else (0, 1)
        shards = await self._selected(tx, order, request)
        if not shards and request.state is RequestState.ATTENTION:
            # No shard is at fault: the index or the manifest is, and finishing takes them up again.
            return int(await tx.requests.apply(transitions.moved(request, RequestState.RUNNING, now))), 0
        results = [await tx.shards.apply(transitions.requeued(shard, now)) for shard in shards]
        moved = sum(results)
        if moved and request.state is not RequestState.RUNNING:
            await tx.requests.apply(transitions.moved(request, RequestState.RUNNING, now))
        return moved, len(results) - moved

    async def _prepare_again(self, tx: Transaction, request: Request, now: datetime) -> bool:
        return await tx.requests.apply(transitions.moved(request, RequestState.PREPARING, now))

    async def _selected(self, tx: Transaction, order: Operation, request: Request) -> list[Shard]:
        chosen = order.selector.get("shards")
        if chosen:
            found = [await tx.shards.get(request.id, number) for number in chosen]
            return [shard for shard in found if shard is not None]
        outcome = order.selector.get("outcome")
        return list(
            await tx.shards.search(
                request.id,
                states=[ShardState.FAILED],
                outcome=Outcome(outcome) if outcome else None,
                after=-1,
                limit=request.shards,
            )
        )

    async def _move_request(self, tx: Transaction, order: Operation, request: Request, now: datetime) -> bool:
        if order.kind is OperationKind.CANCEL_REQUEST:
            change = transitions.cancel_asked(request, order.reason, now)
            return change is not None and await tx.requests.apply(change)
        if order.kind is OperationKind.RESUME_REQUEST:
            return request.paused and await tx.requests.apply(transitions.resumed(request, now))
        if request.state is not RequestState.ATTENTION:
            return False
        if order.kind is OperationKind.ACCEPT_FAILURES:
            if request.output_uri is None:
                return False
            change = transitions.moved(request, RequestState.FINISHING, now, accept_failures=True)
            return await tx.requests.apply(change)
        if not await tx.requests.apply(transitions.moved(request, RequestState.FAILED, now, order.reason)):
            return False
        figures = await final_figures(self._context, tx, request, now)
        await announce(self._context, tx, request, MessageType.STATUS_FAILED, now, **figures, reason=order.reason)
        return True
