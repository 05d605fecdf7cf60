"""Shards in the real store: idempotent insert, guards, what is due and in which order, counts, the index's ledger."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from controller.core.changes import ShardChange
from controller.core.records import Shard
from controller.core.transitions import assigned, committed, requeued
from controller.ports import Transaction
from controller.store import PostgresStore
from schema.states import AttemptState, Outcome, RequestState, ShardState
from tests.builders import NOW, ago, attempt, job, marker, request, shard
from tests.store_rows import fill

LATER = NOW + timedelta(seconds=60)


def done(number: int, **changes: Any) -> Shard:
    committed_one: dict[str, Any] = {
        "state": ShardState.SUCCEEDED,
        "marker_digest": f"m-{number}",
        "marker_key": f"commits/{number}",
        "ok": 38,
        "bad": 2,
        "statuses": {"ok": 38, "missing": 2},
    }
    return shard(number, **{**committed_one, **changes})


async def read(store: PostgresStore, number: int = 0) -> Shard:
    async with store.transaction() as tx:
        found = await tx.shards.get("r-1", number)
    assert found is not None
    return found


async def due(tx: Transaction, limit: int = 9) -> list[tuple[str, int]]:
    return [(found.request_id, found.shard) for found in await tx.shards.due(NOW, limit)]


async def test_a_shard_comes_back_as_it_was(store: PostgresStore) -> None:
    full = done(
        0,
        reason="why",
        generation=3,
        attempt_id="a-1",
        last_outcome=Outcome.HOST_SICK,
        last_queue="g5",
        avoid_queue="g5",
        isolate=(1, 2),
        poison=(7,),
        indexed_digest="m-0",
        bytes=2**40,
    )
    await fill(store, request(), full, shard(1))
    assert await read(store) == full
    assert (await read(store, 1)).statuses is None
    async with store.transaction() as tx:
        assert await tx.shards.get("r-1", 2) is None
        assert await tx.shards.get("r-2", 0) is None


async def test_inserting_again_changes_nothing_and_counts_only_the_new(store: PostgresStore) -> None:
    first = shard(0, reason="first")
    await fill(store, request(), first)
    async with store.transaction() as tx:
        assert await tx.shards.insert_many([shard(0), shard(1), shard(2)]) == 2
        assert await tx.shards.insert_many([shard(0), shard(1)]) == 0
        assert await tx.shards.insert_many([]) == 0
    assert await read(store) == first


async def test_many_shards_go_in_at_once(store: PostgresStore) -> None:
    await fill(store, request())
    async with store.transaction() as tx:
        assert await tx.shards.insert_many([shard(number) for number in range(5000)]) == 5000
        assert (await tx.shards.counts("r-1")).total == 5000


async def test_a_change_applies_only_from_the_state_that_was_seen(store: PostgresStore) -> None:
    await fill(store, request(), shard(0), shard(1))
    change = assigned(shard(0), attempt(0), LATER)
    async with store.transaction() as tx:
        assert await tx.shards.apply(change)
        assert not await tx.shards.apply(change)
    assert await read(store) == shard(0, state=ShardState.ASSIGNED, attempt_id="a-0", updated_at=LATER)
    assert await read(store, 1) == shard(1)


async def test_a_change_for_an_attempt_applies_only_while_that_attempt_is_current(store: PostgresStore) -> None:
    await fill(store, request(), shard(0, state=ShardState.ASSIGNED, attempt_id="a-2"))

    def retry(of: str) -> ShardChange:
        return ShardChange(
            request_id="r-1",
            shard=0,
            expected=frozenset({ShardState.ASSIGNED}),
            to=ShardState.PENDING,
            attempt_id=of,
            values={"attempt_id": None, "last_outcome": Outcome.LOST, "isolate": (1,), "updated_at": LATER},
        )

    async with store.transaction() as tx:
        assert not await tx.shards.apply(retry("a-1"))
        assert await tx.shards.apply(retry("a-2"))
        assert not await tx.shards.apply(retry("a-2"))
    assert await read(store) == shard(0, last_outcome=Outcome.LOST, isolate=(1,), updated_at=LATER)


async def test_a_commit_and_a_requeue_write_all_their_fields(store: PostgresStore) -> None:
    before = shard(0, state=ShardState.ASSIGNED, attempt_id="a-0", reason="retry")
    failed = shard(1, state=ShardState.FAILED, isolate=(1,))
    await fill(store, request(), before, failed)
    commit = committed(before, marker(before), LATER)
    assert commit is not None
    async with store.transaction() as tx:
        assert await tx.shards.apply(commit)
        assert await tx.shards.apply(requeued(failed, LATER))
    after = await read(store)
    assert (after.state, after.attempt_id, after.reason) == (ShardState.SUCCEEDED, None, None)
    assert (after.ok, after.bad, after.statuses) == (40, 0, {"ok": 40})
    assert after.marker_digest == marker(before).digest
    again = await read(store, 1)
    assert (again.state, again.generation, again.isolate) == (ShardState.PENDING, 2, ())


async def test_due_is_by_request_priority_then_age_then_ordinal(store: PostgresStore) -> None:
    ids = ("r-old", "r-new", "r-urgent")
    await fill(
        store,
        request(id="r-new", idempotency_key="1"),
        request(id="r-old", idempotency_key="2", created_at=ago(60)),
        request(id="r-urgent", idempotency_key="3", priority=1),
        *(shard(number, request_id=name) for name in ids for number in (1, 0)),
    )
    async with store.transaction() as tx:
        everything = await due(tx)
        assert everything == [(name, number) for name in ("r-urgent", "r-old", "r-new") for number in (0, 1)]
        assert await due(tx, 3) == everything[:3]


async def test_due_leaves_out_what_may_not_start(store: PostgresStore) -> None:
    await fill(
        store,
        request(),
        request(id="r-2", idempotency_key="2", paused=True),
        request(id="r-3", idempotency_key="3", state=RequestState.CANCELLING),
        shard(0, eligible_at=LATER),
        shard(1),
        *(shard(2 + i, state=state) for i, state in enumerate(ShardState) if state is not ShardState.PENDING),
        shard(0, request_id="r-2"),
        shard(0, request_id="r-3"),
    )
    async with store.transaction() as tx:
        assert await due(tx) == [("r-1", 1)]
        assert [found.shard for found in await tx.shards.due(LATER, 9)] == [0, 1]


async def test_due_waits_for_the_end_of_an_older_attempt(store: PostgresStore) -> None:
    """I2 would refuse the new one."""
    await fill(store, request(), shard(0, generation=2), shard(1), job(), attempt(0), attempt(1))
    async with store.transaction() as tx:
        assert await due(tx) == []
        ended = replace(attempt(5, shard=0), id="a-ended", state=AttemptState.ENDED, outcome=Outcome.SUPERSEDED)
        await tx.attempts.insert_many([ended])
        assert await due(tx) == []
    await fill(store, shard(2), replace(ended, id="a-ended-2", shard=2, array_index=6))
    async with store.transaction() as tx:
        assert await due(tx) == [("r-1", 2)]


async def test_counts_add_up_what_succeeded(store: PostgresStore) -> None:
    await fill(
        store,
        request(),
        request(id="r-2", idempotency_key="2"),
        done(0, indexed_digest="m-0"),
        done(1, ok=40, bad=0, statuses={"ok": 40}),
        done(2, indexed_digest="of an older generation"),
        shard(3),
        shard(4, state=ShardState.ASSIGNED),
        done(0, request_id="r-2"),
    )
    async with store.transaction() as tx:
        counts = await tx.shards.counts("r-1")
        nothing = await tx.shards.counts("r-9")
    assert counts.by_state == {ShardState.SUCCEEDED: 3, ShardState.PENDING: 1, ShardState.ASSIGNED: 1}
    assert (counts.ok, counts.bad, counts.assets_done, counts.indexed) == (116, 4, 120, 1)
    assert counts.statuses == {"missing": 4, "ok": 116}
    assert (nothing.by_state, nothing.ok, nothing.statuses) == ({}, 0, {})


async def test_the_ledger_takes_only_current_markers(store: PostgresStore) -> None:
    await fill(store, request(), done(0), done(1), done(2), shard(3))
    async with store.transaction() as tx:
        assert [s.shard for s in await tx.shards.unindexed("r-1", 9)] == [0, 1, 2]
        assert [s.shard for s in await tx.shards.unindexed("r-1", 1)] == [0]
        await tx.shards.mark_indexed("r-1", {2: "m-2", 0: "m-0", 1: "stale", 3: "m-3", 9: "m-9"}, LATER)
        await tx.shards.mark_indexed("r-1", {}, LATER)
        assert [s.shard for s in await tx.shards.unindexed("r-1", 9)] == [1]
        assert [s.shard for s in await tx.shards.succeeded("r-1")] == [0, 1, 2]
    assert await read(store) == done(0, indexed_digest="m-0", updated_at=LATER)
    assert await read(store, 1) == done(1)


async def test_a_new_marker_makes_a_shard_unindexed_again(store: PostgresStore) -> None:
    await fill(store, request(), done(0, indexed_digest="of the first generation"))
    async with store.transaction() as tx:
        assert [s.shard for s in await tx.shards.unindexed("r-1", 9)] == [0]


async def test_search_pages_by_ordinal_and_narrows(store: PostgresStore) -> None:
    crashed = {"last_outcome": Outcome.CRASHED}
    await fill(
        store,
        request(),
        shard(0),
        shard(1, state=ShardState.FAILED, **crashed),
        shard(2, **crashed),
        shard(3, state=ShardState.FAILED, last_outcome=Outcome.LOST),
        shard(4, state=ShardState.FAILED, **crashed),
    )
    failed = [ShardState.FAILED]
    async with store.transaction() as tx:

        async def ordinals(states: Any, outcome: Outcome | None, after: int, limit: int = 9) -> list[int]:
            found = await tx.shards.search("r-1", states=states, outcome=outcome, after=after, limit=limit)
            return [s.shard for s in found]

        assert await ordinals(None, None, -1, 2) == [0, 1]
        assert await ordinals(None, None, 1) == [2, 3, 4]
        assert await ordinals(failed, None, -1) == [1, 3, 4]
        assert await ordinals(failed, Outcome.CRASHED, 1) == [4]
        assert await ordinals(None, Outcome.CRASHED, -1) == [1, 2, 4]
        assert await ordinals([], None, -1) == []


async def test_cancelling_takes_what_does_not_run_page_by_page(store: PostgresStore) -> None:
    await fill(
        store,
        request(),
        shard(0),
        shard(1, state=ShardState.ASSIGNED, attempt_id="a-1"),
        shard(2, state=ShardState.FAILED),
        shard(3),
        done(4),
    )
    async with store.transaction() as tx:
        assert await tx.shards.cancel_pending("r-1", LATER, 2) == 2
        assert (await tx.shards.counts("r-1"))[ShardState.PENDING] == 1
        assert await tx.shards.cancel_pending("r-1", LATER, 2) == 1
        assert await tx.shards.cancel_pending("r-1", LATER, 2) == 0
    assert await read(store) == shard(0, state=ShardState.CANCELLED, reason="cancelled", updated_at=LATER)
    assert (await read(store, 1)).state is ShardState.ASSIGNED
    assert await read(store, 4) == done(4)


@pytest.mark.parametrize("values", [{}, {"colour": "red"}, {"state": "failed"}])
async def test_a_change_of_no_known_column_is_a_bug(store: PostgresStore, values: dict[str, object]) -> None:
    change = ShardChange(request_id="r-1", shard=0, expected=frozenset({ShardState.PENDING}), values=values)
    async with store.transaction() as tx:
        with pytest.raises(AssertionError):
            await tx.shards.apply(change)
