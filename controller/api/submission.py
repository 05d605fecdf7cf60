"""Submitting over HTTP: the payload becomes a CloudEvent on the same queue that everybody uses.

Admission judges it here first, so that a caller learns at once what the reject queue would have said. What this
replica finds is advice: intake decides again when it reads the message.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic.json_schema import models_json_schema

from controller.api.problems import Problem, ProblemCode, of_reject
from controller.api.site import OfSite, Site
from controller.api.views import SubmitAnswer, ValidAnswer
from controller.core.admission import Submit, admit, conflict_reject
from controller.core.rejects import Reject
from schema.messages import MAX_BODY_BYTES, MessageType, RequestSubmit

EVENT_SOURCE = "urn:reembed:api"

router = APIRouter(prefix="/api/v1", tags=["requests"])

_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/RequestSubmit"}}},
    }
}


async def _payload(request: Request) -> str:
    """The raw JSON text, read no further than a message may be long. Raw, so that admission sees what was sent."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise Problem(
            415, ProblemCode.INVALID, "the body is not declared as JSON", "send Content-Type: application/json"
        )
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            detail = f"the payload has more than {MAX_BODY_BYTES:,} bytes"
            raise Problem(413, ProblemCode.INVALID, detail, "list the keys in a manifest on S3")
    try:
        text = body.decode()
        # Only a document that is complete by itself may be put into another one.
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Problem(422, ProblemCode.INVALID, "the body is not one JSON document", "send one JSON object") from error
    if not isinstance(document, dict):
        raise Problem(422, ProblemCode.INVALID, "the body is JSON but not an object", "send one JSON object")
    return text


Payload = Annotated[str, Depends(_payload)]


@router.post(
    "/requests",
    status_code=202,
    summary="Submit a request: the payload of request.submit, without its envelope",
    openapi_extra=_BODY,
)
async def submit(payload: Payload, site: OfSite) -> SubmitAnswer:
    event_id = site.entropy.new_id("e")
    body = _event(payload, event_id)
    name, duplicate = await _judge(site, body)
    if duplicate:
        return SubmitAnswer(request_id=name, duplicate=True, event_id=None)
    await site.submit(body)
    return SubmitAnswer(request_id=name, duplicate=False, event_id=event_id)


@router.post("/requests/validate", summary="Say what submitting would say, and do nothing", openapi_extra=_BODY)
async def validate(payload: Payload, site: OfSite) -> ValidAnswer:
    name, duplicate = await _judge(site, _event(payload, "validate"))
    return ValidAnswer(valid=True, request_id=name, duplicate=duplicate)


def _event(payload: str, event_id: str) -> str:
    head = {"specversion": "1.0", "id": event_id, "source": EVENT_SOURCE, "type": MessageType.REQUEST_SUBMIT.value}
    return f'{json.dumps(head)[:-1]}, "data": {payload}}}'


async def _judge(site: Site, body: str) -> tuple[str, bool]:
    """Request id, and whether it is on record already with the same content; a Problem when it would be refused."""
    fact = admit(body, site.deployment.policy, site.clock.now())
    known = fact.request_id if isinstance(fact, Submit | Reject) else None
    if known is not None:
        async with site.store.transaction() as tx:
            existing = await tx.requests.get(known)
        if existing is not None and isinstance(fact, Submit | Reject):
            if existing.body_digest == fact.body_digest:
                return existing.id, True
            if isinstance(fact, Submit):
                raise of_reject(conflict_reject(existing.tenant, existing.idempotency_key, fact.origin))
    if isinstance(fact, Reject):
        raise of_reject(fact)
    return fact.request_id, False


def add_schemas(document: dict[str, Any]) -> None:
    """Put the message model into an OpenAPI document; routes that take raw JSON only refer to it."""
    _, definitions = models_json_schema([(RequestSubmit, "validation")], ref_template="#/components/schemas/{model}")
    document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
