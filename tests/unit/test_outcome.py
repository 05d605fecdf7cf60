"""How an attempt ended: one row a case of the field, named after what was seen."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from controller.core.outcome import BUILT_IN, CERTAIN, CONCLUSIONS, TABLE, Evidence, Rule, classify, rule_for, table
from controller.settings import Settings, problems
from schema.exit_codes import ExitCode
from schema.states import Outcome, StopIntent
from tests.builders import settings

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
    "start refused": (
        {
            "started": False,
            "status_reason": "Task failed to start",
            "container_reason": "Error response from daemon: pull access denied",
        },
        Outcome.CONFIG_ERROR,
    ),
    "disk full during the pull": (
        {
            "started": False,
            "status_reason": "Task failed to start",
            "container_reason": "CannotPullContainerError: write /var/lib/docker/tmp/x: no space left on device",
        },
        Outcome.START_FAILED,
    ),
    "pull took too long": (
        {
            "started": False,
            "status_reason": "Task failed to start",
            "container_reason": "CannotPullContainerError: context canceled",
        },
        Outcome.START_FAILED,
    ),
    "pull throttled by the registry": (
        {"started": False, "container_reason": "CannotPullContainerError: toomanyrequests: Rate exceeded"},
        Outcome.START_FAILED,
    ),
    "image missing": (
        {"started": False, "container_reason": "CannotPullContainerError: manifest unknown: not found"},
        Outcome.CONFIG_ERROR,
    ),
    "image of another platform": (
        {
            "started": False,
            "container_reason": "CannotPullContainerError: image Manifest does not contain descriptor matching "
            "platform 'linux/amd64'",
        },
        Outcome.CONFIG_ERROR,
    ),
    "command missing": (
        {"started": False, "container_reason": 'CannotStartContainerError: exec: "x": executable file not found'},
        Outcome.CONFIG_ERROR,
    ),
    "secret refused": (
        {"started": False, "container_reason": "ResourceInitializationError: unable to pull secrets: AccessDenied"},
        Outcome.CONFIG_ERROR,
    ),
    "log driver throttled": (
        {
            "started": False,
            "container_reason": "CannotStartContainerError: failed to initialize logging driver: ThrottlingException",
        },
        Outcome.START_FAILED,
    ),
    "container not found after its end": (
        {"container_reason": "CannotInspectContainerError: Could not inspect: container not found"},
        Outcome.START_FAILED,
    ),
    "Docker does not answer": (
        {"status_reason": "Task failed to start", "container_reason": "DockerTimeoutError: Could not transition"},
        Outcome.START_FAILED,
    ),
    "no control group": (
        {"started": False, "status_reason": "CgroupError: Agent could not create task's platform resources"},
        Outcome.START_FAILED,
    ),
    "agent": ({"started": False, "status_reason": "AGENT"}, Outcome.START_FAILED),
    "queue deleted": ({"started": False, "status_reason": "JobQueue deleted"}, Outcome.MISCONFIGURED),
    "dependency failed": ({"started": False, "status_reason": "Dependent Job failed"}, Outcome.START_FAILED),
    "a child failed": ({"status_reason": "Array Child Job failed"}, Outcome.HOST_LOST),
    "dry without a word": (
        {"started": False, "status_reason": "UNDETERMINED - Batch job is blocked, root cause is undetermined."},
        Outcome.NO_CAPACITY,
    ),
    "role of the environment": (
        {"started": False, "status_reason": "MISCONFIGURATION:SERVICE_ROLE_PERMISSIONS – no permission"},
        Outcome.MISCONFIGURED,
    ),
    "environment invalid": (
        {"started": False, "status_reason": "ACTION_REQUIRED - CE(s) associated with the job queue are invalid."},
        Outcome.MISCONFIGURED,
    ),
    "SIGTERM before the worker listens": ({"status_reason": EXITED, "batch_exit_code": 143}, Outcome.INTERRUPTED),
    "stopped by us, the intent is lost": (
        {"status_reason": "reembed: cancel", "batch_exit_code": 137},
        Outcome.INTERRUPTED,
    ),
    "137 on a lost host": ({"status_reason": HOST, "batch_exit_code": 137}, Outcome.SPOT_RECLAIMED),
    "forgotten by Batch while it ran": ({"batch_status": "RUNNING"}, Outcome.LOST),
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


def test_every_row_of_the_table_decides_a_case() -> None:
    decided = set()
    for given, _ in CASES.values():
        seen = {"committed": False, "started": True, "batch_status": "FAILED"} | given
        decided.add(rule_for(Evidence(**seen)).name)
    assert decided == {rule.name for rule in TABLE}


OWN = Rule(name="lustre", outcome=Outcome.HOST_SICK, mentions=("mount failed",))


def evidence(**given: object) -> Evidence:
    return Evidence(**({"committed": False, "started": True, "batch_status": "FAILED"} | given))  # type: ignore[arg-type]


def test_a_row_of_ones_own_comes_before_the_built_in_ones_and_after_our_own_facts() -> None:
    mount = {"status_reason": EXITED, "container_reason": "Mount failed: x", "batch_exit_code": 1}
    assert classify(evidence(**mount)) is Outcome.CRASHED
    assert classify(evidence(**mount), table([OWN])) is Outcome.HOST_SICK
    assert classify(evidence(**mount, committed=True), table([OWN])) is Outcome.SUCCEEDED
    assert classify(evidence(**mount, stop_intent=StopIntent.CANCEL), table([OWN])) is Outcome.CANCELLED
    assert table([OWN]) == (*CERTAIN, OWN, *BUILT_IN)


def test_conditions_of_a_row_must_all_hold() -> None:
    rule = Rule(name="x", outcome=Outcome.HOST_SICK, exit_codes=(7, 8), mentions=("nvml",), started=True)
    assert rule.matches(evidence(batch_exit_code=8, container_reason="NVML gone"))
    assert not rule.matches(evidence(batch_exit_code=9, container_reason="NVML gone"))
    assert not rule.matches(evidence(batch_exit_code=8))
    assert not rule.matches(evidence(batch_exit_code=8, container_reason="NVML gone", started=False))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (Rule(name="crash", outcome=Outcome.CRASHED, exit_codes=(3,)), "another of this name"),
        (Rule(name="x", outcome=Outcome.SUCCEEDED, exit_codes=(3,)), "cannot conclude succeeded"),
        (Rule(name="x", outcome=Outcome.CANCELLED, exit_codes=(3,)), "cannot conclude cancelled"),
        (Rule(name="x", outcome=Outcome.CRASHED), "nearly everything"),
        (Rule(name="x", outcome=Outcome.CRASHED, started=True), "nearly everything"),
        (Rule(name="x", outcome=Outcome.CRASHED, mentions=("a", "")), "empty text"),
    ],
)
def test_a_row_that_cannot_stand_is_refused(row: Rule, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        table([row])
    with pytest.raises(ValueError, match="another of this name"):
        table([OWN, OWN])
    assert Outcome.INCOMPLETE not in CONCLUSIONS


def test_the_settings_name_the_row_that_is_wrong() -> None:
    row = {"name": "x", "outcome": "succeeded", "exit_codes": [3]}
    with pytest.raises(ValidationError) as refused:
        Settings.model_validate(settings() | {"outcomes": [row]})
    assert problems(refused.value) == [
        "outcomes: Value error, outcome rule 'x': a row cannot conclude succeeded; "
        f"it may conclude {', '.join(sorted(CONCLUSIONS))}"
    ]
    taken = Settings.model_validate(settings() | {"outcomes": [row | {"outcome": "host_sick"}]})
    assert classify(evidence(batch_exit_code=3), taken.outcome_table()) is Outcome.HOST_SICK
