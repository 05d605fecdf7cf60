"""Builds the HTTP application of a replica from ports. Owns no state and no policy; routes are in the siblings."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response

from controller.api import attempts, freeze, page, problems, requests, shards, submission
from controller.api.auth import Gate, check_bind
from controller.api.health import Health
from controller.api.health import router as health_routes
from controller.api.problems import ProblemDocument
from controller.api.site import Deployment, Site, SubmitBody
from controller.metrics import CONTENT_TYPE, Metrics
from controller.ports import Clock, Entropy, Store

__all__ = ["Deployment", "check_bind", "create_app"]

_DESCRIPTION = """\
Requests, shards and attempts of `reembed`. Errors are RFC 9457 problem documents with a `fix`. Orders (cancel,
requeue, accept failures, fail, resume) are written down, carried out by the leader and audited: they answer 202.
Lists are paged: pass `next` of one page as `before` (requests) or `after` (shards) of the following call.
"""


def create_app(
    *,
    store: Store,
    clock: Clock,
    entropy: Entropy,
    submit: SubmitBody,
    health: Health,
    metrics: Metrics,
    deployment: Deployment,
    token: str | None = None,
    version: str = "",
) -> FastAPI:
    """The application. Whoever binds it calls `check_bind` first."""
    app = FastAPI(
        title="reembed",
        version=version or "unknown",
        description=_DESCRIPTION,
        docs_url=None,  # both fetch their scripts from elsewhere
        redoc_url=None,
        responses={"default": {"model": ProblemDocument, "description": "a problem, with a `fix`"}},
    )
    app.state.health = health
    app.state.site = Site(store=store, clock=clock, entropy=entropy, submit=submit, deployment=deployment)
    problems.install(app)
    app.include_router(health_routes)
    app.include_router(page.router)
    # `requests/validate` must be known before `requests/{request_id}`.
    app.include_router(submission.router)
    app.include_router(requests.router)
    app.include_router(shards.router)
    app.include_router(attempts.router)
    app.include_router(freeze.router)

    @app.get("/metrics", tags=["health"], summary="Metrics in Prometheus' text format", response_class=Response)
    async def exposition() -> Response:
        return Response(metrics.exposition(), media_type=CONTENT_TYPE)

    app.add_middleware(Gate, token=token)
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """The OpenAPI document, with the message model and the way to authenticate."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            submission.add_schemas(made)
            made["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
            made["security"] = [{"bearer": []}, {}]
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document
