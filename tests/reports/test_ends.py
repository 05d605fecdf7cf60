"""Reports about how attempts end: classes, budgets, retries, and what is never taken for the work's own fault."""

from __future__ import annotations

import json

import pytest

from controller.core.records import OperationKind
from schema.exit_codes import ExitCode
from schema.states import Outcome, RequestState, ShardState
from tests.reports.site import Site, queue, with_settings

OUT_OF_MEMORY = "OutOfMemoryError: Container killed due to memory usage"


async def test_06_a_lost_host_leaves_no_exit_code(site: Site) -> None:
    await site.running()
    [child] = await site.again()
    site.batch.start(child)
    site.batch.reclaim(child)
    await site.step("batch_events")
    site.clock.seconds += 61
    await site.step("reconcile")
    [attempt] = await site.attempts()
    assert (attempt.outcome, attempt.batch_exit_code) == (Outcome.SPOT_RECLAIMED, None)
    for _ in range(8):
        [child] = await site.again()
        await site.fail(child, reason="Host EC2 (instance i-0abc) terminated.")
    for _ in range(3):
        [child] = await site.again()
        await site.fail(child, 1)
    assert (await site.shard()).state is ShardState.PENDING


@pytest.mark.parametrize(
    "reason",
    [
        "CannotPullContainerError: write /var/lib/docker/x: no space left on device",
        "CgroupError: Agent could not create task's platform resources",
        "CannotInspectContainerError: Could not transition to inspecting; timed out after waiting 30s",
        "DockerTimeoutError: Could not transition to started; timed out after waiting 3m0s",
    ],
)
async def test_07_a_host_that_cannot_start_containers_is_no_fault_of_the_work(site: Site, reason: str) -> None:
    await site.running()
    for _ in range(3):
        [child] = await site.again()
        attempt = await site.fail(child, started=False, reason="Task failed to start", container=reason)
        assert attempt.outcome is Outcome.START_FAILED
    assert (await site.shard()).state is ShardState.PENDING
    [child] = await site.again()
    site.batch.start(child)
    await site.commit(child)
    # The work was done; only the look at the container failed.
    attempt = await site.fail(child, reason="Task failed to start", container="CannotInspectContainerError: x")
    assert attempt.outcome is Outcome.SUCCEEDED
    assert (await site.shard()).state is ShardState.SUCCEEDED
    assert await site.again() == []


async def test_07_an_image_that_may_not_be_pulled_holds_the_request(site: Site) -> None:
    await site.running(shards=9)
    children = await site.again()
    refused = "CannotPullContainerError: pull access denied, repository may require authorization"
    for child in children[:3]:
        await site.fail(child, started=False, reason="Task failed to start", container=refused)
    request = await site.request()
    assert request.paused
    assert "pull access denied" in (request.reason or "")
    await site.rounds(4)
    assert site.status.of_type("status.paused")[0]["reason"] == request.reason
    # What had not started is taken back at no cost, and nothing more is submitted.
    assert site.batch.alive() == []
    assert len(site.batch.called("submit")) == 1
    assert sorted({o for n in range(9) for o in await site.outcomes(n)}) == ["config_error", "superseded"]
    await site.order(OperationKind.RESUME_REQUEST)
    again = await site.again()
    assert len(again) == 9
    await site.fail(again[0], started=False, reason="Task failed to start", container=refused)
    assert not (await site.request()).paused


async def test_15_trouble_with_logs_changes_no_verdict(site: Site) -> None:
    await site.running()
    throttled = "CannotStartContainerError: failed to initialize logging driver: CreateLogStream: ThrottlingException"
    [child] = await site.again()
    attempt = await site.fail(child, started=False, reason="Task failed to start", container=throttled)
    assert (attempt.outcome, attempt.reason) == (Outcome.START_FAILED, throttled)
    [child] = await site.again()
    site.batch.start(child)
    await site.report(child, ExitCode.BAD_DATA, error="41 of 50 rows are unreadable")
    # Nobody ever reads CloudWatch: the worker's own words are the reason, whatever Batch knows of the log stream.
    attempt = await site.fail(child, 1, container="ResourceNotFoundException: The specified log stream does not exist")
    assert (attempt.outcome, attempt.reason) == (Outcome.BAD_DATA, "41 of 50 rows are unreadable")


async def test_26_reclaims_never_eat_the_budget_and_still_end(site: Site) -> None:
    site = with_settings(site, retries={"failures": 2})
    await site.running()
    for _ in range(5):
        [child] = await site.again()
        await site.fail(child, reason="Host EC2 (instance i-0abc) terminated.")
    site.start()
    [child] = await site.again()
    await site.fail(child, 1)
    assert (await site.shard()).state is ShardState.PENDING
    while (await site.shard()).state is not ShardState.FAILED:
        [child] = await site.again()
        await site.fail(child, reason="Host EC2 (instance i-0abc) terminated.")
    assert len(await site.attempts()) == 21
    assert (await site.shard()).reason == "spot_reclaimed: 20 times, the cap is 20"
    await site.check()


async def test_28_an_attempt_that_never_started_has_no_start_to_compute_with(site: Site) -> None:
    await site.running(shards=40)
    children = await site.again()
    reason = "CannotStartContainerError: Error response from daemon: failed to create log stream: ThrottlingException"
    for child in children:
        site.batch.end(child, reason="Task failed to start", container=reason)
    await site.step("batch_events", "reconcile", "dispatch", "tend")
    assert {o for n in range(40) for o in await site.outcomes(n)} == {Outcome.START_FAILED}
    assert await site.states() == {ShardState.PENDING: 40}
    async with site.store.transaction() as tx:
        assert await tx.measures.attempt_seconds("r-1") == {}
    # The next start is not at once.
    assert all(shard.eligible_at > site.clock.now() for shard in await site.shards())
    assert len(site.batch.called("submit")) == 1


