"""aws-facts of what runs: states in time, arrays, reasons, stops, retries, capacity, nodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psutil

from deploy.local.batch.example import example_config
from deploy.local.batch.fault_requests import OutOfMemory, PullFailure, Reclaim, RefuseCapacity
from deploy.local.batch.launch import StandIn, running
from tests.conformance.conftest import (
    LIMIT_SECONDS,
    PROGRAMS,
    SCALE,
    describe,
    ended,
    log_of,
    make_client,
    register,
    running_job,
    submit,
    until,
)

NODES = {"numNodes": 2, "mainNode": 0}


def test_a_job_passes_its_states_in_order(batch: Any) -> None:
    """1.4: and carries its times."""
    job_id, seen = submit(batch, "ok"), []

    def done(job: dict[str, Any]) -> bool:
        seen.append(job["status"])
        return job["status"] == "SUCCEEDED"

    job = until(batch, job_id, done)
    order = ["SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING", "SUCCEEDED"]
    assert seen == sorted(seen, key=order.index)
    assert job["createdAt"] <= job["startedAt"] <= job["stoppedAt"]
    assert (job["container"]["exitCode"], job["statusReason"]) == (0, "Essential container in task exited")


def test_children_of_an_array(batch: Any) -> None:
    """1.4: id:index, described and listed under the parent; the parent never runs itself, and sums up."""
    parent = submit(batch, "ok", arrayProperties={"size": 3})
    seen: set[str] = set()

    def done(job: dict[str, Any]) -> bool:
        seen.add(job["status"])
        return job["status"] == "SUCCEEDED"

    job = until(batch, parent, done)
    assert seen <= {"SUBMITTED", "PENDING", "SUCCEEDED"}
    assert job["arrayProperties"]["size"] == 3
    listed = batch.list_jobs(arrayJobId=parent, jobStatus="SUCCEEDED")["jobSummaryList"]
    assert {child["jobId"] for child in listed} == {f"{parent}:{index}" for index in range(3)}
    assert describe(batch, f"{parent}:2")["arrayProperties"]["index"] == 2


def test_one_failed_child_fails_its_parent(batch: Any) -> None:
    """1.4: after all have ended."""
    parent = submit(batch, "fail", arrayProperties={"size": 2})
    job = ended(batch, parent)
    assert (job["status"], job["statusReason"]) == ("FAILED", "Array Child Job failed")
    assert {describe(batch, f"{parent}:{index}")["status"] for index in range(2)} == {"FAILED"}


def test_what_batch_tells_a_container(batch: Any, stand_in: StandIn) -> None:
    """1.11: and nothing of the host's own environment."""
    parent = submit(batch, "environment", arrayProperties={"size": 2})
    ended(batch, parent)
    told = json.loads(log_of(stand_in, describe(batch, f"{parent}:1")).splitlines()[-1])
    assert told["AWS_BATCH_JOB_ID"] == f"{parent}:1"
    assert told["AWS_BATCH_JOB_ARRAY_INDEX"] == "1"
    assert told["AWS_BATCH_JOB_ATTEMPT"] == "1"
    assert told["AWS_BATCH_JQ_NAME"] == "cpu"
    assert told["AWS_BATCH_CE_NAME"] == "cpu-ondemand"


def test_terminate_sends_sigterm_and_ends_as_failed(batch: Any) -> None:
    """1.8: with the caller's reason, and 143."""
    job_id = submit(batch, "sleep")
    running_job(batch, job_id)
    batch.terminate_job(jobId=job_id, reason="enough")
    job = ended(batch, job_id)
    assert (job["status"], job["statusReason"]) == ("FAILED", "enough")
    assert job["isTerminated"]
    assert job["container"]["exitCode"] == 143


def test_sigkill_comes_after_the_grace(batch: Any, stand_in: StandIn) -> None:
    """1.8: 137 for who does not hear SIGTERM."""
    job_id = submit(batch, "deaf")
    running_job(batch, job_id)
    until(batch, job_id, lambda job: "deaf" in log_of(stand_in, job))
    batch.terminate_job(jobId=job_id, reason="enough")
    assert ended(batch, job_id)["container"]["exitCode"] == 137


def test_cancel_of_a_running_job_says_success_and_does_nothing(batch: Any) -> None:
    """1.8."""
    job_id = submit(batch, "sleep")
    running_job(batch, job_id)
    batch.cancel_job(jobId=job_id, reason="no effect")
    assert describe(batch, job_id)["status"] == "RUNNING"
    batch.terminate_job(jobId=job_id, reason="end of test")
    assert ended(batch, job_id)["statusReason"] == "end of test"


def test_cancel_of_a_waiting_job(batch: Any, stand_in: StandIn) -> None:
    """1.8: FAILED with the caller's reason, without an attempt; one child can go alone."""
    stand_in.arm(RefuseCapacity(queue="g5"))
    parent = submit(batch, "sleep", "g5", arrayProperties={"size": 2})
    until(batch, f"{parent}:1", lambda job: job["status"] == "RUNNABLE")
    batch.cancel_job(jobId=f"{parent}:1", reason="fall back")
    child = ended(batch, f"{parent}:1")
    assert (child["status"], child["statusReason"]) == ("FAILED", "fall back")
    assert child.get("attempts", []) == []
    assert describe(batch, f"{parent}:0")["status"] == "RUNNABLE"
    batch.terminate_job(jobId=parent, reason="end of test")
    stand_in.arm(RefuseCapacity(queue="g5", clear=True))
    assert ended(batch, parent)["status"] == "FAILED"


