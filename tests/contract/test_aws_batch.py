"""`Batch` on the stand-in, which speaks Batch's REST-JSON, checks types by AWS's own model and fails on demand."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.aws.batch import MOST_DESCRIBED, AwsBatch
from controller.aws.clients import ClientOptions, Clients
from controller.aws.rates import RateBudget
from controller.clock import SystemClock
from controller.core.batch_events import parse_event
from controller.ports import Ambiguous, Batch, JobView, Refused, SubmitSpec, Throttled, Unavailable
from deploy.local.batch.fault_requests import (
    Exit,
    LostResponse,
    Reclaim,
    RefuseCapacity,
    ServerErrors,
    Slow,
    Throttle,
)
from deploy.local.batch.launch import StandIn
from deploy.local.ministack import Ministack
from deploy.local.resources import client

QUEUE = "g6e"
ON_DEMAND = "ondemand"
DEADLINE_SECONDS = 30.0
POLL_SECONDS = 0.05

Seen = Callable[[JobView], bool]


@pytest.fixture
def budget() -> RateBudget:
    return RateBudget(SystemClock(), calls_per_second=1000)


@pytest.fixture
def batch(batch_clients: Clients, budget: RateBudget) -> Batch:
    return AwsBatch(batch_clients.batch_submit, batch_clients.batch_query, budget)


@pytest.fixture
def spec() -> SubmitSpec:
    return SubmitSpec(
        name=f"reembed-{uuid.uuid4().hex[:12]}",
        queue=QUEUE,
        job_definition="infer:1",
        size=1,
        assignment_uri="s3://control/assignments/j-1.json",
        timeout_seconds=60,
        memory_mib=2048,
        tags={"tenant": "stock", "model": "clip-l@3"},
    )


async def until(batch: Batch, batch_job_id: str, seen: Seen) -> JobView:
    """Describe until the job looks as wanted."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            view = (await batch.describe([batch_job_id]))[batch_job_id]
            if seen(view):
                return view
            await asyncio.sleep(POLL_SECONDS)