async def test_29_the_last_of_several_attempts_decides_and_none_is_a_case(site: Site) -> None:
    await site.running(shards=2)
    empty, several = await site.again()
    site.batch.events = None
    site.batch.end(empty, reason="Canceled by JobStateTimeLimit action due to reason: CAPACITY:X")
    site.batch.start(several)
    site.batch.end(several, reason="Host EC2 (instance i-0abc) terminated.")
    site.batch.events = site.events
    site.batch.tell(empty, attempts=[], container=None)
    ends = [
        {"container": {"exitCode": 1}, "statusReason": "Essential container in task exited"},
        {"container": {"exitCode": 1}, "statusReason": "Essential container in task exited"},
        {"container": {"reason": "OutOfMemoryError: killed", "exitCode": 137}, "statusReason": "Essential"},
    ]
    site.batch.tell(several, attempts=ends, statusReason="Essential", container={"exitCode": 1})
    await site.step("batch_events")
    site.clock.seconds += 30
    site.clock.seconds += 61
    await site.step("reconcile")
    found = [(await site.attempt_of(child)).outcome for child in (empty, several)]
    assert found == [Outcome.NO_CAPACITY, Outcome.OUT_OF_MEMORY]


async def test_33_137_has_three_meanings(site: Site) -> None:
    await site.running(shards=3)
    memory, ours, host = await site.again()
    site.batch.start(memory, ours, host)
    await site.step("batch_events")
    await site.fail(memory, 137, container=OUT_OF_MEMORY)
    await site.fail(host, 137, reason="Host EC2 (instance i-0abc) terminated.")
    await site.order(OperationKind.CANCEL_REQUEST)
    await site.step("finish", "reconcile")
    assert (ours.status, ours.exit_code) == ("FAILED", 137)
    await site.rounds(4)
    found = [(await site.attempt_of(child)).outcome for child in (memory, ours, host)]
    assert found == [Outcome.OUT_OF_MEMORY, Outcome.CANCELLED, Outcome.SPOT_RECLAIMED]
    assert (await site.request()).state is RequestState.CANCELLED


async def test_37_one_shard_that_fails_for_good_stops_no_other(site: Site) -> None:
    await site.running(shards=5)
    bad, *good = await site.again()
    site.batch.start(bad, *good)
    await site.report(bad, ExitCode.BAD_DATA, error="too many bad")
    await site.fail(bad, 66)
    await site.rounds(2)
    assert (await site.states()) == {ShardState.FAILED: 1, ShardState.ASSIGNED: 4}
    await site.finish(*good)
    await site.rounds(2)
    request = await site.request()
    assert request.state is RequestState.ATTENTION
    assert site.status.of_type("status.attention")[0]["failed_shards"] == 1
    await site.order(OperationKind.ACCEPT_FAILURES)
    await site.rounds(2)
    # The manifest that is then written lists the gap.
    [job] = [body for place, body in site.objects.content.items() if b'"finalise"' in body and "assign" in place.key]
    assert json.loads(job)["gaps"] == [(await site.attempt_of(bad)).shard]


async def test_retries_out_of_memory_gets_a_smaller_batch_then_more_memory(site: Site) -> None:
    queues = [queue("g6e", memory_mib=12_000, large_memory_mib=28_000)]
    site = with_settings(site, gpu_queues=queues)
    await site.running(shards=2)
    short, other = await site.again()
    seen = []
    for _ in range(3):
        await site.fail(short, 137, container=OUT_OF_MEMORY)
        [short] = await site.again()
        entry = await site.entry(await site.attempt_of(short))
        seen.append((entry["batch_size"], short.spec.memory_mib))
    assert seen == [(32, 12_000), (16, 28_000), (8, 28_000)]
    assert other.spec.memory_mib == 12_000
    await site.fail(short, 137, container=OUT_OF_MEMORY)
    assert (await site.attempt_of(short)).outcome is Outcome.OUT_OF_MEMORY
    assert await site.again() == []


async def test_retries_an_incomplete_shard_returns_with_less_concurrency(site: Site) -> None:
    await site.running()
    seen = []
    for _ in range(3):
        [child] = await site.again()
        seen.append((await site.entry(await site.attempt_of(child)))["fetch_concurrency"])
        site.batch.start(child)
        await site.report(child, ExitCode.INCOMPLETE, figures={"ok": 20}, retryable_rows=3, error="throttled")
        await site.fail(child, 65)
    assert seen == [None, 32, 16]
    assert await site.outcomes() == [Outcome.INCOMPLETE] * 3
    assert (await site.shard()).state is ShardState.PENDING


async def test_retries_a_deadly_chunk_is_isolated_until_the_poison_is_found(site: Site) -> None:
    await site.running()
    isolated = []
    for _ in range(2):
        [child] = await site.again()
        isolated.append((await site.entry(await site.attempt_of(child)))["isolate"])
        site.batch.start(child)
        await site.report(child, open_chunks=[2])
        await site.fail(child, 139)
    [child] = await site.again()
    isolated.append((await site.entry(await site.attempt_of(child)))["isolate"])
    assert isolated == [[], [], [2]]
    site.batch.start(child)
    await site.report(child, open_chunks=[2], poison=[27])
    await site.fail(child, reason="Host EC2 (instance i-0abc) terminated.")
    [child] = await site.again()
    entry = await site.entry(await site.attempt_of(child))
    assert (entry["skip"], (await site.shard()).poison) == ([27], (27,))
    await site.finish(child)
    assert (await site.shard()).state is ShardState.SUCCEEDED
