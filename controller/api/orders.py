"""Operators' orders: a row that the operations loop carries out and audits. Nothing is changed here and now.

An order that cannot come to anything in the present state is refused with 409, so that nobody waits for it; the
loop looks again when it acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from controller.api.problems import conflict, not_found
from controller.api.site import Site
from controller.core.records import Operation, OperationKind, Request
from controller.ports import Transaction
from schema.states import REQUEST_MOVES, RequestState

Reason = Annotated[
    str, Field(min_length=5, max_length=500, description="why; kept in the audit trail, at least 5 characters")
]


class Order(BaseModel):
    """Body of every order."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    reason: Reason


async def find_request(tx: Transaction, request_id: str) -> Request:
    request = await tx.requests.get(request_id)
    if request is None:
        raise not_found("request", request_id, "list requests to see their ids")
    return request


def check(kind: OperationKind, request: Request) -> None:
    """A Problem when the request's state does not allow the order."""
    state = request.state
    if kind is OperationKind.CANCEL_REQUEST and RequestState.CANCELLING not in REQUEST_MOVES[state]:
        raise conflict(f"request {request.id} is {state.value} and cannot be cancelled", "nothing to do")
    if kind is OperationKind.RESUME_REQUEST and not request.paused:
        raise conflict(f"request {request.id} is not paused", "nothing to resume; failed shards are requeued instead")
    if kind in (OperationKind.ACCEPT_FAILURES, OperationKind.FAIL_REQUEST) and state is not RequestState.ATTENTION:
        fix = "wait until it is in attention, or cancel it"
        raise conflict(f"request {request.id} is {state.value}, not in attention", fix)
    if kind is OperationKind.ACCEPT_FAILURES and request.output_uri is None:
        raise conflict(f"request {request.id} was never planned: there is no output to accept", "fail it or requeue it")


async def order(
    site: Site,
    tx: Transaction,
    request: Request,
    kind: OperationKind,
    actor: str,
    reason: str,
    selector: Mapping[str, Any] | None = None,
) -> Operation:
    """Write the row."""
    operation = Operation(
        id=site.entropy.new_id("o"),
        kind=kind,
        request_id=request.id,
        selector=selector or {},
        actor=actor,
        reason=reason,
        created_at=site.clock.now(),
    )
    await tx.operations.insert(operation)
    return operation
