"""Requests over the API: submit and validate through admission, list, show, and orders that are written down."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from controller.core.admission import Submit, admit
from controller.core.records import OperationKind, OutboxEvent, Request
from controller.ports import Store
from schema.states import Outcome, RequestState, ShardState
from tests.builders import NOW, ago, attempt, job, request, shard
from tests.integration.api_site import POLICY, Queue, application, client, payload
from tests.integration.test_api_access import assert_problem
from tests.store_rows import fill


async def put(store: Store, **changes: Any) -> Request:
    name = changes.get("id", "r-1")
    record = request(**{"idempotency_key": f"key-{name}", **changes})
    await fill(store, record)
    return record


async def post(http: httpx.AsyncClient, path: str, **body: Any) -> httpx.Response:
    return await http.post(f"/api/v1/requests/{path}", json=body, headers={"X-Actor": "ada"})


async def test_submit_goes_through_the_queue(store: Store) -> None:
    queue = Queue()
    async with client(application(store, queue)) as http:
        answer = await http.post("/api/v1/requests", json=payload(labels={"team": "søk"}))
    assert answer.status_code == 202
    (body,) = queue.bodies
    fact = admit(body, POLICY, NOW)
    assert isinstance(fact, Submit)
    assert fact.message.labels == {"team": "søk"}
    assert answer.json() == {"request_id": fact.request_id, "duplicate": False, "event_id": json.loads(body)["id"]}
    async with store.transaction() as tx:
        assert await tx.requests.get(fact.request_id) is None, "intake records it, not the API"


@pytest.mark.parametrize(
    ("text", "status", "code", "field"),
    [
        (json.dumps(payload(model="other@1")), 422, "unknown_model", "data.model"),
        (json.dumps(payload(tenant="nobody")), 403, "unknown_tenant", "data.tenant"),
        (json.dumps(payload(output={"uri": "s3://elsewhere/x"})), 403, "forbidden_bucket", "data.output.uri"),
        (json.dumps(payload(priority="5")), 422, "invalid_field", "data.priority"),
        (json.dumps(payload(queues=["p5"])), 422, "unknown_queue", "data.queues.0"),
        ('{"tenant": "stock", "tenant": "other"}', 422, "invalid_field", "data.tenant"),
        ("{", 422, "invalid", None),
        ("[]", 422, "invalid", None),
        ('{}, "subject": "x"', 422, "invalid", None),
        ("[" * 100_000, 422, "invalid", None),
        ('{"tenant": "' + "x" * 300_000 + '"}', 413, "invalid", None),
        ('{"tenant": "' + "x" * (256 * 1024 - 20) + '"}', 413, "too_large", None),
    ],
)
@pytest.mark.parametrize("path", ["/api/v1/requests", "/api/v1/requests/validate"])
async def test_refusals_name_field_and_fix(
    store: Store, path: str, text: str, status: int, code: str, field: str | None
) -> None:
    queue = Queue()
    async with client(application(store, queue)) as http:
        answer = await http.post(path, content=text, headers={"Content-Type": "application/json"})
    problem = assert_problem(answer, status, code)
    assert problem.get("field") == field
    assert queue.bodies == []


async def test_a_repeat_is_a_duplicate_and_other_content_a_conflict(store: Store) -> None:
    queue = Queue()
    async with client(application(store, queue)) as http:
        first = (await http.post("/api/v1/requests", json=payload())).json()
        fact = admit(queue.bodies.pop(), POLICY, NOW)
        assert isinstance(fact, Submit)
        await put(store, id=fact.request_id, idempotency_key="k-1", body_digest=fact.body_digest)
        again = await http.post("/api/v1/requests", json=payload(priority=0))
        assert again.json() == {"request_id": first["request_id"], "duplicate": True, "event_id": None}
        assert (await http.post("/api/v1/requests/validate", json=payload())).json()["duplicate"] is True
        assert_problem(await http.post("/api/v1/requests", json=payload(priority=1)), 409, "idempotency_conflict")
    assert queue.bodies == []


async def test_validate_sends_nothing_and_a_dead_queue_is_a_503(store: Store) -> None:
    queue = Queue(down=True)
    async with client(application(store, queue)) as http:
        assert (await http.post("/api/v1/requests/validate", json=payload())).json()["valid"] is True
        assert_problem(await http.post("/api/v1/requests", json=payload()), 503, "unavailable")


async def test_lists_are_filtered_and_paged(store: Store) -> None:
    for number in range(5):
        state = RequestState.SUCCEEDED if number == 3 else RequestState.RUNNING
        await put(store, id=f"r-{number}", tenant="b" if number == 4 else "a", state=state, created_at=ago(number))
    async with client(application(store, Queue())) as http:

        async def ids(query: str) -> list[str]:
            answer = await http.get(f"/api/v1/requests?{query}")
            return [row["id"] for row in answer.json()["items"]]

        assert await ids("") == ["r-0", "r-1", "r-2", "r-3", "r-4"]
        assert await ids("tenant=b") == ["r-4"]
        assert await ids("state=succeeded&state=failed") == ["r-3"]
        first = (await http.get("/api/v1/requests?limit=2")).json()
        assert first["next"] == "r-1"
        rest = (await http.get("/api/v1/requests?limit=3&before=r-1")).json()
        assert [row["id"] for row in rest["items"]] == ["r-2", "r-3", "r-4"]
        assert rest["next"] is None
        assert_problem(await http.get("/api/v1/requests?before=r-none"), 404, "not_found")


async def test_show_adds_up_shards_attempts_and_cost(store: Store) -> None:
    whole = request(shards=4, assets=160, created_at=ago(100), body={"labels": {"a": "b"}})
    done = {"state": ShardState.SUCCEEDED, "ok": 39, "bad": 1, "statuses": {"ok": 39, "missing": 1}}
    shards = [shard(number, **done) for number in range(3)]
    run = attempt(0, state="ended", outcome=Outcome.SUCCEEDED, started_at=ago(3600), ended_at=NOW)
    await fill(store, whole, *shards, shard(3), job(), run)
    async with client(application(store, Queue())) as http:
        view = (await http.get("/api/v1/requests/r-1")).json()
    assert view["shard_states"] == {"succeeded": 3, "pending": 1}
    assert view["statuses"] == {"ok": 117, "missing": 3}
    assert view["outcomes"] == {"succeeded": 1}
    progress = view["progress"]
    assert (progress["assets"], progress["done"], progress["ok"], progress["bad"]) == (160, 120, 117, 3)
    assert progress["eta_low_seconds"] < progress["eta_seconds"] < progress["eta_high_seconds"]
    assert progress["cost_usd"] == 2.0
    assert view["body"]["labels"] == {"a": "b"}


@pytest.mark.parametrize("changes", [{"paused": True}, {"state": RequestState.CANCELLED}])
async def test_no_time_left_is_promised_while_nothing_moves(store: Store, changes: dict[str, Any]) -> None:
    done = {"state": ShardState.SUCCEEDED, "ok": 40, "bad": 0, "statuses": {"ok": 40}}
    whole = request(shards=4, assets=160, created_at=ago(100), **changes)
    await fill(store, whole, *(shard(number, **done) for number in range(3)))
    async with client(application(store, Queue())) as http:
        progress = (await http.get("/api/v1/requests/r-1")).json()["progress"]
    assert progress["done"] == 120
    assert progress["eta_seconds"] is progress["eta_high_seconds"] is None


@pytest.mark.parametrize(
    ("action", "kind", "state"),
    [
        ("cancel", OperationKind.CANCEL_REQUEST, RequestState.RUNNING),
        ("accept-failures", OperationKind.ACCEPT_FAILURES, RequestState.ATTENTION),
        ("fail", OperationKind.FAIL_REQUEST, RequestState.ATTENTION),
        ("resume", OperationKind.RESUME_REQUEST, RequestState.RUNNING),
    ],
)
async def test_orders_become_operations(store: Store, action: str, kind: OperationKind, state: RequestState) -> None:
    await put(store, state=state, paused=action == "resume")
    async with client(application(store, Queue())) as http:
        answer = await post(http, f"r-1/{action}", reason="  because of this ")
        assert answer.status_code == 202
        order = answer.json()
        assert (await http.get(f"/api/v1/operations/{order['id']}")).json() == order
    async with store.transaction() as tx:
        (pending,) = await tx.operations.pending(10)
        unchanged = await tx.requests.get("r-1")
    assert (pending.kind, pending.actor, pending.reason) == (kind, "ada", "because of this")
    assert unchanged is not None
    assert unchanged.state is state


@pytest.mark.parametrize(
    ("action", "changes"),
    [
        ("cancel", {"state": RequestState.SUCCEEDED}),
        ("cancel", {"state": RequestState.CANCELLING}),
        ("accept-failures", {}),
        ("accept-failures", {"state": RequestState.ATTENTION, "output_uri": None}),
        ("fail", {}),
        ("resume", {}),
    ],
)
async def test_orders_that_come_to_nothing_are_conflicts(store: Store, action: str, changes: dict[str, Any]) -> None:
    await put(store, **changes)
    async with client(application(store, Queue())) as http:
        assert_problem(await post(http, f"r-1/{action}", reason="because of this"), 409, "conflict")
        assert_problem(await post(http, f"r-none/{action}", reason="because of this"), 404, "not_found")
    async with store.transaction() as tx:
        assert not await tx.operations.pending(10)


@pytest.mark.parametrize("body", [{}, {"reason": "no"}, {"reason": "    x    "}, {"reason": "long enough", "x": 1}])
async def test_an_order_needs_a_reason_and_nothing_else(store: Store, body: dict[str, Any]) -> None:
    await put(store)
    async with client(application(store, Queue())) as http:
        assert_problem(await http.post("/api/v1/requests/r-1/cancel", json=body), 422, "invalid")
        headers = {"X-Actor": "two words"}
        answer = await http.post("/api/v1/requests/r-1/cancel", json={"reason": "long enough"}, headers=headers)
        assert_problem(answer, 422, "invalid")


async def test_events_and_audit_are_shown(store: Store) -> None:
    await put(store)
    async with store.transaction() as tx:
        await tx.events.add(OutboxEvent(id="e-1", request_id="r-1", type="status.accepted", body="{}", created_at=NOW))
        await tx.operations.audit(
            id="u-1", at=NOW, actor="ada", action="cancel_request", target="r-1", reason="because", detail={"moved": 1}
        )
    async with client(application(store, Queue())) as http:
        (event,) = (await http.get("/api/v1/requests/r-1/events")).json()
        (line,) = (await http.get("/api/v1/requests/r-1/audit")).json()
        assert_problem(await http.get("/api/v1/requests/r-none/events"), 404, "not_found")
    assert (event["type"], event["body"]) == ("status.accepted", {})
    assert (line["actor"], line["detail"]) == ("ada", {"moved": 1})
