"""Reports about capacity: queues that run dry, say so or say nothing, and the way back."""

from __future__ import annotations

import pytest

from controller.core.records import Circuit, QueueState
from controller.ports import Refused
from schema.states import AttemptState, Outcome, RequestState, ShardState
from tests.reports.site import Site, queue, with_settings

MISCONFIGURED = "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - The job resource requirement is higher than can be met"
UNDETERMINED = "UNDETERMINED - Batch job is blocked, root cause is undetermined."
DRY = "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - Service cannot fulfill the capacity requested"


async def circuit(site: Site, name: str = "g6e") -> Circuit:
    async with site.store.transaction() as tx:
        return (await tx.queues.all()).get(name, QueueState(name=name)).circuit


async def queues_until(site: Site, name: str, rounds: int = 80) -> int:
    """Rounds of half a minute until something is submitted to the queue."""
    for count in range(rounds):
        if site.batch.children(name):
            return count
        await site.rounds(1)
    raise AssertionError(f"nothing went to {name} in {rounds} rounds")


async def test_01_a_reason_while_the_environment_scales_up_is_no_verdict(site: Site) -> None:
    await site.running(shards=2)
    site.batch.capacity = {"g6e": 0, "g6": 9}
    await site.rounds(1)
    site.batch.alive("g6e")[0].status_reason = MISCONFIGURED
    await site.rounds(3)
    site.batch.capacity["g6e"] = 2
    await site.rounds(3)
    assert [child.status for child in site.batch.children()] == ["RUNNING", "RUNNING"]
    assert site.batch.called("cancel", "terminate") == []
    assert await circuit(site) is Circuit.CLOSED
    assert await site.outcomes() == [None]


async def test_01_a_reason_that_stands_sends_the_work_elsewhere_and_is_kept(site: Site) -> None:
    await site.running(shards=2)
    site.batch.capacity = {"g6e": 0, "g6": 9}
    await site.rounds(1)
    head = site.batch.alive("g6e")[0]
    head.status_reason = MISCONFIGURED
    await queues_until(site, "g6")
    attempt = await site.attempt_of(head)
    assert attempt.outcome is Outcome.NO_CAPACITY
    # CancelJob overwrites the reason that Batch gave.
    assert MISCONFIGURED in (attempt.reason or "")
    assert "fall_back" in (attempt.reason or "")
    assert (await site.shard()).state is ShardState.ASSIGNED


async def test_08_a_shard_that_is_reclaimed_again_has_a_row_for_each_run_and_goes_elsewhere(site: Site) -> None:
    await site.running()
    for _ in range(2):
        [child] = await site.again()
        assert child.spec.queue == "g6e"
        site.batch.start(child)
        site.clock.seconds += 100
        await site.fail(child, reason="Host EC2 (instance i-0abc) terminated.")
    # Batch repeats nothing by itself: each run is a job, a row and seconds of ours.
    assert [call["retryStrategy"] for call in site.batch.parameters] == [{"attempts": 1}] * 2
    assert await site.outcomes() == [Outcome.SPOT_RECLAIMED] * 2
    async with site.store.transaction() as tx:
        seconds = await tx.measures.attempt_seconds("r-1")
    assert {verdict for *_, verdict in seconds} == {Outcome.SPOT_RECLAIMED}
    assert sum(seconds.values()) >= 200
    [child] = await site.again()
    assert child.spec.queue == "g6"


async def test_13_a_head_without_a_cause_is_a_dry_queue_in_the_end(site: Site) -> None:
    await site.running(shards=3)
    site.batch.capacity = {"g6e": 0, "g6": 0}
    await site.rounds(1)
    site.batch.alive("g6e")[0].status_reason = UNDETERMINED
    await site.rounds(1)
    attempts = await site.attempts()
    assert [(attempt.state, attempt.started_at) for attempt in attempts] == [(AttemptState.QUEUED, None)]
    # Sooner than by the lack of starts alone.
    assert await queues_until(site, "g6") * 30 < site.settings.placement.start_seconds - 120
    assert await circuit(site) is not Circuit.CLOSED
    assert (await site.outcomes())[0] is Outcome.NO_CAPACITY


async def test_19_what_ran_dry_is_left_out_of_the_next_choice(site: Site) -> None:
    await site.running(shards=4)
    site.batch.capacity = {"g6e": 0, "g6": 2}
    await queues_until(site, "g6")
    sent = len(site.batch.children("g6e"))
    await site.running(shards=3, id="r-2", idempotency_key="2")
    assert await circuit(site) is Circuit.OPEN
    while await circuit(site) is Circuit.OPEN:
        assert len(site.batch.children("g6e")) == sent
        await site.rounds(1)
    assert len(site.batch.children("g6")) >= 4


