"""Leadership in the real store: renewal, takeover, and the fence that a deposed leader runs into."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from controller.core.records import Lease, QueueState
from controller.ports import Fenced
from controller.store import PostgresStore
from tests.builders import NOW
from tests.postgres import until_one_waits_for_a_lock

LEADER = "leader"
SECONDS = 15.0


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


async def acquire(store: PostgresStore, holder: str, seconds: float) -> Lease | None:
    async with store.transaction() as tx:
        return await tx.leases.acquire(LEADER, holder, after(seconds), SECONDS)


async def fence(store: PostgresStore, lease: Lease) -> None:
    async with store.transaction() as tx:
        await tx.leases.fence(LEADER, lease)


async def test_one_leads_and_renews_under_the_same_epoch(store: PostgresStore) -> None:
    assert await acquire(store, "one", 0) == Lease(holder="one", epoch=1, until=after(15))
    assert await acquire(store, "two", 14.9) is None
    assert await acquire(store, "one", 14.9) == Lease(holder="one", epoch=1, until=after(29.9))
    assert await acquire(store, "two", 15) is None


async def test_a_lease_that_ran_out_is_taken_over_under_a_new_epoch(store: PostgresStore) -> None:
    await acquire(store, "one", 0)
    assert await acquire(store, "two", 15) == Lease(holder="two", epoch=2, until=after(30))
    assert await acquire(store, "one", 16) is None
    assert await acquire(store, "one", 30) == Lease(holder="one", epoch=3, until=after(45))


async def test_a_lease_that_ran_out_unnoticed_is_renewed(store: PostgresStore) -> None:
    await acquire(store, "one", 0)
    assert await acquire(store, "one", 60) == Lease(holder="one", epoch=1, until=after(75))


async def test_a_released_lease_is_free_at_once(store: PostgresStore) -> None:
    await acquire(store, "one", 0)
    async with store.transaction() as tx:
        await tx.leases.release(LEADER, "two", after(1))
    assert await acquire(store, "two", 1) is None
    async with store.transaction() as tx:
        await tx.leases.release(LEADER, "one", after(1))
    assert await acquire(store, "two", 1) == Lease(holder="two", epoch=2, until=after(16))


async def test_leases_of_other_names_are_others(store: PostgresStore) -> None:
    await acquire(store, "one", 0)
    async with store.transaction() as tx:
        assert await tx.leases.acquire("another", "two", NOW, SECONDS) == Lease(holder="two", epoch=1, until=after(15))


async def test_the_fence_lets_only_the_leader_pass(store: PostgresStore) -> None:
    first = await acquire(store, "one", 0)
    assert first is not None
    await fence(store, first)
    second = await acquire(store, "two", 15)
    assert second is not None
    await fence(store, second)
    with pytest.raises(Fenced):
        await fence(store, first)
    with pytest.raises(Fenced):
        await fence(store, Lease(holder="one", epoch=2, until=after(30)))
    async with store.transaction() as tx:
        with pytest.raises(Fenced):
            await tx.leases.fence("another", second)


async def test_a_deposed_leader_writes_nothing(store: PostgresStore) -> None:
    first = await acquire(store, "one", 0)
    assert first is not None
    await acquire(store, "two", 15)

    async def write() -> None:
        async with store.transaction() as tx:
            await tx.queues.put(QueueState(name="g6e"))
            await tx.leases.fence(LEADER, first)

    with pytest.raises(Fenced):
        await write()
    async with store.transaction() as tx:
        assert await tx.queues.all() == {}


async def test_a_takeover_waits_for_the_leader_s_transaction(store: PostgresStore, database_url: str) -> None:
    first = await acquire(store, "one", 0)
    assert first is not None
    async with store.transaction() as tx:
        await tx.leases.fence(LEADER, first)
        takeover = asyncio.create_task(acquire(store, "two", 15))
        await until_one_waits_for_a_lock(database_url, takeover)
        await tx.queues.put(QueueState(name="g6e"))
    taken = await takeover
    assert taken == Lease(holder="two", epoch=2, until=after(30))
    async with store.transaction() as tx:
        assert list(await tx.queues.all()) == ["g6e"]


async def test_a_fence_waits_for_a_takeover_under_way(store: PostgresStore, database_url: str) -> None:
    first = await acquire(store, "one", 0)
    assert first is not None
    async with store.transaction() as tx:
        await tx.leases.acquire(LEADER, "two", after(15), SECONDS)
        late = asyncio.create_task(fence(store, first))
        await until_one_waits_for_a_lock(database_url, late)
    with pytest.raises(Fenced):
        await late


async def test_of_two_that_start_at_once_one_leads(store: PostgresStore) -> None:
    leases = await asyncio.gather(*(acquire(store, f"replica-{number}", 0) for number in range(4)))
    assert [lease.epoch for lease in leases if lease is not None] == [1]
