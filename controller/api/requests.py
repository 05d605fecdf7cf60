"""Requests: list, show, their events and audit trail, and the orders that concern a whole request."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Query

from controller.api.orders import Order, check, find_request, order
from controller.api.site import DEFAULT_ACTOR, Actor, OfSite, Site
from controller.api.views import (
    AuditView,
    EventView,
    OperationView,
    ProgressView,
    RequestPage,
    RequestRow,
    RequestView,
)
from controller.core.progress import summarise
from controller.core.records import OperationKind, Request
from controller.ports import Transaction
from schema.states import REQUEST_TERMINAL, RequestState

router = APIRouter(prefix="/api/v1/requests", tags=["requests"])

Limit = Annotated[int, Query(ge=1, le=500, description="rows a page")]


@router.get("", summary="Requests, newest first")
async def list_requests(
    site: OfSite,
    tenant: Annotated[str | None, Query(max_length=63, description="only this tenant's")] = None,
    state: Annotated[
        list[RequestState] | None, Query(description="only in these states; repeat it for several")
    ] = None,
    before: Annotated[str | None, Query(max_length=64, description="`next` of the page before")] = None,
    limit: Limit = 50,
) -> RequestPage:
    async with site.store.transaction() as tx:
        if before is not None:
            await find_request(tx, before)
        found = await tx.requests.search(tenant=tenant, states=state, before=before, limit=limit + 1)
    rows = [RequestRow.model_validate(request) for request in found[:limit]]
    return RequestPage(items=rows, next=rows[-1].id if len(found) > limit else None)


@router.get("/{request_id}", summary="One request with its progress")
async def show_request(request_id: str, site: OfSite) -> RequestView:
    async with site.store.transaction() as tx:
        return await _view(site, tx, await find_request(tx, request_id))


async def _view(site: Site, tx: Transaction, request: Request) -> RequestView:
    counts = await tx.shards.counts(request.id)
    seconds = await tx.measures.attempt_seconds(request.id)
    summary = summarise(request, counts, seconds, site.deployment.prices_usd_per_hour, site.clock.now())
    moving = not request.paused and request.state not in REQUEST_TERMINAL
    row = RequestRow.model_validate(request)
    return RequestView(
        **row.model_dump(),
        body=request.body,
        plan_digest=request.plan_digest,
        preprocessing_digest=request.preprocessing_digest,
        chunk_assets=request.chunk_assets,
        output_uri=request.output_uri,
        accept_failures=request.accept_failures,
        manifest_uri=request.manifest_uri,
        failures_uri=request.failures_uri,
        index_active=request.index_active,
        shard_states=counts.by_state,
        statuses=counts.statuses,
        outcomes=await tx.measures.outcomes(request.id),
        progress=ProgressView.of(summary, moving=moving),
    )


@router.get("/{request_id}/events", summary="Status events of a request, as sent to upstream")
async def list_events(request_id: str, site: OfSite, limit: Limit = 100) -> list[EventView]:
    async with site.store.transaction() as tx:
        await find_request(tx, request_id)
        events = await tx.events.of_request(request_id, limit)
    return [
        EventView(id=event.id, type=event.type, created_at=event.created_at, body=json.loads(event.body))
        for event in events
    ]


@router.get("/{request_id}/audit", summary="What operators did to a request, newest first")
async def list_audit(request_id: str, site: OfSite, limit: Limit = 100) -> list[AuditView]:
    async with site.store.transaction() as tx:
        await find_request(tx, request_id)
        lines = await tx.operations.audit_of(request_id, limit)
    return [AuditView.model_validate(dict(line)) for line in lines]


@router.post("/{request_id}/cancel", status_code=202, summary="Stop a request and what runs of it")
async def cancel(request_id: str, body: Order, site: OfSite, actor: Actor = DEFAULT_ACTOR) -> OperationView:
    return await _order(site, request_id, OperationKind.CANCEL_REQUEST, actor, body)


@router.post(
    "/{request_id}/accept-failures", status_code=202, summary="Finish with gaps, which the manifest then lists"
)
async def accept_failures(request_id: str, body: Order, site: OfSite, actor: Actor = DEFAULT_ACTOR) -> OperationView:
    return await _order(site, request_id, OperationKind.ACCEPT_FAILURES, actor, body)


@router.post("/{request_id}/fail", status_code=202, summary="Give up a request that is in attention")
async def fail(request_id: str, body: Order, site: OfSite, actor: Actor = DEFAULT_ACTOR) -> OperationView:
    return await _order(site, request_id, OperationKind.FAIL_REQUEST, actor, body)


@router.post("/{request_id}/resume", status_code=202, summary="Go on with a paused request; lifts its cost limit")
async def resume(request_id: str, body: Order, site: OfSite, actor: Actor = DEFAULT_ACTOR) -> OperationView:
    return await _order(site, request_id, OperationKind.RESUME_REQUEST, actor, body)


async def _order(site: Site, request_id: str, kind: OperationKind, actor: str, body: Order) -> OperationView:
    async with site.store.transaction() as tx:
        request = await find_request(tx, request_id)
        check(kind, request)
        operation = await order(site, tx, request, kind, actor, body.reason)
    return OperationView.model_validate(operation)
