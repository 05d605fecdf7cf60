"""Reports about looking: what Batch forgets, withholds, repeats and reorders, and what silence proves."""

from __future__ import annotations

import json

import pytest

from controller.ports import Unavailable
from schema.exit_codes import ExitCode
from schema.states import AttemptState, Outcome, ShardState, StopIntent
from tests.reports.site import Site, queue, with_settings


async def test_02_a_job_that_batch_forgot_is_lost_after_misses_and_time(site: Site) -> None:
    await site.running()
    [child] = await site.again()
    site.batch.start(child)
    await site.rounds(4)
    job = site.batch.jobs[child.id]
    site.batch.forget(child.id)
    await site.rounds(10, seconds=61)
    assert await site.outcomes() == [None]
    await site.rounds(6, seconds=61)
    [first, second] = await site.attempts()
    assert (first.outcome, second.outcome) == (Outcome.LOST, None)
    # It had only been forgotten: its commit arrives, and counts once.
    site.batch.jobs[child.id] = job
    await site.commit(child)
    await site.report(child, ExitCode.OK)
    await site.rounds(1)
    [again] = [other for other in site.batch.alive() if other is not child]
    await site.fail(again, 0)
    assert await site.states() == {ShardState.SUCCEEDED: 1}
    assert await site.outcomes() == [Outcome.LOST, Outcome.SUCCEEDED]
    assert len(await site.attempts()) == 2
    await site.check()


async def test_09_what_ended_while_nobody_listened_is_not_run_again(site: Site) -> None:
    site = with_settings(site, gpu_queues=[queue("g6e", backlog=999)])
    await site.running(shards=60)
    children = await site.again()
    site.batch.start(*children)
    await site.rounds(1)
    for child in children[:50]:
        await site.commit(child)
        await site.report(child, ExitCode.OK)
        site.batch.end(child, 0)
    lost = [site.events.waiting.pop() for _ in range(30)] + [site.reports.waiting.pop() for _ in range(30)]
    assert len(lost) == 60
    site.clock.seconds += 1800
    site.start()
    await site.rounds(6)
    assert await site.states() == {ShardState.SUCCEEDED: 50, ShardState.ASSIGNED: 10}
    assert len(site.batch.jobs) == 1


async def test_14_every_state_of_batch_has_a_meaning_and_a_new_one_is_waited_out(site: Site) -> None:
    await site.running(shards=8)
    states = ["SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING", "HIBERNATING", "SUCCEEDED", "FAILED"]
    children = await site.again()
    for child, state in zip(children, states, strict=True):
        child.status = state
        site.batch.tell(child)
    await site.step("batch_events")
    site.clock.seconds += 61
    await site.step("reconcile")
    found = [(a.state, a.outcome) for a in [await site.attempt_of(child) for child in children]]
    queued, running = (AttemptState.QUEUED, None), (AttemptState.RUNNING, None)
    assert found[:6] == [queued, queued, queued, queued, running, queued]
    assert found[6:] == [(AttemptState.ENDED, Outcome.NO_COMMIT), (AttemptState.ENDED, Outcome.START_FAILED)]
    assert (await site.attempt_of(children[5])).batch_status == "HIBERNATING"
    children[5].status = "RUNNABLE"
    await site.rounds(2)
    await site.finish(children[5])
    assert (await site.attempt_of(children[5])).outcome is Outcome.SUCCEEDED


@pytest.mark.long
async def test_16_looking_takes_a_bounded_number_of_calls(site: Site) -> None:
    site = with_settings(site, gpu_queues=[queue("g6e", backlog=600)])
    await site.running(shards=450)
    site.batch.capacity = {"g6e": 600}
    await site.step("dispatch")
    site.batch.tick()
    site.events.waiting.clear()
    site.batch.calls.clear()
    for _ in range(4):
        # One check period, and more steps than pages.
        site.clock.seconds += site.settings.reconcile.check_seconds
        for _ in range(7):
            await site.step("reconcile")
    described = site.batch.called("describe")
    assert max(len(ids) for ids in described) <= 100
    assert len(described) <= 4 * 5
    assert len({name for ids in described for name in ids}) == 450


