"""Two transactions at once: what one has not committed yet, the other must wait for, or must not undo.

Found by reading, not by users; the simulation is too seldom there at the right moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from controller.core import transitions
from controller.core.admission import request_id
from controller.core.records import Operation, OperationKind, Request
from controller.ports import Store, Transaction
from schema.layout import plan_key
from schema.messages import MessageType, RequestCancel, encode
from schema.plan import Plan, PlannedShard
from schema.states import JobKind, RequestState, ShardState
from tests import builders
from tests.builders import NOW
from tests.reports.site import Site
from tests.store_rows import fill

#: How long the other transaction stays open: time enough for a step that does not wait for it.
OPEN_SECONDS = 0.5
Work = Callable[[Transaction], Awaitable[None]]


class Overlapped:
    """A store where another replica's transaction works just before the `number`-th, and commits a while later."""

    def __init__(self, store: Store, number: int, work: Work) -> None:
        self._store, self._left, self._work = store, number, work
        self._worked = asyncio.Event()
        self.other: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        self._left -= 1
        if self._left == 0:
            self.other = asyncio.create_task(self._overlap())
            await self._worked.wait()
        async with self._store.transaction() as tx:
            yield tx

    async def _overlap(self) -> None:
        async with self._store.transaction() as tx:
            await self._work(tx)
            self._worked.set()
            await asyncio.sleep(OPEN_SECONDS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def step_beside(site: Site, loop: str, number: int, work: Work) -> None:
    """One step of a loop, with `work` in an open transaction from just before the step's `number`-th on."""
    plain = site.store
    overlapped = site.store = Overlapped(plain, number, work)
    await site.start().step(loop)
    site.store = plain
    assert overlapped.other is not None, "the step has fewer transactions"
    await overlapped.other


async def locked(tx: Transaction, name: str = "r-1") -> Request:
    request = await tx.requests.get(name, lock=True)
    assert request is not None
    return request


async def move(tx: Transaction, *states: RequestState, name: str = "r-1") -> None:
    for state in states:
        assert await tx.requests.apply(transitions.moved(await locked(tx, name), state, NOW))


async def cancel(tx: Transaction) -> None:
    await move(tx, RequestState.CANCELLING, RequestState.CANCELLED)


async def test_what_was_just_requeued_is_not_left_in_a_request_that_needs_attention(site: Site) -> None:
    await fill(site.store, builders.request(shards=1, assets=40), builders.shard(state=ShardState.FAILED))

    async def requeue(tx: Transaction) -> None:
        await locked(tx)
        assert await tx.shards.apply(transitions.requeued(builders.shard(), NOW))

    await step_beside(site, "finish", 2, requeue)
    assert (await site.request()).state is RequestState.RUNNING
    await site.check()


async def test_a_requeue_opens_a_request_that_has_just_come_to_need_attention(site: Site) -> None:
    order = Operation(
        id="o-1",
        kind=OperationKind.REQUEUE_SHARDS,
        request_id="r-1",
        selector={},
        actor="ann",
        reason="by hand",
        created_at=NOW,
    )
    await fill(site.store, builders.request(shards=1, assets=40), builders.shard(state=ShardState.FAILED))
    async with site.store.transaction() as tx:
        await tx.operations.insert(order)
    await step_beside(site, "operations", 3, lambda tx: move(tx, RequestState.ATTENTION))
    assert await site.states() == {ShardState.PENDING: 1}
    assert (await site.request()).state is RequestState.RUNNING


async def test_a_step_of_a_loop_in_between_does_not_lose_a_cancel(site: Site) -> None:
    asked = RequestCancel(tenant="stock", idempotency_key="k", reason="wrong model")
    name = request_id(asked.tenant, asked.idempotency_key)
    await fill(site.store, builders.request(id=name, state=RequestState.ACCEPTED, output_uri=None))
    site.requests.put(encode(MessageType.REQUEST_CANCEL, asked, event_id="e-1", source="upstream", time=NOW))
    await step_beside(site, "intake", 1, lambda tx: move(tx, RequestState.PREPARING, name=name))
    assert (await site.request(name)).state is RequestState.CANCELLING


async def test_no_index_job_is_written_for_a_request_that_was_just_cancelled(site: Site) -> None:
    done = builders.shard(state=ShardState.SUCCEEDED, marker_digest="m", ok=40, bad=0)
    await fill(site.store, builders.request(body={"index": "photos"}), done)
    await step_beside(site, "index", 3, cancel)
    assert await jobs_of(site, JobKind.INDEX) == 0


async def test_no_preparation_is_written_for_a_request_that_was_just_cancelled(site: Site) -> None:
    await fill(site.store, builders.request(state=RequestState.PREPARING, output_uri=None))
    await step_beside(site, "plan", 2, cancel)
    assert await jobs_of(site, JobKind.PREPARE) == 0


async def test_no_shards_are_written_for_a_request_that_was_just_cancelled(site: Site) -> None:
    planned = PlannedShard(shard=0, key="shards/0", sha256="0" * 64, assets=40, bytes=400, chunks=4)
    plan = Plan(
        request_id="r-1",
        attempt_id="a-0",
        bucket="photos",
        model="tiny@1",
        preprocessing_digest="p",
        chunk_assets=10,
        assets=40,
        bytes=400,
        shards=[planned],
    )
    site.objects.content[site.replica.context.control(plan_key("r-1"))] = plan.to_bytes()
    await fill(site.store, builders.request(state=RequestState.PREPARING, output_uri=None))
    await step_beside(site, "plan", 2, cancel)
    assert await site.states() == {}


async def jobs_of(site: Site, kind: JobKind) -> int:
    async with site.store.transaction() as tx:
        assert await tx.jobs.live_of_request("r-1") == len(await tx.attempts.of_kind("r-1", kind))
        return len(await tx.attempts.of_kind("r-1", kind))
