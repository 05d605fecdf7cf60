"""Reports about operators and deploys: cancel, stop, requeue."""

from __future__ import annotations

import asyncio

from controller.core.records import OperationKind
from controller.ports import Ambiguous, SubmitSpec, Throttled
from schema.exit_codes import ExitCode
from schema.states import AttemptState, Outcome, RequestState, ShardState, StopIntent
from tests.reports.site import Site, queue, with_settings


async def test_03_a_cancel_leaves_no_orphan_through_throttling_and_a_restart(site: Site) -> None:
    site = with_settings(site, placement={"array_max": 8}, gpu_queues=[queue("g6e", backlog=999)])
    await site.running(shards=40)
    await site.step("dispatch")
    assert len(site.batch.jobs) == 5
    site.batch.capacity = {"g6e": 10}
    await site.rounds(1)
    await site.order(OperationKind.CANCEL_REQUEST)
    site.batch.faults.add("terminate", *[None, None, Throttled("429")] * 6)
    await site.rounds(3)
    assert (await site.request()).state is RequestState.CANCELLING
    assert site.batch.alive() != []
    site.start()
    await site.rounds(12)
    assert site.batch.alive() == []
    assert (await site.request()).state is RequestState.CANCELLED
    assert await site.states() == {ShardState.CANCELLED: 40}
    assert len(site.status.of_type("status.cancelled")) == 1
    await site.check()


async def test_04_stopping_does_not_wait_for_submitting(site: Site) -> None:
    await site.running(shards=2)
    [*children] = await site.again()
    site.batch.start(*children)
    await site.rounds(1)
    await site.running(shards=1, id="r-2", idempotency_key="2")
    stuck = asyncio.Event()

    async def waiting(spec: SubmitSpec) -> str:
        await stuck.wait()
        return site.batch.take(spec)

    site.batch.submit = waiting  # type: ignore[method-assign]
    dispatch = asyncio.create_task(site.replica.step("dispatch"))
    await asyncio.sleep(0)
    await site.replica.step("operations")
    async with site.store.transaction() as tx:
        await tx.attempts.intend_stop_request("r-1", StopIntent.CANCEL)
    moment = site.clock.seconds
    await site.replica.step("reconcile")
    assert len(site.batch.called("terminate")) == 2
    assert site.clock.seconds - moment < 1
    assert not dispatch.done()
    stuck.set()
    await dispatch


async def test_12_a_deploy_stops_nothing_and_the_next_process_takes_over(site: Site) -> None:
    site = with_settings(site, gpu_queues=[queue("g6e", backlog=999)])
    await site.running(shards=300)
    children = await site.again()
    site.batch.start(*children)
    await site.rounds(3)
    site.clock.seconds += 40
    site.start()
    await site.rounds(3)
    assert site.batch.called("cancel", "terminate") == []
    assert len(site.batch.jobs) == 1
    assert len(site.batch.alive()) == 300
    await site.finish(*children[:3])
    assert await site.states() == {ShardState.ASSIGNED: 297, ShardState.SUCCEEDED: 3}


async def test_18_a_cancel_in_the_middle_of_a_submission_leaks_no_job(site: Site) -> None:
    await site.running(shards=2)
    real = site.batch.submit

    async def late(spec: SubmitSpec) -> str:
        await real(spec)
        raise Ambiguous("read timeout")

    site.batch.submit = late  # type: ignore[method-assign]
    site.batch.listed = False
    await site.step("dispatch")
    await site.order(OperationKind.CANCEL_REQUEST)
    await site.rounds(2)
    assert (await site.request()).state is RequestState.CANCELLING
    assert len(site.batch.alive()) == 2
    site.batch.list_all()
    await site.rounds(6)
    assert site.batch.alive() == []
    assert (await site.request()).state is RequestState.CANCELLED


async def test_38_a_requeue_opens_fresh_budgets_and_tells_what_it_moved(site: Site) -> None:
    site = with_settings(site, gpu_queues=[queue("g6e", backlog=999)])
    await site.running(shards=50)
    for child in await site.again():
        site.batch.start(child)
        await site.report(child, ExitCode.BAD_DATA, error="bad")
        site.batch.end(child, 66)
    await site.rounds(3)
    assert await site.states() == {ShardState.FAILED: 50}
    assert (await site.request()).state is RequestState.ATTENTION
    first = await site.order(OperationKind.REQUEUE_SHARDS, shards=list(range(8)))
    assert (first.moved, first.skipped) == (8, 0)
    done = await site.order(OperationKind.REQUEUE_SHARDS, shards=list(range(50)))
    assert (done.state, done.moved, done.skipped) == ("done", 42, 8)
    async with site.store.transaction() as tx:
        left = await tx.shards.search("r-1", states=[ShardState.FAILED], outcome=None, after=-1, limit=99)
        audit = await tx.operations.audit_of("r-1", 9)
    assert list(left) == []
    assert [(entry["detail"]["moved"], entry["detail"]["skipped"]) for entry in audit] == [(42, 8), (8, 0)]
    assert {shard.generation for shard in await site.shards()} == {2}
    [child, *_] = await site.again()
    for _ in range(3):
        # The first generation's failure no longer counts.
        await site.fail(child, 1)
        assert (await site.attempt_of(child)).state is AttemptState.ENDED
        [child] = await site.again()
    number = (await site.attempt_of(child)).shard or 0
    assert await site.outcomes(number) == [Outcome.BAD_DATA, *[Outcome.CRASHED] * 3, None]