async def test_21_half_a_day_without_capacity_costs_nothing_and_ends_nothing(site: Site) -> None:
    await site.running(shards=3)
    site.batch.capacity = {"g6e": 0, "g6": 0, "g5": 0}
    await site.rounds(48, seconds=900)
    request = await site.request()
    assert (request.state, request.paused) == (RequestState.RUNNING, False)
    assert await site.states() == {ShardState.ASSIGNED: 3} or (await site.states())[ShardState.PENDING]
    assert {o for n in range(3) for o in await site.outcomes(n)} <= {None, Outcome.NO_CAPACITY}
    site.batch.capacity = {"g6e": 9, "g6": 9, "g5": 9}
    await site.rounds(10, seconds=900)
    await site.finish(*site.batch.alive())
    await site.rounds(2)
    assert await site.states() == {ShardState.SUCCEEDED: 3}


@pytest.mark.long
async def test_22_changing_work_does_not_hide_that_a_queue_is_dry(site: Site) -> None:
    site.batch.capacity = {"g6e": 0, "g6": 99}
    await site.running()
    for number in range(2, 60):
        await site.running(id=f"r-{number}", idempotency_key=str(number))
        await site.rounds(1)
        if site.batch.children("g6"):
            break
    assert number < 50
    async with site.store.transaction() as tx:
        state = (await tx.queues.all())["g6e"]
    # The verdict is the queue's, and it runs out.
    assert state.retry_at is not None
    assert state.retry_at > site.clock.now()


async def test_23_a_queue_that_takes_nothing_is_passed_over(site: Site) -> None:
    await site.running(shards=2)
    site.batch.faults.add("submit", Refused("ClientException", "JobQueue g6e is DISABLED"))
    await site.step("dispatch")
    assert await site.outcomes() == [Outcome.MISCONFIGURED]
    children = await site.again()
    assert {child.spec.queue for child in children} == {"g6"}
    site.batch.start(*children)
    await site.step("batch_events")
    await site.finish(*children)
    assert await site.states() == {ShardState.SUCCEEDED: 2}


async def test_34_a_queue_that_starts_nothing_and_says_nothing_is_dry(site: Site) -> None:
    await site.running(shards=2)
    site.batch.capacity = {"g6e": 0, "g6": 9}
    rounds = await queues_until(site, "g6")
    assert rounds * 30 <= 1.2 * site.settings.placement.start_seconds + 120
    await site.rounds(2)
    assert {child.status for child in site.batch.alive("g6")} == {"RUNNING"}
    assert {(await site.outcomes(n))[0] for n in range(2)} == {Outcome.NO_CAPACITY}


@pytest.mark.long
async def test_10_the_cap_holds_with_arrays_fallback_and_retries(site: Site) -> None:
    caps = {"g6e": 20, "g6": 18, "g5": 12}
    queues = [queue(name, max_live=cap, backlog=cap) for name, cap in caps.items()]
    site = with_settings(site, gpu_queues=queues, placement={"array_max": 7})
    await site.running(shards=90)
    site.batch.capacity = {"g6e": 0, "g6": 9, "g5": 5}
    for turn in range(40):
        await site.rounds(1)
        for name, cap in caps.items():
            assert len(site.batch.alive(name)) <= cap
        assert len(site.batch.alive()) <= 50
        running = [child for child in site.batch.alive() if child.status == "RUNNING"]
        for number, child in enumerate(running):
            if (turn + number) % 3 == 0:
                site.batch.end(child, 1)
        if turn == 20:
            site.batch.capacity["g6e"] = 11
    assert len(site.batch.jobs) > 20
    await site.check()


@pytest.mark.long
async def test_24_cancelled_moved_and_lost_work_frees_its_place(site: Site) -> None:
    await site.running(shards=4)
    site.batch.capacity = {"g6e": 0, "g6": 1}

    async def agree() -> None:
        await site.step("batch_events")
        async with site.store.transaction() as tx:
            loads = await tx.attempts.loads()
        counted = {load.name: load.submitting + load.queued + load.running for load in loads}
        for name in ("g6e", "g6", "g5"):
            assert counted.get(name, 0) == len(site.batch.alive(name)), name

    for turn in range(50):
        await site.rounds(1)
        if turn % 3 == 2:
            await agree()
        if turn == 40:
            # Batch forgets what ran: it is lost, and its place is free again.
            site.batch.forget(site.batch.alive("g6")[0].id)
            await site.rounds(40)
            await agree()
    outcomes = {o for n in range(4) for o in await site.outcomes(n)}
    assert {Outcome.NO_CAPACITY, Outcome.LOST} <= outcomes