async def test_17_calls_that_fail_say_nothing_about_the_work(site: Site) -> None:
    site = with_settings(site, reconcile={"lost_seconds": 120, "lost_misses": 1})
    await site.running(shards=4)
    children = await site.again()
    site.batch.start(*children)
    await site.rounds(2)
    site.batch.faults.always["describe"] = Unavailable("read timeout")
    await site.rounds(10, seconds=61)
    assert len(site.replica.errors) >= 10
    site.batch.faults.always.clear()
    # The clock is fresh: the first look that does not show a job is no verdict yet.
    hidden = site.batch.jobs.pop("b-1")
    await site.rounds(1, seconds=61)
    site.batch.jobs["b-1"] = hidden
    await site.rounds(2, seconds=61)
    assert {tuple(await site.outcomes(n)) for n in range(4)} == {(None,)}
    assert len(site.batch.jobs) == 1


async def test_25_an_outage_of_ours_makes_nothing_lost(site: Site) -> None:
    await site.running(shards=6)
    children = await site.again()
    site.batch.start(*children)
    await site.rounds(3)
    # Asleep for three times the deadline; meanwhile one fails, and Batch's memory of the others comes back slowly.
    site.batch.end(children[0], 1)
    site.events.waiting.clear()
    site.clock.seconds += 2700
    site.start()
    rest, site.batch.jobs["b-1"].children = children[1:], children[:1]
    await site.rounds(4, seconds=61)
    site.batch.jobs["b-1"].children = children
    await site.rounds(3, seconds=61)
    assert [(await site.attempt_of(child)).outcome for child in rest] == [None] * 5
    assert (await site.attempt_of(children[0])).outcome is Outcome.CRASHED
    assert [job.spec.size for job in site.batch.jobs.values()] == [6, 1]


async def test_27_a_cancel_that_comes_too_late_stops_and_doubles_nothing(site: Site) -> None:
    await site.running(shards=2)
    children = await site.again()
    async with site.store.transaction() as tx:
        await tx.attempts.intend_stop_queue("g6e", StopIntent.FALL_BACK, 10)
    children[0].status = "STARTING"
    await site.step("reconcile")
    assert len(site.batch.called("cancel")) == 2
    await site.rounds(2, seconds=61)
    assert [(await site.attempt_of(child)).outcome for child in children] == [None, Outcome.NO_CAPACITY]
    site.batch.start(children[0])
    await site.rounds(3, seconds=61)
    stays = await site.attempt_of(children[0])
    assert (stays.state, stays.queue) == (AttemptState.RUNNING, "g6e")
    await site.finish(children[0])
    assert len(await site.attempts(stays.shard or 0)) == 1
    assert len(site.batch.called("terminate")) == 0


async def test_35_events_in_any_order_and_number_end_a_shard_once(site: Site) -> None:
    await site.running()
    [child] = await site.again()
    site.batch.start(child)
    await site.commit(child)
    site.events.waiting.clear()
    site.batch.end(child, 0)
    for status in ("SUCCEEDED", "RUNNING", "SUCCEEDED", "RUNNING", "RUNNABLE", "RUNNING"):
        site.batch.tell(child, status=status)
    assert len({json.dumps(d.body) for d in site.events.waiting}) == 3
    site.batch.forget(child.id)
    await site.step("batch_events")
    assert (await site.attempt_of(child)).batch_status == "SUCCEEDED"
    await site.rounds(3, seconds=30)
    assert await site.states() == {ShardState.SUCCEEDED: 1}
    assert await site.outcomes() == [Outcome.SUCCEEDED]
    async with site.store.transaction() as tx:
        totals = await tx.totals.all()
    assert [value for key, value in totals.items() if key.name == "attempts"] == [1.0]
