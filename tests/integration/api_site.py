"""The API over the real store, called in process: what the tests of the API share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx

from controller.api.app import Deployment, create_app
from controller.clock import SystemClock, SystemEntropy
from controller.core.admission import Policy, TenantPolicy
from controller.metrics import Metrics
from controller.ports import Store, Unavailable
from controller.settings import GpuQueue
from schema.messages import MAX_BODY_BYTES
from tests.builders import NOW

BASE_URL = "http://127.0.0.1:8080"
QUEUES = (
    GpuQueue(name="g6e", job_definition="embed:1", price_usd_per_hour=2.0),
    GpuQueue(name="g6", job_definition="embed:1", on_demand=True),
)
POLICY = Policy(
    tenants={"stock": TenantPolicy(inputs=("s3://photos/",), outputs=("s3://embeddings/",), models=("*",))},
    models=frozenset({"tiny@1"}),
    queues={queue.name: queue.on_demand for queue in QUEUES},
    max_body_bytes=MAX_BODY_BYTES,
)


class FixedClock(SystemClock):
    def now(self) -> datetime:
        return NOW


@dataclass
class FakeHealth:
    """What the process would say of itself."""

    limit_seconds: float = 60.0
    silence: Mapping[str, float] = field(default_factory=lambda: {"intake": 1.0})
    checks: Mapping[str, str] = field(default_factory=lambda: {"database": "ok"})

    def loops(self) -> Mapping[str, float]:
        return self.silence

    async def ready(self) -> Mapping[str, str]:
        return self.checks


@dataclass
class Queue:
    """The requests queue; `down` makes it fail."""

    bodies: list[str] = field(default_factory=list[str])
    down: bool = False

    async def put(self, body: str) -> None:
        if self.down:
            raise Unavailable("no answer")
        self.bodies.append(body)


def application(store: Store, queue: Queue, *, health: FakeHealth | None = None, token: str | None = None) -> Any:
    return create_app(
        store=store,
        clock=FixedClock(),
        entropy=SystemEntropy(),
        submit=queue.put,
        health=health or FakeHealth(),
        metrics=Metrics(version="1", queues=["g6e"]),
        deployment=Deployment(POLICY, QUEUES, {queue.name: queue.price_usd_per_hour for queue in QUEUES}),
        token=token,
        version="1",
    )


def client(app: Any, **options: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=BASE_URL, **options)


def payload(**changes: Any) -> dict[str, Any]:
    """A request.submit payload that admission takes."""
    base: dict[str, Any] = {
        "tenant": "stock",
        "idempotency_key": "k-1",
        "source": {"kind": "prefix", "bucket": "photos", "prefix": "p/"},
        "model": "tiny@1",
        "output": {"uri": "s3://embeddings/out"},
    }
    return base | changes
