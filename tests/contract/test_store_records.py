"""The smaller aggregates in the real store: queues, the outbox, totals, operators' orders and their audit."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from controller.core.records import Circuit, Operation, OperationKind, OutboxEvent, QueueState, TotalKey
from controller.store import PostgresStore
from tests.builders import NOW, ago, request
from tests.postgres import until_one_waits_for_a_lock
from tests.store_rows import fill

LATER = NOW + timedelta(seconds=60)


def event(number: int, **changes: Any) -> OutboxEvent:
    values = {"id": f"e-{number}", "request_id": "r-1", "type": "status.accepted", "body": "{}", "created_at": NOW}
    return OutboxEvent(**{**values, **changes})


def order(number: int, **changes: Any) -> Operation:
    values: dict[str, Any] = {
        "id": f"o-{number}",
        "kind": OperationKind.REQUEUE_SHARDS,
        "request_id": "r-1",
        "selector": {"outcome": "crashed"},
        "actor": "ann",
        "reason": "fixed",
        "created_at": NOW,
    }
    return Operation(**{**values, **changes})


def ids(found: Any) -> list[str]:
    return [one.id for one in found]


async def test_a_queue_s_state_is_put_whole(store: PostgresStore) -> None:
    full = QueueState(
        name="g6e",
        circuit=Circuit.OPEN,
        circuit_changed_at=NOW,
        retry_at=LATER,
        cooldown_seconds=0.5,
        blocked_reason="CAPACITY:X",
        blocked_since=NOW,
        paused=True,
    )
    async with store.transaction() as tx:
        await tx.queues.put(full)
        await tx.queues.put(QueueState(name="g5"))
        assert await tx.queues.all() == {"g5": QueueState(name="g5"), "g6e": full}
        await tx.queues.put(QueueState(name="g6e"))
        assert (await tx.queues.all())["g6e"] == QueueState(name="g6e")


async def test_a_blocked_reason_keeps_its_first_time_while_it_stays(store: PostgresStore) -> None:
    async with store.transaction() as tx:

        async def note(reason: str | None, now: Any) -> tuple[str | None, Any]:
            await tx.queues.note_blocked("g6e", reason, now)
            state = (await tx.queues.all())["g6e"]
            return state.blocked_reason, state.blocked_since

        assert await note("one", NOW) == ("one", NOW)
        assert await note("one", LATER) == ("one", NOW)
        assert await note("two", LATER) == ("two", LATER)
        assert await note(None, LATER) == (None, None)
        assert await note("two", NOW) == ("two", NOW)


async def test_noting_a_reason_leaves_the_rest_of_the_state(store: PostgresStore) -> None:
    before = QueueState(name="g6e", circuit=Circuit.HALF_OPEN, cooldown_seconds=60, paused=True)
    async with store.transaction() as tx:
        await tx.queues.put(before)
        await tx.queues.note_blocked("g6e", None, NOW)
        assert (await tx.queues.all())["g6e"] == before


async def test_events_are_claimed_oldest_first_until_they_are_sent(store: PostgresStore) -> None:
    async with store.transaction() as tx:
        for new in (event(2), event(1), event(3, created_at=ago(5))):
            await tx.events.add(new)
        assert ids(await tx.events.claim_unsent("one", NOW, LATER, 2)) == ["e-3", "e-1"]
        assert await tx.events.claim_unsent("two", NOW, LATER, 9) == [event(2)]
        await tx.events.sent(["e-3"], NOW)
        assert ids(await tx.events.claim_unsent("two", LATER, LATER + timedelta(1), 9)) == ["e-1", "e-2"]


async def test_two_senders_at_once_share_the_events(store: PostgresStore) -> None:
    async with store.transaction() as tx:
        for number in range(5):
            await tx.events.add(event(number))
    async with store.transaction() as one, store.transaction() as two:
        first = await one.events.claim_unsent("one", NOW, LATER, 3)
        second = await two.events.claim_unsent("two", NOW, LATER, 3)
    assert (ids(first), ids(second)) == (["e-0", "e-1", "e-2"], ["e-3", "e-4"])


async def test_events_of_a_request_are_newest_first(store: PostgresStore) -> None:
    async with store.transaction() as tx:
        for new in (event(1), event(2, created_at=ago(5)), event(3), event(4, request_id="r-2")):
            await tx.events.add(new)
        assert ids(await tx.events.of_request("r-1", 9)) == ["e-3", "e-1", "e-2"]
        assert ids(await tx.events.of_request("r-1", 1)) == ["e-3"]


async def test_only_what_was_sent_long_ago_is_pruned(store: PostgresStore) -> None:
    async with store.transaction() as tx:
        for number in range(5):
            await tx.events.add(event(number))
        await tx.events.sent(["e-0", "e-1", "e-2"], ago(60))
        await tx.events.sent(["e-0", "e-3"], NOW)
        assert await tx.events.prune(NOW, 2) == 2
        assert await tx.events.prune(NOW, 9) == 1
        assert await tx.events.prune(NOW, 9) == 0
        assert ids(await tx.events.of_request("r-1", 9)) == ["e-4", "e-3"]


def assets(queue: str = "g6e") -> TotalKey:
    return TotalKey(name="assets", model="tiny@1", queue=queue)


async def test_totals_add_up_within_and_across_transactions(store: PostgresStore) -> None:
    """I9, the part of the store: a sum is kept with the transaction that adds to it, or not at all."""
    async with store.transaction() as tx:
        await tx.totals.add({assets(): 2, TotalKey(name="attempts", label="crashed"): 1})
        await tx.totals.add({assets(): 0.5, assets("g5"): 1})
        assert (await tx.totals.all())[assets()] == 2.5
        await tx.totals.add({assets(): 1})
    async with store.transaction() as tx:
        await tx.totals.add({})
        await tx.totals.add({assets(): 1})
    async with store.transaction() as tx:
        assert await tx.totals.all() == {
            assets("g5"): 1.0,
            assets(): 4.5,
            TotalKey(name="attempts", label="crashed"): 1.0,
        }


async def test_totals_of_a_transaction_that_failed_count_nothing(store: PostgresStore) -> None:
    try:
        async with store.transaction() as tx:
            await tx.totals.add({assets(): 2})
            raise LookupError
    except LookupError:
        pass
    async with store.transaction() as tx:
        assert await tx.totals.all() == {}


async def test_totals_added_in_any_order_do_not_deadlock(store: PostgresStore) -> None:
    keys = [assets(f"g{number}") for number in range(4)]

    async def add(order: list[TotalKey]) -> None:
        async with store.transaction() as tx:
            for key in order:
                await tx.totals.add({key: 1})

    await asyncio.gather(*(add(keys if number % 2 else keys[::-1]) for number in range(20)))
    async with store.transaction() as tx:
        assert set((await tx.totals.all()).values()) == {20.0}


async def test_totals_of_two_transactions_at_once_are_both_counted(store: PostgresStore, database_url: str) -> None:
    async def add() -> None:
        async with store.transaction() as tx:
            await tx.totals.add({assets(): 1})

    async with store.transaction() as one:
        await one.totals.add({assets(): 1})
        assert await one.totals.all() == {assets(): 1.0}
        second = asyncio.create_task(add())
        await until_one_waits_for_a_lock(database_url, second)
    await second
    async with store.transaction() as tx:
        assert await tx.totals.all() == {assets(): 2.0}


async def test_orders_are_carried_out_once_oldest_first(store: PostgresStore) -> None:
    await fill(store, request())
    async with store.transaction() as tx:
        for new in (order(1), order(2), order(3, created_at=ago(5))):
            await tx.operations.insert(new)
        assert await tx.operations.get("o-1") == order(1)
        assert await tx.operations.get("o-9") is None
        assert ids(await tx.operations.pending(2)) == ["o-3", "o-1"]
        assert await tx.operations.finish("o-1", state="done", moved=5, skipped=1, now=LATER)
        assert not await tx.operations.finish("o-1", state="refused", moved=0, skipped=0, now=LATER)
        assert await tx.operations.get("o-1") == order(1, state="done", moved=5, skipped=1, finished_at=LATER)
        assert ids(await tx.operations.pending(9)) == ["o-3", "o-2"]


async def test_the_audit_trail_of_a_target_is_newest_first(store: PostgresStore) -> None:
    line: dict[str, Any] = {"actor": "ann", "action": "cancel", "reason": "cost", "detail": {"shards": 3}}
    async with store.transaction() as tx:
        await tx.operations.audit(id="1", at=NOW, target="r-1", **line)
        await tx.operations.audit(id="2", at=LATER, target="r-1", **line)
        await tx.operations.audit(id="3", at=NOW, target="r-2", **line)
        trail = await tx.operations.audit_of("r-1", 9)
        assert await tx.operations.audit_of("r-1", 1) == trail[:1]
    assert trail == [{"id": "2", "at": LATER, "target": "r-1", **line}, {"id": "1", "at": NOW, "target": "r-1", **line}]
