"""Requests in the real store: idempotent insert, guards, claims, amendments, paging."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from controller.core.changes import RequestChange
from controller.core.records import Request
from controller.core.transitions import moved
from controller.store import PostgresStore
from schema.states import RequestState
from tests.builders import NOW, ago, request
from tests.store_rows import fill

LATER = NOW + timedelta(seconds=60)


def named(number: int, **changes: object) -> Request:
    return request(id=f"r-{number}", idempotency_key=f"k-{number}", **changes)


async def read(store: PostgresStore, request_id: str = "r-1") -> Request:
    async with store.transaction() as tx:
        found = await tx.requests.get(request_id)
    assert found is not None
    return found


async def test_a_request_comes_back_as_it_was(store: PostgresStore) -> None:
    full = request(
        reason="why",
        paused=True,
        priority=-3,
        deadline=LATER,
        finished_at=LATER,
        progress_sent_at=NOW,
        plan_digest="p",
        manifest_uri="s3://m",
        failures_uri="s3://f",
        accept_failures=True,
        index_active=True,
        bytes=2**40,
        body={"labels": {"team": "søk"}, "queues": ["g5"]},
    )
    await fill(store, full)
    assert await read(store) == full
    async with store.transaction() as tx:
        assert await tx.requests.get("r-2") is None


async def test_many_at_once_and_only_those_that_there_are(store: PostgresStore) -> None:
    await fill(store, named(1), named(2), named(3))
    async with store.transaction() as tx:
        assert await tx.requests.of_ids({"r-3", "r-1", "r-9"}) == {"r-1": named(1), "r-3": named(3)}
        assert await tx.requests.of_ids([]) == {}


async def test_a_second_insert_of_the_id_or_the_key_changes_nothing(store: PostgresStore) -> None:
    first = request()
    await fill(store, first)
    async with store.transaction() as tx:
        assert not await tx.requests.insert(replace(first, body_digest="other"))
        assert not await tx.requests.insert(replace(first, id="r-2"))
    assert await read(store) == first


async def test_a_change_applies_only_from_the_state_that_was_seen(store: PostgresStore) -> None:
    seen = request()
    await fill(store, seen)
    change = moved(seen, RequestState.FINISHING, LATER, "all committed", manifest_uri="s3://m")
    async with store.transaction() as tx:
        assert await tx.requests.apply(change)
        assert not await tx.requests.apply(change)
    expected = replace(
        seen, state=RequestState.FINISHING, updated_at=LATER, reason="all committed", manifest_uri="s3://m"
    )
    assert await read(store) == expected


async def test_fields_may_change_while_the_state_stays(store: PostgresStore) -> None:
    await fill(store, request())
    expected = frozenset({RequestState.RUNNING, RequestState.ATTENTION})
    change = RequestChange(id="r-1", expected=expected, values={"paused": True, "updated_at": LATER})
    async with store.transaction() as tx:
        assert await tx.requests.apply(change)
    after = await read(store)
    assert (after.paused, after.state, after.updated_at) == (True, RequestState.RUNNING, LATER)


@pytest.mark.parametrize("values", [{}, {"colour": "red"}, {"claimed_by": "x"}, {"state": "failed"}, {"id": "r-9"}])
async def test_a_change_of_no_known_column_is_a_bug(store: PostgresStore, values: dict[str, object]) -> None:
    change = RequestChange(id="r-1", expected=frozenset({RequestState.RUNNING}), values=values)
    async with store.transaction() as tx:
        with pytest.raises(AssertionError):
            await tx.requests.apply(change)


async def test_an_amendment_changes_columns_and_body(store: PostgresStore) -> None:
    before = request(priority=1, deadline=NOW, body={"priority": 1, "queues": None})
    await fill(store, before)
    async with store.transaction() as tx:
        assert await tx.requests.amend("r-1", priority=7, deadline=LATER, queues=("g5", "g6"), now=LATER)
    after = await read(store)
    assert (after.priority, after.deadline, after.queues, after.updated_at) == (7, LATER, ("g5", "g6"), LATER)
    patch = {"priority": 7, "deadline": "2026-12-01T12:01:00Z", "queues": ["g5", "g6"]}
    assert after.body == {**before.body, **patch}


async def test_an_amendment_leaves_what_it_does_not_name(store: PostgresStore) -> None:
    before = request(priority=1, deadline=NOW, body={"priority": 1})
    await fill(store, before)
    async with store.transaction() as tx:
        assert await tx.requests.amend("r-1", priority=None, deadline=None, queues=["g5"], now=LATER)
    assert await read(store) == replace(before, updated_at=LATER, body={**before.body, "queues": ["g5"]})


@pytest.mark.parametrize(
    "state", [RequestState.SUCCEEDED, RequestState.FAILED, RequestState.CANCELLED, RequestState.CANCELLING]
)
async def test_what_is_over_is_not_amended(store: PostgresStore, state: RequestState) -> None:
    over = request(state=state)
    await fill(store, over)
    async with store.transaction() as tx:
        assert not await tx.requests.amend("r-1", priority=7, deadline=None, queues=None, now=LATER)
    assert await read(store) == over


async def test_a_claim_takes_free_rows_by_priority_then_age(store: PostgresStore) -> None:
    await fill(
        store,
        named(1, created_at=ago(10)),
        named(2, created_at=ago(20)),
        named(3, priority=5),
        named(4, state=RequestState.ACCEPTED),
        named(5, state=RequestState.SUCCEEDED, priority=9),
    )
    states = (RequestState.RUNNING, RequestState.ACCEPTED)
    async with store.transaction() as tx:
        first = await tx.requests.claim(states, "one", NOW, LATER, 2)
        rest = await tx.requests.claim(states, "two", NOW, LATER, 9)
        assert await tx.requests.claim(states, "one", NOW, LATER, 9) == []
    assert [r.id for r in first] == ["r-3", "r-2"]
    assert [r.id for r in rest] == ["r-1", "r-4"]


async def test_a_claim_ends_by_release_or_by_time(store: PostgresStore) -> None:
    await fill(store, named(1), named(2))
    states = (RequestState.RUNNING,)
    async with store.transaction() as tx:
        await tx.requests.claim(states, "one", NOW, LATER, 9)
        await tx.requests.release(["r-1", "r-2"], "another")
        assert await tx.requests.claim(states, "two", NOW, LATER, 9) == []
        await tx.requests.release(["r-1"], "one")
        assert [r.id for r in await tx.requests.claim(states, "two", NOW, LATER, 9)] == ["r-1"]
        in_time = LATER + timedelta(seconds=1)
        assert [r.id for r in await tx.requests.claim(states, "two", LATER, in_time, 9)] == ["r-1", "r-2"]


async def test_two_claims_at_once_share_the_rows_without_waiting(store: PostgresStore) -> None:
    await fill(store, *(named(number) for number in range(6)))
    states = (RequestState.RUNNING,)
    async with store.transaction() as one, store.transaction() as two:
        first = await one.requests.claim(states, "one", NOW, LATER, 4)
        second = await two.requests.claim(states, "two", NOW, LATER, 4)
    assert [r.id for r in first] == ["r-0", "r-1", "r-2", "r-3"]
    assert [r.id for r in second] == ["r-4", "r-5"]


async def test_in_states_is_ordered_and_bounded(store: PostgresStore) -> None:
    await fill(store, named(1), named(2, priority=1), named(3, created_at=ago(1)), named(4, state=RequestState.FAILED))
    async with store.transaction() as tx:
        assert [r.id for r in await tx.requests.in_states([RequestState.RUNNING], 9)] == ["r-2", "r-3", "r-1"]
        assert [r.id for r in await tx.requests.in_states([RequestState.RUNNING], 1)] == ["r-2"]
        assert await tx.requests.in_states([], 9) == []


async def test_search_pages_newest_first_through_equal_times(store: PostgresStore) -> None:
    await fill(store, named(1), named(2), named(3), named(4, created_at=ago(5)), named(5, created_at=ago(9)))
    pages: list[list[str]] = []
    before: str | None = None
    async with store.transaction() as tx:
        while page := await tx.requests.search(tenant=None, states=None, before=before, limit=2):
            pages.append([r.id for r in page])
            before = page[-1].id
    assert pages == [["r-3", "r-2"], ["r-1", "r-4"], ["r-5"]]


async def test_search_narrows_by_tenant_and_state(store: PostgresStore) -> None:
    await fill(store, named(1), named(2, tenant="other"), named(3, state=RequestState.FAILED))
    async with store.transaction() as tx:

        async def ids(tenant: str | None, states: list[RequestState] | None) -> list[str]:
            found = await tx.requests.search(tenant=tenant, states=states, before=None, limit=9)
            return [r.id for r in found]

        assert await ids("stock", None) == ["r-3", "r-1"]
        assert await ids("stock", [RequestState.FAILED]) == ["r-3"]
        assert await ids(None, [RequestState.RUNNING]) == ["r-2", "r-1"]
        assert await ids("nobody", None) == []
        assert await tx.requests.search(tenant=None, states=None, before="r-unknown", limit=9) == []


async def test_text_that_postgres_cannot_keep_does_not_stop_a_request(store: PostgresStore) -> None:
    hostile = request(reason="a\0b", body={"labels": {"x\0": "\ud800", "y": "\N{GRINNING FACE}"}})
    await fill(store, hostile)
    after = await read(store)
    assert after.reason == "a\ufffdb"
    assert after.body["labels"]["y"] == "\N{GRINNING FACE}"
    assert "\0" not in "".join(after.body["labels"])
