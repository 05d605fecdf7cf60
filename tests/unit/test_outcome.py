"""How an attempt ended: one row a case of the field, named after what was seen."""

from __future__ import annotations

import pytest

from controller.core.outcome import Evidence, classify
from schema.exit_codes import ExitCode
from schema.states import Outcome, StopIntent

TIMEOUT = "Job attempt duration exceeded timeout"
HOST = "Host EC2 (instance i-0abc) terminated."
EXITED = "Essential container in task exited"
CASES = {
    "a marker outranks FAILED": ({"committed": True, "status_reason": HOST}, Outcome.SUCCEEDED),
    "a marker outranks our own cancel": ({"committed": True, "stop_intent": StopIntent.CANCEL}, Outcome.SUCCEEDED),
    "cancelled by us": ({"stop_intent": StopIntent.CANCEL, "batch_exit_code": 137}, Outcome.CANCELLED),
    "superseded by us": ({"stop_intent": StopIntent.SUPERSEDE}, Outcome.SUPERSEDED),
    "fell back before it started": ({"stop_intent": StopIntent.FALL_BACK, "started": False}, Outcome.NO_CAPACITY),
    "fall back came too late": (
        {"stop_intent": StopIntent.FALL_BACK, "started": True, "status_reason": HOST},
        Outcome.SPOT_RECLAIMED,
    ),
    "paused before it started": ({"stop_intent": StopIntent.PAUSE, "started": False}, Outcome.SUPERSEDED),
    "spot reclaim without exit code": ({"status_reason": HOST}, Outcome.SPOT_RECLAIMED),
    "spot reclaim, older text": ({"status_reason": "Host EC2 Terminated"}, Outcome.SPOT_RECLAIMED),
    "SIGTERM obeyed on a reclaimed host": (
        {"status_reason": HOST, "worker_exit_code": ExitCode.INTERRUPTED},
        Outcome.SPOT_RECLAIMED,
    ),
    "SIGTERM obeyed, time-out": ({"status_reason": TIMEOUT, "worker_exit_code": 64}, Outcome.TIMED_OUT),
    "SIGTERM obeyed, no reason": ({"status_reason": EXITED, "batch_exit_code": 64}, Outcome.INTERRUPTED),
    "time-out before 137": ({"status_reason": TIMEOUT, "batch_exit_code": 137}, Outcome.TIMED_OUT),
    "OOM by reason": (
        {"container_reason": "OutOfMemoryError: Container killed due to memory usage", "batch_exit_code": 137},
        Outcome.OUT_OF_MEMORY,
    ),
    "OOM with exit 0": (
        {"container_reason": "OutOfMemoryError: Container killed due to memory usage", "batch_exit_code": 0},
        Outcome.OUT_OF_MEMORY,
    ),
    "137 alone": ({"status_reason": EXITED, "batch_exit_code": 137}, Outcome.OUT_OF_MEMORY),
    "head of a dry queue": (
        {
            "started": False,
            "status_reason": "Canceled by JobStateTimeLimit action due to reason: "
            "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY",
        },
        Outcome.NO_CAPACITY,
    ),
    "misconfigured head": (
        {
            "started": False,
            "status_reason": "Canceled by JobStateTimeLimit action due to reason: "
            "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT",
        },
        Outcome.MISCONFIGURED,
    ),
    "overrides too long": (
        {"started": False, "status_reason": "Container Overrides length must be at most 8192"},
        Outcome.MISCONFIGURED,
    ),
    "pull failed": (
        {"started": False, "status_reason": "Task failed to start", "container_reason": "CannotPullContainerError: x"},
        Outcome.START_FAILED,
    ),
    "pull refused": (
        {
            "started": False,
            "status_reason": "Task failed to start",
            "container_reason": "CannotPullContainerError: pull access denied",
        },
        Outcome.CONFIG_ERROR,
    ),
    "exit 0 without a commit": ({"batch_exit_code": 0, "status_reason": EXITED}, Outcome.NO_COMMIT),
    "SUCCEEDED without a code": ({"batch_status": "SUCCEEDED"}, Outcome.NO_COMMIT),
    "crash": ({"batch_exit_code": 1, "status_reason": EXITED}, Outcome.CRASHED),
    "segmentation fault": ({"batch_exit_code": 139, "status_reason": EXITED}, Outcome.CRASHED),
    "retryable rows left": ({"worker_exit_code": ExitCode.INCOMPLETE}, Outcome.INCOMPLETE),
    "too many bad": ({"worker_exit_code": ExitCode.BAD_DATA}, Outcome.BAD_DATA),
    "model will not load": ({"worker_exit_code": ExitCode.CONFIG_ERROR}, Outcome.CONFIG_ERROR),
    "GPU unusable": ({"worker_exit_code": ExitCode.HOST_SICK}, Outcome.HOST_SICK),
    "void assignment": ({"worker_exit_code": ExitCode.VOID}, Outcome.SUPERSEDED),
    "wrong number of nodes": ({"worker_exit_code": ExitCode.ASSIGNMENT_MISMATCH}, Outcome.MISCONFIGURED),
    "worker's word before Batch's code": ({"worker_exit_code": 65, "batch_exit_code": 1}, Outcome.INCOMPLETE),
    "failed, no code, had started": ({"status_reason": "odd"}, Outcome.HOST_LOST),
    "failed, no code, never started": ({"status_reason": "odd", "started": False}, Outcome.START_FAILED),
    "nobody knows": ({"batch_status": None}, Outcome.LOST),
}


@pytest.mark.parametrize("name", CASES)
def test_classify(name: str) -> None:
    given, expected = CASES[name]
    seen = {"committed": False, "started": True, "batch_status": "FAILED"} | given
    assert classify(Evidence(**seen)) is expected


def test_every_outcome_is_reached_or_named() -> None:
    reached = {expected for _, expected in CASES.values()}
    assert set(Outcome) == reached
