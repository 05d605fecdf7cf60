"""Shards of a request: list by state and outcome, show with attempts, requeue all that match."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from fastapi import Path as PathParameter
from pydantic import BaseModel, ConfigDict, Field, model_validator

from controller.api.orders import Order, find_request, order
from controller.api.problems import Problem, ProblemCode, conflict, not_found
from controller.api.requests import Limit
from controller.api.site import DEFAULT_ACTOR, Actor, OfSite, Site
from controller.api.views import AttemptView, OperationView, Preview, Requeued, ShardDetail, ShardPage, ShardView
from controller.core.records import OperationKind, Request
from controller.ports import Transaction
from schema.states import Outcome, RequestState, ShardState

router = APIRouter(prefix="/api/v1/requests/{request_id}/shards", tags=["shards"])

MAX_NAMED_SHARDS = 1000
MAX_ORDINAL = 2**31 - 1
#: A preview reads no more shards than this; `exact` says whether it had to stop.
MAX_COUNTED = 50_000
_PAGE = 1000
_REOPENABLE = frozenset({RequestState.RUNNING, RequestState.ATTENTION, RequestState.FAILED})

Ordinal = Annotated[int, Field(ge=0, le=MAX_ORDINAL)]


class Selector(BaseModel):
    """Which failed shards: by number, by how their last attempt ended, or all. Exactly one of the three."""

    model_config = ConfigDict(extra="forbid")

    shards: list[Ordinal] | None = Field(default=None, min_length=1, max_length=MAX_NAMED_SHARDS)
    outcome: Outcome | None = Field(default=None, description="failed shards whose last attempt ended so")
    state: Literal["failed"] | None = Field(default=None, description="every failed shard")

    @model_validator(mode="after")
    def _one(self) -> Selector:
        if len(self.model_fields_set) != 1 or not any((self.shards, self.outcome, self.state)):
            raise ValueError("give exactly one of shards, outcome and state")
        return self


class Requeue(Order):
    """Open a new generation of failed shards: fresh budgets, chunks of earlier attempts stay."""

    selector: Selector
    queue: str | None = Field(
        default=None, max_length=63, description="put this queue first in the request's order from now on"
    )
    dry_run: bool = Field(default=False, description="only count what matches")


@router.get("", summary="Shards by ordinal")
async def list_shards(
    request_id: str,
    site: OfSite,
    state: Annotated[list[ShardState] | None, Query(description="only in these states")] = None,
    outcome: Annotated[Outcome | None, Query(description="only where the last attempt ended so")] = None,
    after: Annotated[int, Query(ge=-1, le=MAX_ORDINAL, description="`next` of the page before")] = -1,
    limit: Limit = 100,
) -> ShardPage:
    async with site.store.transaction() as tx:
        await find_request(tx, request_id)
        found = await tx.shards.search(request_id, states=state, outcome=outcome, after=after, limit=limit + 1)
    rows = [ShardView.model_validate(shard) for shard in found[:limit]]
    return ShardPage(items=rows, next=rows[-1].shard if len(found) > limit else None)


@router.get("/{shard}", summary="One shard with its attempts")
async def show_shard(
    request_id: str, shard: Annotated[int, PathParameter(ge=0, le=MAX_ORDINAL)], site: OfSite
) -> ShardDetail:
    async with site.store.transaction() as tx:
        request = await find_request(tx, request_id)
        found = await tx.shards.get(request_id, shard)
        if found is None:
            fix = f"the request has {request.shards} shards, counted from 0"
            raise not_found("shard", f"{shard} of request {request_id}", fix)
        attempts = await tx.attempts.of_shard(request_id, shard)
    view = ShardView.model_validate(found)
    return ShardDetail(**view.model_dump(), attempts=[AttemptView.model_validate(attempt) for attempt in attempts])


@router.post("/requeue", status_code=202, summary="Run failed shards again; 200 and no operation for a dry run")
async def requeue(
    request_id: str, body: Requeue, site: OfSite, response: Response, actor: Actor = DEFAULT_ACTOR
) -> Requeued:
    async with site.store.transaction() as tx:
        request = await find_request(tx, request_id)
        preview = await _preview(tx, request, body.selector)
        if body.dry_run:
            response.status_code = 200
            return Requeued(operation=None, preview=preview)
        if request.state not in _REOPENABLE:
            fix = "only a running or failed request, or one in attention, takes a requeue"
            raise conflict(f"request {request_id} is {request.state.value}", fix)
        if not preview.eligible and not preview.prepares_again:
            raise conflict("no failed shard matches", "list failed shards to see what could be requeued")
        selector: dict[str, Any] = body.selector.model_dump(mode="json", exclude_none=True)
        if body.queue is not None:
            await _prefer(site, tx, request, body.queue)
            selector["queue"] = body.queue
        kind = OperationKind.REQUEUE_SHARDS
        operation = await order(site, tx, request, kind, actor, body.reason, selector)
    return Requeued(operation=OperationView.model_validate(operation), preview=preview)


async def _prefer(site: Site, tx: Transaction, request: Request, queue: str) -> None:
    known = [gpu.name for gpu in site.deployment.gpu_queues]
    if queue not in known:
        detail, fix = f"there is no queue {queue!r}", f"name one of {', '.join(known)}"
        raise Problem(422, ProblemCode.INVALID, detail, fix, "queue")
    others = [name for name in request.queues or known if name != queue]
    done = await tx.requests.amend(
        request.id, priority=None, deadline=None, queues=[queue, *others], now=site.clock.now()
    )
    if not done:
        fix = "requeue without `queue` first; once it runs again, amend its queues"
        raise conflict(f"the queues of a request that is {request.state.value} cannot be changed", fix)


async def _preview(tx: Transaction, request: Request, selector: Selector) -> Preview:
    """Counted now; the operation looks again when it acts."""
    states: Counter[ShardState] = Counter()
    exact = True
    if selector.shards is not None:
        for ordinal in sorted(set(selector.shards)):
            shard = await tx.shards.get(request.id, ordinal)
            if shard is not None:
                states[shard.state] += 1
    elif selector.outcome is not None:
        exact = await _count(tx, request.id, selector.outcome, states)
    else:
        failed = (await tx.shards.counts(request.id))[ShardState.FAILED]
        states[ShardState.FAILED] = failed
    eligible = states.pop(ShardState.FAILED, 0)
    return Preview(
        matched=eligible + states.total(),
        eligible=eligible,
        skipped=states,
        exact=exact,
        prepares_again=request.state is RequestState.ATTENTION and request.output_uri is None,
    )


async def _count(tx: Transaction, request_id: str, outcome: Outcome, states: Counter[ShardState]) -> bool:
    """Add up, page by page, the failed shards that ended so; False when there were too many to count."""
    after = -1
    while states.total() < MAX_COUNTED:
        page = await tx.shards.search(request_id, states=[ShardState.FAILED], outcome=outcome, after=after, limit=_PAGE)
        states.update(shard.state for shard in page)
        if len(page) < _PAGE:
            return True
        after = page[-1].shard
    return False
