"""Shards, attempts and queues over the API: filters, previews, requeues, and why an attempt ended."""

from __future__ import annotations

from typing import Any

import pytest

from controller.core.records import Circuit, QueueState
from controller.ports import Store
from schema.exit_codes import ExitCode
from schema.states import AttemptState, Outcome, RequestState, ShardState, StopIntent
from tests.builders import NOW, ago, attempt, job, request, shard
from tests.integration.api_site import Queue, application, client
from tests.integration.test_api_access import assert_problem
from tests.store_rows import fill

SHARDS = "/api/v1/requests/r-1/shards"
REASON = "fixed the images"


async def put_failures(store: Store, **changes: Any) -> None:
    """0 and 2 failed as crashed, 1 as bad_data, 3 succeeded, 4 pending."""
    crashed = {"state": ShardState.FAILED, "last_outcome": Outcome.CRASHED, "reason": "crashed: 4 failures"}
    await fill(
        store,
        request(**{"state": RequestState.ATTENTION, "shards": 5, **changes}),
        shard(0, **crashed),
        shard(1, state=ShardState.FAILED, last_outcome=Outcome.BAD_DATA),
        shard(2, **crashed),
        shard(3, state=ShardState.SUCCEEDED, last_outcome=Outcome.SUCCEEDED),
        shard(4),
    )


async def test_lists_are_filtered_and_paged(store: Store) -> None:
    await put_failures(store)
    async with client(application(store, Queue())) as http:

        async def numbers(query: str) -> list[int]:
            return [row["shard"] for row in (await http.get(f"{SHARDS}?{query}")).json()["items"]]

        assert await numbers("") == [0, 1, 2, 3, 4]
        assert await numbers("state=failed") == [0, 1, 2]
        assert await numbers("state=failed&outcome=crashed") == [0, 2]
        assert await numbers("outcome=lost") == []
        page = (await http.get(f"{SHARDS}?limit=2")).json()
        assert page["next"] == 1
        assert await numbers("limit=3&after=1") == [2, 3, 4]
        assert (await http.get(f"{SHARDS}?limit=3&after=1")).json()["next"] is None


async def test_a_shard_shows_its_attempts_and_no_token(store: Store) -> None:
    await fill(store, request(), shard(0), job(), attempt(0, token="very-secret"))
    async with client(application(store, Queue())) as http:
        answer = await http.get(f"{SHARDS}/0")
        assert [row["id"] for row in answer.json()["attempts"]] == ["a-0"]
        assert "very-secret" not in answer.text
        assert "very-secret" not in (await http.get("/api/v1/attempts/a-0/explain")).text
        problem = assert_problem(await http.get(f"{SHARDS}/7"), 404, "not_found")
        assert "counted from 0" in problem["fix"]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({"state": "failed"}, {"matched": 3, "eligible": 3, "skipped": {}}),
        ({"outcome": "crashed"}, {"matched": 2, "eligible": 2, "skipped": {}}),
        ({"shards": [0, 3, 3, 4, 99]}, {"matched": 3, "eligible": 1, "skipped": {"succeeded": 1, "pending": 1}}),
    ],
)
async def test_a_preview_counts_and_does_nothing(store: Store, selector: Any, expected: dict[str, Any]) -> None:
    await put_failures(store)
    body = {"selector": selector, "reason": REASON}
    async with client(application(store, Queue())) as http:
        dry = await http.post(f"{SHARDS}/requeue", json={**body, "dry_run": True})
        assert dry.status_code == 200
        assert dry.json()["operation"] is None
        assert dry.json()["preview"].items() >= {**expected, "exact": True}.items()
        async with store.transaction() as tx:
            assert not await tx.operations.pending(10)
        wet = await http.post(f"{SHARDS}/requeue", json=body)
    assert wet.status_code == 202
    assert wet.json()["preview"] == dry.json()["preview"]
    async with store.transaction() as tx:
        (pending,) = await tx.operations.pending(10)
    assert pending.selector == selector
    assert (pending.actor, pending.reason) == ("api", REASON)


async def test_a_preview_counts_over_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.api.shards._PAGE", 1)
    await put_failures(store)
    body = {"selector": {"outcome": "crashed"}, "reason": REASON, "dry_run": True}
    async with client(application(store, Queue())) as http:
        assert (await http.post(f"{SHARDS}/requeue", json=body)).json()["preview"]["eligible"] == 2
        monkeypatch.setattr("controller.api.shards.MAX_COUNTED", 1)
        preview = (await http.post(f"{SHARDS}/requeue", json=body)).json()["preview"]
    assert (preview["eligible"], preview["exact"]) == (1, False)


@pytest.mark.parametrize(
    "selector", [{}, {"state": "succeeded"}, {"shards": []}, {"shards": [-1]}, {"state": "failed", "outcome": "lost"}]
)
async def test_a_selector_is_exactly_one_thing(store: Store, selector: Any) -> None:
    await put_failures(store)
    async with client(application(store, Queue())) as http:
        answer = await http.post(f"{SHARDS}/requeue", json={"selector": selector, "reason": REASON})
        assert_problem(answer, 422, "invalid")


