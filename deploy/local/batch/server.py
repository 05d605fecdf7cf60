"""The HTTP side: REST-JSON of Batch on the service model's own routes, and `/_faults`, `/_jobs`, `/_health`.

Order for each call: injected delay, injected error, the account's rate limit, the types of the service model, the
operation. Errors are rendered here and only here. `/_…` is never throttled and never fails on demand.

    GET  /_health   200 once it serves                POST /_faults   arm a fault, see `fault_requests`
    GET  /_faults   counters of what really fired     GET  /_jobs     every job, for tests
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from aiohttp import web
from botocore.model import OperationModel, ServiceModel
from pydantic import ValidationError

from deploy.local.batch import fault_requests
from deploy.local.batch.errors import BatchError, ClientError, ServerError, Throttled
from deploy.local.batch.faults import Faults
from deploy.local.batch.operations import Operations
from deploy.local.batch.registry import Registry
from deploy.local.batch.scheduler import Scheduler
from deploy.local.batch.validation import check_shape

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = logging.getLogger(__name__)


class RateLimit:
    """A token bucket of one second's worth of calls, in real time, for the whole account."""

    def __init__(self, requests_per_second: float) -> None:
        self._rate = requests_per_second
        self._tokens = requests_per_second
        self._filled = time.monotonic()

    def take(self) -> bool:
        now = time.monotonic()
        self._tokens = min(self._rate, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Server:
    def __init__(
        self,
        model: ServiceModel,
        operations: Operations,
        faults: Faults,
        registry: Registry,
        scheduler: Scheduler,
        requests_per_second: float,
    ) -> None:
        self._model = model
        self._operations = operations
        self._faults = faults
        self._registry = registry
        self._scheduler = scheduler
        self._rate_limit = RateLimit(requests_per_second)

    def application(self) -> web.Application:
        application = web.Application(client_max_size=4 * 1024 * 1024)
        for name in self._operations.by_name:
            operation = self._model.operation_model(name)
            path = operation.http["requestUri"].replace("{resourceArn}", "{resourceArn:.+}")
            application.router.add_route(operation.http["method"], path, self._route(operation))
        application.router.add_get("/_health", self._health)
        application.router.add_get("/_faults", self._show_faults)
        application.router.add_post("/_faults", self._arm_fault)
        application.router.add_get("/_jobs", self._show_jobs)
        return application

    def _route(self, operation: OperationModel) -> _Handler:
        async def handle(http: web.Request) -> web.StreamResponse:
            try:
                answer = await self._call(operation, http)
            except BatchError as error:
                return _error(error)
            except Exception:
                _log.exception("%s broke", operation.name)
                return _error(ServerError("Internal error of the stand-in"))
            if operation.name == "SubmitJob" and self._faults.take_lost_response() and http.transport is not None:
                http.transport.abort()
            return web.json_response(answer)

        return handle

    async def _call(self, operation: OperationModel, http: web.Request) -> dict[str, Any]:
        delay_real_seconds = self._faults.delay_real_seconds(operation.name)
        self._faults.before_call(operation.name)
        if not self._rate_limit.take():
            self._faults.count("throttled")
            raise Throttled("Too Many Requests")
        body = await http.read()
        try:
            request: Any = json.loads(body) if body else {}
        except ValueError:
            raise ClientError("Request body is not JSON") from None
        if "resourceArn" in http.match_info:
            request = {**request, "resourceArn": unquote(http.match_info["resourceArn"])}
        check_shape(self._model, operation.name, request)
        answer = self._operations.by_name[operation.name](request)
        if delay_real_seconds:
            await asyncio.sleep(delay_real_seconds)
        return answer

    async def _health(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ok"})

    async def _show_faults(self, _: web.Request) -> web.StreamResponse:
        return web.json_response(self._faults.fired())

    async def _arm_fault(self, http: web.Request) -> web.StreamResponse:
        try:
            fault_requests.arm(fault_requests.parse(await http.read()), self._faults, self._registry, self._scheduler)
        except ValidationError as error:
            return web.json_response({"message": str(error)}, status=400)
        except ClientError as error:
            return _error(error)
        return web.json_response(self._faults.fired())

    async def _show_jobs(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"jobs": self._operations.all_jobs()})


def _error(error: BatchError) -> web.Response:
    return web.json_response(
        {"message": str(error)}, status=error.http_status, headers={"x-amzn-ErrorType": error.code}
    )
