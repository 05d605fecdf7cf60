"""Reports about SubmitJob: rates, sizes, answers that get lost, and two controllers."""

from __future__ import annotations

import json

import pytest

from controller.aws.rates import Call, RateBudget
from controller.ports import Ambiguous, Refused, SubmitSpec, Throttled, Unavailable
from schema.layout import Location
from schema.states import JobState, ShardState
from tests.reports.site import Site, queue, with_settings


async def test_05_throttling_fails_no_shard_and_ends_nothing(site: Site) -> None:
    await site.running(shards=6)
    budget = RateBudget(site.clock)
    throttled = Throttled("TooManyRequestsException")
    site.batch.faults.always |= {"submit": throttled, "describe": throttled}
    levels = []
    for _ in range(30):
        await site.rounds(1, seconds=2)
        for _ in range(5):
            budget.throttled()
        levels.append(budget.calls_per_second())
    # One burst of answers halves the rate once.
    assert levels[0] == 20.0
    assert levels[-1] < 5
    assert await site.states() == {ShardState.ASSIGNED: 6}
    assert site.batch.jobs == {}
    site.batch.faults.always.clear()
    site.batch.capacity = {"g6e": 9}
    await site.rounds(4)
    assert len(site.batch.jobs) == 1
    assert {attempt.misses for n in range(6) for attempt in await site.attempts(n)} == {0}
    site.clock.seconds += 600
    assert budget.calls_per_second() == 40.0


async def kill(site: Site, moment: str) -> None:
    """The controller dies in the middle of a submission."""
    await site.running(shards=2)
    if moment == "after the intent":
        site.batch.faults.add("submit", Unavailable("killed before the call"))
    else:
        real = site.batch.submit

        async def dying(spec: SubmitSpec) -> str:
            await real(spec)
            raise Unavailable("killed after the call")

        if moment == "after the answer":
            site.batch.submit = dying  # type: ignore[method-assign]
    await site.step("dispatch")
    site.batch.__dict__.pop("submit", None)
    site.clock.seconds += 20
    site.start()


@pytest.mark.parametrize("moment", ["after the intent", "after the answer", "after the commit"])
async def test_11_a_deploy_in_the_middle_of_a_submission_starts_one_array(site: Site, moment: str) -> None:
    await kill(site, moment)
    site.batch.capacity = {"g6e": 9, "g6": 9, "g5": 9}
    await site.rounds(20)
    assert len(site.batch.alive()) == 2
    assert len({child.spec.name for child in site.batch.alive()}) == 1
    await site.finish(*site.batch.alive())
    assert await site.states() == {ShardState.SUCCEEDED: 2}
    await site.check()


async def test_20_a_controller_that_was_asleep_writes_and_submits_nothing(site: Site) -> None:
    await site.running(shards=2)
    sleeper = site.replica
    await sleeper.step("index")
    awake = site.start()
    await awake.step("dispatch")
    assert site.batch.jobs == {}
    # While it leads it stops for longer than its lease, between the row and the call.
    real = site.objects.put

    async def paused(*arguments: object) -> None:
        await real(*arguments)  # type: ignore[arg-type]
        site.clock.seconds += 16
        site.objects.put = real  # type: ignore[method-assign]
        await awake.step("dispatch")

    site.objects.put = paused  # type: ignore[method-assign,assignment]
    await sleeper.step("dispatch")
    assert site.batch.called("submit") == []
    assert [type(error).__name__ for error in sleeper.errors] == ["Fenced"]
    await sleeper.step("dispatch", "index", "operations", "tend")
    assert site.batch.called("submit") == []
    for _ in range(20):
        site.clock.seconds += 14
        await awake.step("dispatch", "reconcile")
        await sleeper.step("dispatch", "reconcile")
    assert len(site.batch.jobs) == 1
    await site.check()


async def test_30_one_shard_is_a_plain_job_and_no_lot_leaves_one_over(site: Site) -> None:
    site = with_settings(site, placement={"array_max": 10}, gpu_queues=[queue("g6e", backlog=999)])
    await site.running(shards=31)
    await site.step("dispatch")
    assert sorted(job.spec.size for job in site.batch.jobs.values()) == [7, 8, 8, 8]
    assert all("arrayProperties" in call for call in site.batch.parameters)
    child = site.batch.alive()[0]
    await site.fail(child, 1)
    [again] = await site.again()
    assert again.spec.size == 1
    assert "arrayProperties" not in site.batch.parameters[-1]
    assert (await site.attempt_of(again)).shard == (await site.attempt_of(child)).shard


async def test_31_the_call_stays_small_whatever_the_request_holds(site: Site) -> None:
    long = "x" * 850 + "/"
    body = {
        "source": {"kind": "prefix", "bucket": "photos", "prefix": long},
        "output": {"uri": f"s3://embeddings/{long}"},
        "labels": {f"label-{n}": "v" * 250 for n in range(16)},
    }
    await site.running(shards=900, body=body, output_uri=f"s3://embeddings/{long}0011223344556677/")
    await site.step("dispatch")
    call, *_ = site.batch.parameters
    assert len(json.dumps(call["containerOverrides"])) < 500
    assert len(json.dumps(call)) < 2000
    [variable] = call["containerOverrides"]["environment"]
    assert variable["name"] == "REEMBED_ASSIGNMENT"
    told = json.loads(site.objects.content[Location.parse(variable["value"])])
    assert len(told["entries"]) == call["arrayProperties"]["size"] >= 100


async def test_32_a_burst_of_requests_is_submitted_in_time_and_none_fails(site: Site) -> None:
    for number in range(1, 91):
        await site.running(id=f"r-{number}", idempotency_key=str(number))
    budget = RateBudget(site.clock, calls_per_second=50)
    real, moments = site.batch.submit, []

    async def paced(spec: SubmitSpec) -> str:
        await budget.acquire(Call.SUBMIT)
        moments.append(site.clock.seconds)
        if len(moments) == 7:
            site.batch.take(spec)
            raise Ambiguous("ServerException: share identifier")
        return await real(spec)

    site.batch.submit = paced  # type: ignore[method-assign]
    for _ in range(20):
        await site.step("dispatch")
        site.clock.seconds += 8
    assert len(site.batch.jobs) == 90
    assert max(sum(start <= moment < start + 1 for moment in moments) for start in moments) <= 50
    async with site.store.transaction() as tx:
        states = await tx.measures.states()
    assert states[("job", JobState.SUBMITTED)] == 90
    assert states[("shard", ShardState.ASSIGNED)] == 90


async def test_36_an_answer_that_is_lost_leaves_one_array(site: Site) -> None:
    await site.running(shards=3)
    real, calls = site.batch.submit, []

    async def losing(spec: SubmitSpec) -> str:
        calls.append(spec.name)
        await real(spec)
        raise Ambiguous("read timeout")

    site.batch.submit = losing  # type: ignore[method-assign]
    # ListJobs lags behind SubmitJob: absence is no evidence yet.
    site.batch.listed = False
    for _ in range(3):
        await site.step("dispatch")
        site.clock.seconds += 30
    assert (len(calls), len(site.batch.jobs)) == (1, 1)
    site.batch.list_all()
    await site.step("dispatch")
    assert (len(calls), len(site.batch.jobs)) == (1, 1)
    assert {(await site.attempts(n))[0].state for n in range(3)} == {"queued"}
    with pytest.raises(Refused):
        await site.batch.submit(
            SubmitSpec(name="x", queue="g6e", job_definition="d", size=0, assignment_uri="s3://c/a")
        )