async def test_requeue_on_a_queue_puts_it_first(store: Store) -> None:
    await put_failures(store)
    body = {"selector": {"shards": [0]}, "reason": REASON}
    async with client(application(store, Queue())) as http:
        refused = await http.post(f"{SHARDS}/requeue", json={**body, "queue": "p5"})
        assert assert_problem(refused, 422, "invalid")["field"] == "queue"
        assert (await http.post(f"{SHARDS}/requeue", json={**body, "queue": "g6"})).status_code == 202
    async with store.transaction() as tx:
        changed = await tx.requests.get("r-1")
        (pending,) = await tx.operations.pending(10)
    assert changed is not None
    assert changed.queues == ("g6", "g6e")
    assert pending.selector == {"shards": [0], "queue": "g6"}


@pytest.mark.parametrize(
    ("changes", "selector", "queue"),
    [
        ({"state": RequestState.SUCCEEDED}, {"state": "failed"}, None),
        ({"state": RequestState.CANCELLED}, {"state": "failed"}, None),
        ({}, {"shards": [3, 4]}, None),
        ({"state": RequestState.FAILED}, {"state": "failed"}, "g6"),
    ],
)
async def test_requeues_that_come_to_nothing_are_conflicts(
    store: Store, changes: dict[str, Any], selector: Any, queue: str | None
) -> None:
    await put_failures(store, **changes)
    async with client(application(store, Queue())) as http:
        body = {"selector": selector, "reason": REASON, "queue": queue}
        assert_problem(await http.post(f"{SHARDS}/requeue", json=body), 409, "conflict")
    async with store.transaction() as tx:
        assert not await tx.operations.pending(10)


async def test_a_request_that_was_never_planned_is_prepared_again(store: Store) -> None:
    await fill(store, request(state=RequestState.ATTENTION, output_uri=None, shards=0, assets=0))
    async with client(application(store, Queue())) as http:
        answer = await http.post(f"{SHARDS}/requeue", json={"selector": {"state": "failed"}, "reason": REASON})
    assert answer.status_code == 202
    assert answer.json()["preview"]["prepares_again"] is True


async def test_explain_tells_the_chain(store: Store) -> None:
    ended = attempt(
        0,
        state=AttemptState.ENDED,
        outcome=Outcome.SPOT_RECLAIMED,
        reason="Host EC2 (instance i-1) terminated.",
        created_at=ago(50),
        started_at=ago(40),
        worker_ended_at=ago(20),
        worker_exit_code=ExitCode.INTERRUPTED,
        batch_ended_at=ago(10),
        batch_status="FAILED",
        batch_status_reason="Host EC2 (instance i-1) terminated.",
        batch_exit_code=143,
        ended_at=NOW,
        instance_type="g6e.xlarge",
        open_chunks=(2,),
    )
    written = job(submit_started_at=ago(49), submitted_at=ago(48), batch_job_id="b-1", state="submitted")
    await fill(store, request(), shard(0, reason="spot_reclaimed"), written, ended)
    async with client(application(store, Queue())) as http:
        facts = (await http.get("/api/v1/attempts/a-0/explain")).json()["facts"]
    assert [(fact["source"], fact["fact"].split(" ")[0]) for fact in facts] == [
        ("controller", "attempt"),
        ("controller", "SubmitJob"),
        ("controller", "the"),
        ("worker", "started"),
        ("worker", "exit"),
        ("batch", "FAILED;"),
        ("controller", "closed"),
        ("policy", "spot_reclaimed"),
        ("worker", "chunks"),
        ("controller", "the"),
    ]
    told = "\n".join(fact["fact"] for fact in facts)
    for words in ("g6e.xlarge", "64 (interrupted)", "143 (signal 15)", "(cap 20)", "pending", "Host EC2"):
        assert words in told


async def test_explain_of_a_live_attempt_gives_no_verdict(store: Store) -> None:
    await fill(store, request(), shard(0), job(), attempt(0, stop_intent=StopIntent.CANCEL))
    async with client(application(store, Queue())) as http:
        facts = [fact["fact"] for fact in (await http.get("/api/v1/attempts/a-0/explain")).json()["facts"]]
    assert any("a stop is intended (cancel)" in fact for fact in facts)
    assert facts[-1] == "it is running; no verdict yet"


async def test_queues_show_configuration_circuit_and_load(store: Store) -> None:
    await fill(store, request(), shard(0), job(), attempt(0))
    blocked = QueueState(
        name="g6", circuit=Circuit.OPEN, blocked_reason="CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY", blocked_since=NOW
    )
    async with store.transaction() as tx:
        await tx.queues.put(blocked)
    async with client(application(store, Queue())) as http:
        first, second = (await http.get("/api/v1/queues")).json()
    assert (first["name"], first["circuit"], first["running"], first["on_demand"]) == ("g6e", "closed", 1, False)
    assert (second["circuit"], second["blocked_reason"][:8]) == ("open", "CAPACITY")
