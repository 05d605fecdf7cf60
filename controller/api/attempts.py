"""Attempts with their explanation, operations, and the GPU queues."""

from __future__ import annotations

from fastapi import APIRouter

from controller.api.explain import explain
from controller.api.problems import not_found
from controller.api.site import OfSite
from controller.api.views import AttemptView, Explanation, OperationView, QueueView
from controller.core.records import Attempt, QueueLoad, QueueState
from controller.ports import Transaction

router = APIRouter(prefix="/api/v1")


async def _find(tx: Transaction, attempt_id: str) -> Attempt:
    attempt = await tx.attempts.get(attempt_id)
    if attempt is None:
        raise not_found("attempt", attempt_id, "show the shard to see its attempts")
    return attempt


@router.get("/attempts/{attempt_id}", tags=["attempts"], summary="One attempt")
async def show_attempt(attempt_id: str, site: OfSite) -> AttemptView:
    async with site.store.transaction() as tx:
        return AttemptView.model_validate(await _find(tx, attempt_id))


@router.get("/attempts/{attempt_id}/explain", tags=["attempts"], summary="The chain of facts and reasons")
async def explain_attempt(attempt_id: str, site: OfSite) -> Explanation:
    async with site.store.transaction() as tx:
        attempt = await _find(tx, attempt_id)
        job = await tx.jobs.get(attempt.job_id)
        shard = None if attempt.shard is None else await tx.shards.get(attempt.request_id, attempt.shard)
    return Explanation(attempt=AttemptView.model_validate(attempt), facts=explain(attempt, job, shard))


@router.get("/operations/{operation_id}", tags=["operations"], summary="An operator's order and how far it has come")
async def show_operation(operation_id: str, site: OfSite) -> OperationView:
    async with site.store.transaction() as tx:
        operation = await tx.operations.get(operation_id)
    if operation is None:
        raise not_found("operation", operation_id, "ids are in the answers of the orders")
    return OperationView.model_validate(operation)


@router.get("/queues", tags=["queues"], summary="GPU queues in order of preference, with circuit and load")
async def list_queues(site: OfSite) -> list[QueueView]:
    async with site.store.transaction() as tx:
        states = await tx.queues.all()
        loads = {load.name: load for load in await tx.attempts.loads()}
    views = []
    for gpu in site.deployment.gpu_queues:
        state = states.get(gpu.name, QueueState(name=gpu.name))
        load = loads.get(gpu.name, QueueLoad(name=gpu.name))
        views.append(
            QueueView(
                name=gpu.name,
                on_demand=gpu.on_demand,
                max_live=gpu.max_live,
                backlog=gpu.backlog,
                price_usd_per_hour=gpu.price_usd_per_hour,
                circuit=state.circuit,
                circuit_changed_at=state.circuit_changed_at,
                retry_at=state.retry_at,
                blocked_reason=state.blocked_reason,
                blocked_since=state.blocked_since,
                paused=state.paused,
                submitting=load.submitting,
                queued=load.queued,
                running=load.running,
                oldest_queued_at=load.oldest_queued_at,
                last_started_at=load.last_started_at,
            )
        )
    return views
