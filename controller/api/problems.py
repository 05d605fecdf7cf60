"""Errors of the API as RFC 9457 problem documents, each with a `fix`: what the caller can do about it.

Problem        raised by a route; everything a caller can cause
PortError      from the store or a queue: 503, nothing is known to have happened, try again
anything else  500 without details; the traceback is in the log
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from controller.core.admission import Reject
from controller.core.rejects import advice
from controller.ports import PortError
from schema.messages import RejectCode

log = structlog.get_logger("reembed.api")

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = "5"


class ProblemCode(StrEnum):
    """Of problems that are not a refused message; those carry the RejectCode."""

    NOT_FOUND = "not_found"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN_ORIGIN = "forbidden_origin"
    CONFLICT = "conflict"
    INVALID = "invalid"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


class ProblemDocument(BaseModel):
    """Body of every error, media type application/problem+json."""

    type: str = Field(description="urn:reembed:problem:<code>")
    title: str = Field(description="the code in words")
    status: int = Field(description="the HTTP status")
    code: str = Field(description="stable; a ProblemCode or a RejectCode of docs/contracts.md")
    detail: str = Field(description="what is wrong, for people")
    fix: str = Field(description="what to change")
    field: str | None = Field(default=None, description="path of the offending field, such as data.source.bucket")


class Problem(Exception):
    """An error that the caller can do something about."""

    def __init__(self, status: int, code: ProblemCode | RejectCode, detail: str, fix: str, field: str | None = None):
        super().__init__(detail)
        self.document = ProblemDocument(
            type=f"urn:reembed:problem:{code.value}",
            title=code.value.replace("_", " "),
            status=status,
            code=code.value,
            detail=detail,
            fix=fix,
            field=field,
        )


#: HTTP status of a refused message; 422 for every other code.
REJECT_STATUS = {
    RejectCode.TOO_LARGE: 413,
    RejectCode.UNKNOWN_TENANT: 403,
    RejectCode.FORBIDDEN_BUCKET: 403,
    RejectCode.FORBIDDEN_MODEL: 403,
    RejectCode.IDEMPOTENCY_CONFLICT: 409,
    RejectCode.TOO_LATE: 409,
    RejectCode.UNKNOWN_REQUEST: 404,
}


def of_reject(reject: Reject) -> Problem:
    """The same refusal, fix and field that the reject queue would have got."""
    return Problem(REJECT_STATUS.get(reject.code, 422), reject.code, reject.reason, reject.fix, reject.field)


def not_found(what: str, name: object, fix: str) -> Problem:
    return Problem(404, ProblemCode.NOT_FOUND, f"there is no {what} {name}", fix)


def conflict(detail: str, fix: str) -> Problem:
    return Problem(409, ProblemCode.CONFLICT, detail, fix)


def response(problem: Problem, headers: dict[str, str] | None = None) -> JSONResponse:
    document = problem.document
    content = document.model_dump(mode="json", exclude_none=True)
    return JSONResponse(content, status_code=document.status, media_type=MEDIA_TYPE, headers=headers)


def install(app: FastAPI) -> None:
    """Handlers for everything that a route may raise."""

    async def problem(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, Problem)
        return response(error)

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return response(_of_validation(error.errors()))

    async def http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return response(_of_http(error), dict(error.headers or {}))

    async def port(_: Request, error: Exception) -> JSONResponse:
        log.warning("api_port_error", kind=type(error).__name__, error=str(error))
        detail = "the database or a queue did not answer; nothing is known to have happened"
        unavailable = Problem(503, ProblemCode.UNAVAILABLE, detail, "try again in a few seconds; see /readyz")
        return response(unavailable, {"Retry-After": RETRY_AFTER_SECONDS})

    async def bug(_: Request, error: Exception) -> JSONResponse:
        log.error("api_bug", kind=type(error).__name__)  # Starlette raises it again, and its server logs the trace
        detail = "an error of ours"
        return response(Problem(500, ProblemCode.INTERNAL, detail, "look for api_bug in the controller's log"))

    app.add_exception_handler(Problem, problem)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(PortError, port)
    app.add_exception_handler(Exception, bug)


def _of_validation(errors: Any) -> Problem:
    """The first error decides field and fix; what was sent is not repeated."""
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body") or "body"
    texts = [f"{'.'.join(str(part) for part in error['loc'])}: {error['msg']}" for error in errors[:5]]
    expected = str(first.get("ctx", {}).get("expected", ""))
    return Problem(422, ProblemCode.INVALID, "; ".join(texts), advice(first["type"], where, expected), where)


def _of_http(error: HTTPException) -> Problem:
    if error.status_code == 404:
        return Problem(404, ProblemCode.NOT_FOUND, "there is nothing here", "see /openapi.json for every path")
    if error.status_code == 405:
        detail = "this path does not take that method"
        return Problem(405, ProblemCode.METHOD_NOT_ALLOWED, detail, "see /openapi.json for every method")
    return Problem(error.status_code, ProblemCode.INVALID, str(error.detail), "see /openapi.json")