def test_only_the_head_of_a_dry_queue_is_told_why(batch: Any, stand_in: StandIn) -> None:
    """1.6."""
    stand_in.arm(RefuseCapacity(queue="g6"))
    first, second = submit(batch, "ok", "g6"), submit(batch, "ok", "g6")
    head = until(batch, first, lambda job: job.get("statusReason"))
    assert head["statusReason"].startswith("CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - ")
    assert head["status"] == "RUNNABLE"
    assert "statusReason" not in describe(batch, second)
    stand_in.arm(RefuseCapacity(queue="g6", clear=True))
    assert {ended(batch, job_id)["status"] for job_id in (first, second)} == {"SUCCEEDED"}


def test_a_spot_reclaim_has_no_exit_code(batch: Any, stand_in: StandIn) -> None:
    """1.7: Host EC2 (instance …) terminated."""
    job_id = submit(batch, "sleep", "g6e")
    running_job(batch, job_id)
    stand_in.arm(Reclaim(job_id=job_id))
    job = ended(batch, job_id)
    assert job["statusReason"].startswith("Host EC2 (instance i-")
    assert job["statusReason"].endswith("terminated.")
    assert "exitCode" not in job["container"]


def test_out_of_memory_and_images_that_cannot_be_pulled(batch: Any, stand_in: StandIn) -> None:
    """1.7: the reason of the container, 137; a failed pull is no attempt that ran."""
    job_id = submit(batch, "sleep", "g6e")
    running_job(batch, job_id)
    stand_in.arm(OutOfMemory(job_id=job_id))
    container = ended(batch, job_id)["container"]
    assert container["exitCode"] == 137
    assert container["reason"].startswith("OutOfMemoryError")
    stand_in.arm(PullFailure(queue="g6e"))
    job = ended(batch, submit(batch, "ok", "g6e"))
    assert job["status"] == "FAILED"
    assert "CannotPullContainer" in job["container"]["reason"]


def test_a_time_out_is_not_retried(batch: Any) -> None:
    """1.1, 1.5: the clock starts with RUNNING."""
    job = ended(batch, submit(batch, "sleep", timeout={"attemptDurationSeconds": 60}, retryStrategy={"attempts": 3}))
    assert job["statusReason"] == "Job attempt duration exceeded timeout"
    assert len(job["attempts"]) == 1


def test_evaluate_on_exit(batch: Any) -> None:
    """1.5: no match retries; EXIT ends."""
    strategy = {"attempts": 3, "evaluateOnExit": [{"onExitCode": "9*", "action": "EXIT"}]}
    assert len(ended(batch, submit(batch, "fail", retryStrategy=strategy))["attempts"]) == 3
    strategy["evaluateOnExit"] = [{"onExitCode": "3", "action": "EXIT"}]
    assert len(ended(batch, submit(batch, "fail", retryStrategy=strategy))["attempts"]) == 1


def test_nodes_of_a_job(batch: Any) -> None:
    """1.9: on-demand only; id#index; the job's end is its main node's."""
    container = {
        "image": "ok",
        "resourceRequirements": [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "1024"}],
    }
    nodes = {**NODES, "nodeRangeProperties": [{"targetNodes": "0:", "container": container}]}
    batch.register_job_definition(jobDefinitionName="nodes", type="multinode", nodeProperties=nodes)
    job_id = submit(batch, "nodes", "ondemand", nodeOverrides={"numNodes": 2})
    assert ended(batch, job_id)["status"] == "SUCCEEDED"
    assert describe(batch, f"{job_id}#1")["nodeDetails"]["nodeIndex"] == 1


def test_revisions_count_up(batch: Any) -> None:
    register(batch, "counted")
    register(batch, "counted")
    found = batch.describe_job_definitions(jobDefinitionName="counted", status="ACTIVE")["jobDefinitions"]
    assert sorted(definition["revision"] for definition in found) == [1, 2]


def test_a_killed_stand_in_leaves_no_job(tmp_path: Path) -> None:
    """Its guardian outlives it just long enough to kill them, those deaf to SIGTERM too."""
    images = {"deaf": [sys.executable, "-S", "-c", PROGRAMS["deaf"]]}
    with running(example_config(images, time_scale=SCALE, cpu_slots=1), tmp_path) as stand_in:
        client = make_client(stand_in)
        register(client, "deaf")
        running_job(client, submit(client, "deaf"))
        client.close()
        started = psutil.Process(stand_in.process.pid).children(recursive=True)
        assert len(started) >= 2, "the job and the guardian"
        stand_in.process.kill()
        _, alive = psutil.wait_procs(started, timeout=LIMIT_SECONDS)
    assert alive == []
