"""How an attempt ended: evidence in, outcome class out.

The order of the rules is the policy: a valid commit outranks everything, then our own stored intent, then reason
texts (a time-out before exit 137, a lost host before the worker's own code), then exit codes. Reasons are matched
by prefix, as AWS only keeps prefixes stable. Sources: AWS Batch user guide, "Job states", "Troubleshooting".
"""

from __future__ import annotations

from dataclasses import dataclass

from controller.core.records import Attempt
from schema.exit_codes import ExitCode
from schema.states import Outcome, StopIntent


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of an ended attempt. `committed`: a valid marker (prepare: plan.json; index: its ledger)."""

    committed: bool
    started: bool
    stop_intent: StopIntent | None = None
    worker_exit_code: int | None = None
    batch_status: str | None = None
    status_reason: str = ""
    container_reason: str = ""
    batch_exit_code: int | None = None

    @classmethod
    def of(cls, attempt: Attempt, *, committed: bool) -> Evidence:
        return cls(
            committed=committed,
            started=attempt.started_at is not None,
            stop_intent=attempt.stop_intent,
            worker_exit_code=attempt.worker_exit_code,
            batch_status=attempt.batch_status,
            status_reason=attempt.batch_status_reason or "",
            container_reason=attempt.container_reason or "",
            batch_exit_code=attempt.batch_exit_code,
        )


_BY_EXIT_CODE = {
    ExitCode.INTERRUPTED: Outcome.INTERRUPTED,
    ExitCode.INCOMPLETE: Outcome.INCOMPLETE,
    ExitCode.BAD_DATA: Outcome.BAD_DATA,
    ExitCode.CONFIG_ERROR: Outcome.CONFIG_ERROR,
    ExitCode.HOST_SICK: Outcome.HOST_SICK,
    ExitCode.OUT_OF_MEMORY: Outcome.OUT_OF_MEMORY,
    ExitCode.VOID: Outcome.SUPERSEDED,
    ExitCode.ASSIGNMENT_MISMATCH: Outcome.MISCONFIGURED,
}

_START_FAILURES = ("CannotPull", "CannotStart", "CannotInspect", "DockerTimeout", "ResourceInitialization")
_UNAUTHORISED = ("unauthorized", "access denied", "accessdenied", "not authorized", "no basic auth", "not found")


def classify(seen: Evidence) -> Outcome:
    """The outcome class of one ended attempt; LOST when there is no evidence of an end at all."""
    if seen.committed:
        return Outcome.SUCCEEDED
    intended = _by_intent(seen)
    if intended is not None:
        return intended
    reasoned = _by_reason(seen)
    if reasoned is not None:
        return reasoned
    return _by_exit_code(seen)


def _by_intent(seen: Evidence) -> Outcome | None:
    if seen.stop_intent is StopIntent.CANCEL:
        return Outcome.CANCELLED
    if seen.stop_intent is StopIntent.SUPERSEDE:
        return Outcome.SUPERSEDED
    # CancelJob cannot have stopped what had started: then the end had another cause.
    if not seen.started and seen.stop_intent is StopIntent.FALL_BACK:
        return Outcome.NO_CAPACITY
    if not seen.started and seen.stop_intent is StopIntent.PAUSE:
        return Outcome.SUPERSEDED
    return None


def _by_reason(seen: Evidence) -> Outcome | None:
    reason, container = seen.status_reason, seen.container_reason
    if reason.startswith("Job attempt duration exceeded timeout"):
        return Outcome.TIMED_OUT
    if reason.startswith("Host EC2"):
        return Outcome.SPOT_RECLAIMED
    if reason.startswith("Canceled by JobStateTimeLimit action"):
        return Outcome.MISCONFIGURED if "MISCONFIGURATION:" in reason else Outcome.NO_CAPACITY
    if reason.startswith(("CAPACITY:", "UNDETERMINED")):
        return Outcome.NO_CAPACITY
    if reason.startswith(("MISCONFIGURATION:", "ACTION_REQUIRED", "Container Overrides length must be at most")):
        return Outcome.MISCONFIGURED
    if container.startswith("OutOfMemoryError"):
        return Outcome.OUT_OF_MEMORY
    if reason.startswith("Task failed to start") or container.startswith(_START_FAILURES):
        refused = any(word in container.lower() for word in _UNAUTHORISED)
        return Outcome.CONFIG_ERROR if refused else Outcome.START_FAILED
    return None


def _by_exit_code(seen: Evidence) -> Outcome:
    code = seen.worker_exit_code if seen.worker_exit_code is not None else seen.batch_exit_code
    if code is None:
        if seen.batch_status is None:
            return Outcome.LOST
        if seen.batch_status == "SUCCEEDED":
            return Outcome.NO_COMMIT
        return Outcome.HOST_LOST if seen.started else Outcome.START_FAILED
    if code == ExitCode.OK:
        return Outcome.NO_COMMIT
    if code in _BY_EXIT_CODE:
        return _BY_EXIT_CODE[ExitCode(code)]
    if code == 137:
        return Outcome.OUT_OF_MEMORY
    return Outcome.CRASHED
