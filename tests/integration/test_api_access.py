"""Who may call the API, what errors look like, and the health endpoints."""

from __future__ import annotations

import re

import httpx
import pytest

from controller.api.app import check_bind
from controller.api.health import ReplicaHealth, WatchedInbox
from controller.ports import Store
from controller.store import PostgresStore
from schema.migrations.run import head
from tests.integration.api_site import FakeHealth, Queue, application, client

TOKEN = "correct-horse"


def assert_problem(answer: httpx.Response, status: int, code: str) -> dict[str, str]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["code"] == code
    assert body["type"] == f"urn:reembed:problem:{code}"
    assert body["status"] == status
    assert body["fix"]
    assert body["detail"]
    return body


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_loopback_needs_no_token(host: str) -> None:
    check_bind(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", ""])
def test_other_addresses_need_a_token(host: str) -> None:
    with pytest.raises(ValueError, match=r"api\.token"):
        check_bind(host, None)
    check_bind(host, TOKEN)


def test_an_empty_token_is_no_token() -> None:
    with pytest.raises(ValueError, match="empty"):
        check_bind("127.0.0.1", " ")


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        (f"Basic {TOKEN}", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN}", 200),
        (f"bearer  {TOKEN}", 200),
    ],
)
async def test_every_path_of_the_document_wants_the_token(store: Store, header: str | None, status: int) -> None:
    app = application(store, Queue(), token=TOKEN)
    headers = {} if header is None else {"Authorization": header}
    async with client(app, headers=headers) as http:
        answer = await http.get("/api/v1/requests")
        assert answer.status_code == status
        if status == 200:
            return
        assert_problem(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
        paths = [*app.openapi()["paths"], "/openapi.json", "/nowhere", "/livez/", "/readyzx"]
        for path in paths:
            got = await http.get(re.sub(r"\{\w+\}", "1", path))
            assert got.status_code == (200 if path in ("/livez", "/readyz", "/") else 401), path


async def test_without_a_token_only_loopback_names_are_served(store: Store) -> None:
    async with client(application(store, Queue())) as http:
        for host in ("127.0.0.1:8080", "localhost", "[::1]:8080"):
            assert (await http.get("/api/v1/requests", headers={"Host": host})).status_code == 200
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "", "[::1"):
            assert_problem(await http.get("/api/v1/requests", headers={"Host": host}), 403, "forbidden_origin")


async def test_a_page_of_another_site_changes_nothing(store: Store) -> None:
    queue = Queue()
    async with client(application(store, queue)) as http:
        for site in ("cross-site", "same-site"):
            answer = await http.post("/api/v1/requests", json={}, headers={"Sec-Fetch-Site": site})
            assert_problem(answer, 403, "forbidden_origin")
        answer = await http.post("/api/v1/requests", content="{}", headers={"Content-Type": "text/plain"})
        assert_problem(answer, 415, "invalid")
    assert queue.bodies == []


async def test_unknown_paths_methods_and_parameters_are_problems(store: Store) -> None:
    async with client(application(store, Queue())) as http:
        assert_problem(await http.get("/nowhere"), 404, "not_found")
        assert_problem(await http.delete("/api/v1/requests"), 405, "method_not_allowed")
        body = assert_problem(await http.get("/api/v1/requests?state=gone"), 422, "invalid")
        assert "running" in body["fix"]
        assert_problem(await http.get("/api/v1/requests?limit=0"), 422, "invalid")
        assert_problem(await http.get("/api/v1/requests/r-none"), 404, "not_found")
        assert_problem(await http.get("/api/v1/attempts/a-none"), 404, "not_found")
        assert_problem(await http.get("/api/v1/operations/o-none"), 404, "not_found")


async def test_no_database_is_a_503(unused_tcp_port: int) -> None:
    lost = PostgresStore.connect(
        f"postgresql+asyncpg://u:p@127.0.0.1:{unused_tcp_port}/x", pool_size=1, connect_timeout_seconds=5
    )
    async with client(application(lost, Queue())) as http:
        answer = await http.get("/api/v1/requests")
    await lost.close()
    assert_problem(answer, 503, "unavailable")
    assert answer.headers["retry-after"]


async def test_livez_names_the_silent_loop(store: Store) -> None:
    health = FakeHealth(limit_seconds=60, silence={"intake": 1.0, "reports": 61.0})
    async with client(application(store, Queue(), health=health)) as http:
        answer = await http.get("/livez")
        assert answer.status_code == 503
        assert answer.json()["silent"] == ["reports"]
        health.silence = {"intake": 1.0, "reports": 59.0}
        assert (await http.get("/livez")).json()["status"] == "ok"


async def test_readyz_wants_database_revision_and_every_inbox(store: Store) -> None:
    class Inbox:
        async def receive(self, limit: int, wait_seconds: float) -> list[object]:
            return []

        async def delete(self, deliveries: object) -> None: ...

    inbox = WatchedInbox(Inbox())  # type: ignore[arg-type]
    health = ReplicaHealth(store, head(), dict, 60.0, {"requests": inbox})
    async with client(application(store, Queue(), health=health)) as http:  # type: ignore[arg-type]
        answer = await http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["checks"] == {"database": "ok", "inbox_requests": "no answer yet"}
        await inbox.receive(1, 0)
        assert (await http.get("/readyz")).status_code == 200
        health.revision = "0001"
        assert (await http.get("/readyz")).status_code == 200, "a newer schema only adds"
        health.revision = "9999"
        answer = await http.get("/readyz")
    assert answer.status_code == 503
    assert "reembed db upgrade" in answer.json()["checks"]["database"]


async def test_metrics_and_page(store: Store) -> None:
    async with client(application(store, Queue())) as http:
        metrics = await http.get("/metrics")
        page = await http.get("/")
        document = (await http.get("/openapi.json")).json()
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'reembed_build_info{version="1"} 1.0' in metrics.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not re.search(r"""(?:src|href)\s*=|https?://""", page.text)
    assert "RequestSubmit" in document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            assert route.get("summary"), (method, path)
    references = set(re.findall(r'"#/components/schemas/(\w+)"', str(document).replace("'", '"')))
    assert references <= set(document["components"]["schemas"])