async def until_listed(listing: Callable[[], Any], count: int) -> Sequence[JobView]:
    """List until as many are there; a listing lags behind SubmitJob."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            found: Sequence[JobView] = await listing()
            if len(found) >= count:
                return found
            await asyncio.sleep(POLL_SECONDS)


def terminal(view: JobView) -> bool:
    return view.terminal


async def test_a_lone_job_runs_to_its_end(batch: Batch, spec: SubmitSpec) -> None:
    before = datetime.now(UTC) - timedelta(minutes=1)
    job_id = await batch.submit(spec)
    view = await until(batch, job_id, terminal)
    assert (view.batch_job_id, view.name, view.queue) == (job_id, spec.name, QUEUE)
    assert (view.status, view.exit_code, view.array_size) == ("SUCCEEDED", 0, None)
    assert view.created_at is not None
    assert view.started_at is not None
    assert view.stopped_at is not None
    assert before < view.created_at <= view.started_at <= view.stopped_at


async def test_what_was_asked_arrives(batch_clients: Clients, batch: Batch, spec: SubmitSpec) -> None:
    job_id = await batch.submit(spec)
    (job,) = (await batch_clients.batch_query.describe_jobs(jobs=[job_id]))["jobs"]
    environment = {item["name"]: item["value"] for item in job["container"]["environment"]}
    assert environment["REEMBED_ASSIGNMENT"] == spec.assignment_uri
    memory = [item["value"] for item in job["container"]["resourceRequirements"] if item["type"] == "MEMORY"]
    assert memory == ["2048"]
    assert job["retryStrategy"]["attempts"] == 1
    assert job["timeout"] == {"attemptDurationSeconds": 60}
    assert job["propagateTags"] is True
    assert job["tags"].items() >= spec.tags.items()


async def test_an_array_has_children_and_a_summary(batch: Batch, spec: SubmitSpec) -> None:
    job_id = await batch.submit(replace(spec, size=3))
    parent = await until(batch, job_id, terminal)
    assert parent.status == "SUCCEEDED"
    assert parent.array_size == 3
    children = [f"{job_id}:{index}" for index in range(3)]
    views = await batch.describe([*children, f"{job_id}:3", "00000000-0000-0000-0000-000000000000"])
    assert sorted(views) == children
    assert {view.status for view in views.values()} == {"SUCCEEDED"}
    assert {view.array_size for view in views.values()} == {None}
    parent = await until(batch, job_id, lambda view: view.status_summary.get("SUCCEEDED") == 3)
    assert sum(parent.status_summary.values()) == 3


async def test_a_multi_node_job_has_nodes(batch: Batch, batch_clients: Clients, spec: SubmitSpec) -> None:
    job_id = await batch.submit(replace(spec, queue=ON_DEMAND, job_definition="infer-nodes:1", size=2, multi_node=True))
    view = await until(batch, job_id, terminal)
    assert view.status == "SUCCEEDED"
    nodes = await batch.describe([f"{job_id}#0", f"{job_id}#1"])
    assert sorted(nodes) == [f"{job_id}#0", f"{job_id}#1"]
    (job,) = (await batch_clients.batch_query.describe_jobs(jobs=[job_id]))["jobs"]
    assert job["nodeProperties"]["numNodes"] == 2


async def test_more_ids_than_one_call_takes(batch: Batch, spec: SubmitSpec) -> None:
    size = MOST_DESCRIBED + 30
    job_id = await batch.submit(replace(spec, size=size))
    children = [f"{job_id}:{index}" for index in range(size)]
    views = await batch.describe(children + children)
    assert sorted(views) == sorted(children)
    await batch.terminate(job_id, "enough")


async def test_describing_nothing_asks_nothing(batch: Batch) -> None:
    assert dict(await batch.describe([])) == {}


async def test_a_name_is_found_as_it_is_spelt(batch: Batch, spec: SubmitSpec) -> None:
    first = await batch.submit(spec)
    await batch.submit(replace(spec, name=spec.name.upper()))
    await batch.submit(replace(spec, name=f"{spec.name}-2"))
    second = await batch.submit(spec)
    found = await until_listed(lambda: batch.find(QUEUE, spec.name), 2)
    assert [view.batch_job_id for view in found] == [first, second]
    assert {(view.name, view.queue) for view in found} == {(spec.name, QUEUE)}
    await until(batch, first, terminal)
    assert [view.batch_job_id for view in await batch.find(QUEUE, spec.name)] == [first, second]
    assert list(await batch.find(ON_DEMAND, spec.name)) == []


async def test_a_prefix_lists_every_page_newest_first(batch: Batch, spec: SubmitSpec) -> None:
    count = 105  # a page holds 100
    names = [f"{spec.name}-{number}" for number in range(count)]
    for name in names:
        await batch.submit(replace(spec, name=name))
    await batch.submit(replace(spec, name=f"{spec.name.upper()}-other"))
    listed = await until_listed(lambda: batch.list_named(QUEUE, f"{spec.name}-"), count)
    assert sorted(view.name for view in listed) == sorted(names)
    created = [view.created_at for view in listed]
    assert created == sorted(created, key=lambda at: at or datetime.min.replace(tzinfo=UTC), reverse=True)
    assert await batch.list_named(QUEUE, f"{spec.name}x") == []
    for view in listed:
        await batch.terminate(view.batch_job_id, "enough")


async def test_cancel_stops_what_waits_and_says_why(batch: Batch, spec: SubmitSpec, stand_in: StandIn) -> None:
    stand_in.arm(RefuseCapacity(queue=QUEUE))
    try:
        job_id = await batch.submit(spec)
        await until(batch, job_id, lambda view: view.status == "RUNNABLE")
        await batch.cancel(job_id, "falls back to g6")
        view = await until(batch, job_id, terminal)
    finally:
        stand_in.arm(RefuseCapacity(queue=QUEUE, clear=True))
    assert (view.status, view.status_reason, view.exit_code) == ("FAILED", "falls back to g6", None)
    assert view.is_cancelled


async def test_terminate_stops_a_job_and_a_long_reason_is_cut(
    batch: Batch, spec: SubmitSpec, stand_in: StandIn
) -> None:
    stand_in.arm(RefuseCapacity(queue=QUEUE))
    try:
        job_id = await batch.submit(replace(spec, size=2))
        await batch.terminate(job_id, "x" * 3000)
        await until(batch, job_id, terminal)
        other = await batch.submit(spec)
        await batch.terminate(other, "")
        view = await until(batch, other, terminal)
    finally:
        stand_in.arm(RefuseCapacity(queue=QUEUE, clear=True))
    assert view.status_reason == "stopped by reembed"


async def test_a_reclaimed_job_has_a_reason_and_no_exit_code(
    batch: Batch, spec: SubmitSpec, stand_in: StandIn, long_running: None
) -> None:
    job_id = await batch.submit(replace(spec, job_definition="infer-long"))
    await until(batch, job_id, lambda view: view.status == "RUNNING")
    stand_in.arm(Reclaim(job_id=job_id))
    view = await until(batch, job_id, terminal)
    assert view.exit_code is None
    assert (view.status_reason or "").startswith("Host EC2 (instance i-")


async def test_a_failed_job_has_its_exit_code(
    batch: Batch, spec: SubmitSpec, stand_in: StandIn, long_running: None
) -> None:
    job_id = await batch.submit(replace(spec, job_definition="infer-long"))
    await until(batch, job_id, lambda view: view.status == "RUNNING")
    stand_in.arm(Exit(job_id=job_id, code=42))
    view = await until(batch, job_id, terminal)
    assert (view.status, view.exit_code) == ("FAILED", 42)


@pytest.fixture
async def long_running(batch_clients: Clients) -> None:
    """A definition whose jobs run until they are stopped."""
    await batch_clients.batch_query.register_job_definition(
        jobDefinitionName="infer-long",
        type="container",
        containerProperties={
            "image": "worker",
            "command": ["-c", "import signal; signal.pause()"],
            "resourceRequirements": [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "1024"}],
        },
    )


async def test_a_lost_answer_is_ambiguous_and_the_job_is_found(
    batch: Batch, spec: SubmitSpec, stand_in: StandIn
) -> None:
    await batch.submit(replace(spec, name=f"{spec.name}-before"))  # HTTP clients repeat calls on used connections
    lost = stand_in.fired()["lost_responses"]
    stand_in.arm(LostResponse())
    with pytest.raises(Ambiguous):
        await batch.submit(spec)
    assert stand_in.fired()["lost_responses"] == lost + 1
    (found,) = await until_listed(lambda: batch.find(QUEUE, spec.name), 1)
    await until(batch, found.batch_job_id, terminal)
    assert [job["name"] for job in stand_in.jobs()].count(spec.name) == 1, "one call, one job"


async def test_a_late_answer_is_ambiguous(batch: Batch, spec: SubmitSpec, stand_in: StandIn) -> None:
    stand_in.arm(Slow(operation="SubmitJob", seconds=2))  # the client's read time-out is 1 s
    with pytest.raises(Ambiguous):
        await batch.submit(spec)
    assert len(await until_listed(lambda: batch.find(QUEUE, spec.name), 1)) == 1


async def test_a_server_error_is_ambiguous_for_submit_only(batch: Batch, spec: SubmitSpec, stand_in: StandIn) -> None:
    job_id = await batch.submit(spec)
    errors = stand_in.fired()["server_errors"]
    stand_in.arm(ServerErrors(count=6))
    with pytest.raises(Ambiguous):
        await batch.submit(spec)
    for call in (
        batch.describe([job_id]),
        batch.find(QUEUE, spec.name),
        batch.list_named(QUEUE, spec.name),
        batch.cancel(job_id, "x"),
        batch.terminate(job_id, "x"),
    ):
        with pytest.raises(Unavailable):
            await call
    assert stand_in.fired()["server_errors"] == errors + 6, "each call was made once"


async def test_a_throttled_call_is_certainly_not_done(
    batch: Batch, spec: SubmitSpec, stand_in: StandIn, budget: RateBudget
) -> None:
    ceiling, throttled = budget.calls_per_second(), stand_in.fired()["throttled"]
    stand_in.arm(Throttle(count=6))
    for call in (
        batch.submit(spec),
        batch.describe(["x"]),
        batch.find(QUEUE, spec.name),
        batch.list_named(QUEUE, spec.name),
        batch.cancel("x", "x"),
        batch.terminate("x", "x"),
    ):
        with pytest.raises(Throttled):
            await call
    assert stand_in.fired()["throttled"] == throttled + 6, "each call was made once"
    assert budget.calls_per_second() < ceiling
    assert not [job for job in stand_in.jobs() if job["name"] == spec.name]


async def test_what_batch_refuses_is_refused(batch: Batch, spec: SubmitSpec) -> None:
    for wrong in (
        replace(spec, queue="no-such-queue"),
        replace(spec, job_definition="infer:99"),
        replace(spec, name="no spaces"),
        replace(spec, timeout_seconds=59),
        replace(spec, multi_node=True, size=2),
        replace(spec, job_definition="infer-nodes:1", multi_node=True, size=2),  # on a spot queue
    ):
        with pytest.raises(Refused) as refused:
            await batch.submit(wrong)
        assert refused.value.code == "ClientException"
    with pytest.raises(Refused):
        await batch.find("no-such-queue", spec.name)


async def test_no_service_leaves_a_submission_open(
    aws_environment: pytest.MonkeyPatch, unused_tcp_port: int, budget: RateBudget, spec: SubmitSpec
) -> None:
    urls = {"batch": f"http://127.0.0.1:{unused_tcp_port}"}
    async with Clients(ClientOptions(endpoint_urls=urls)) as clients:
        batch = AwsBatch(clients.batch_submit, clients.batch_query, budget)
        with pytest.raises(Ambiguous):
            await batch.submit(spec)
        with pytest.raises(Unavailable):
            await batch.describe(["x"])


async def test_events_say_what_describe_says(
    batch: Batch, spec: SubmitSpec, ministack: Ministack, batch_event_queue_url: str
) -> None:
    job_id = await batch.submit(replace(spec, size=2))
    parent = await until(batch, job_id, terminal)
    wanted = {job_id, f"{job_id}:0", f"{job_id}:1"}
    ended: dict[str, JobView] = {}
    sqs = client("sqs", ministack.endpoint)
    async with asyncio.timeout(DEADLINE_SECONDS):
        while ended.keys() != wanted:
            answer = await asyncio.to_thread(
                sqs.receive_message, QueueUrl=batch_event_queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=1
            )
            for message in answer.get("Messages", ()):
                fact = parse_event(message["Body"])
                if isinstance(fact, JobView) and fact.batch_job_id in wanted and fact.terminal:
                    ended[fact.batch_job_id] = fact
    sqs.close()
    described = await batch.describe([f"{job_id}:0", f"{job_id}:1"])
    assert {key: ended[key] for key in described} == described
    assert (ended[job_id].status, ended[job_id].queue, ended[job_id].array_size) == (parent.status, QUEUE, 2)
