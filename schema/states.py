"""States and the legal moves between them, as data.

Rules:

1. A state changes only along an arrow of `REQUEST_MOVES`, `SHARD_MOVES`, `ATTEMPT_MOVES` or `JOB_MOVES`.
2. `controller.core.transitions` is the only code that proposes a move; every UPDATE repeats the expected
   state in its WHERE clause, so a move that is no longer legal changes nothing.
3. A terminal shard leaves its state only by an audited operator action (a new generation).
4. How an attempt ended is an `Outcome`; what the outcome means for the retry is `OUTCOME_RULES`.

`diagram()` draws the same tables as Mermaid; docs/architecture.md holds its output and a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class RequestState(StrEnum):
    """Where a request stands; see `REQUEST_MOVES`."""

    ACCEPTED = "accepted"
    PREPARING = "preparing"
    RUNNING = "running"
    ATTENTION = "attention"
    FINISHING = "finishing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


class ShardState(StrEnum):
    """Where a shard stands; `pending` carries `eligible_at`."""

    PENDING = "pending"
    ASSIGNED = "assigned"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AttemptState(StrEnum):
    """One run of one shard on one queue; `ended` carries an `Outcome`."""

    SUBMITTING = "submitting"
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


class JobState(StrEnum):
    """One SubmitJob call: row written, id known, nothing of it alive."""

    INTENDED = "intended"
    SUBMITTED = "submitted"
    CLOSED = "closed"


class JobKind(StrEnum):
    """What a Batch job of ours does."""

    PREPARE = "prepare"
    INFER = "infer"
    INDEX = "index"


class StopIntent(StrEnum):
    """Why we stop an attempt; stored before we ask Batch to stop anything."""

    CANCEL = "cancel"
    FALL_BACK = "fall_back"
    SUPERSEDE = "supersede"
    PAUSE = "pause"


class Outcome(StrEnum):
    """How an attempt ended. The same word is the column, the metric label, the log field and the CLI text."""

    SUCCEEDED = "succeeded"
    INTERRUPTED = "interrupted"
    SPOT_RECLAIMED = "spot_reclaimed"
    HOST_LOST = "host_lost"
    NO_CAPACITY = "no_capacity"
    INCOMPLETE = "incomplete"
    START_FAILED = "start_failed"
    HOST_SICK = "host_sick"
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    NO_COMMIT = "no_commit"
    CONFIG_ERROR = "config_error"
    MISCONFIGURED = "misconfigured"
    BAD_DATA = "bad_data"
    LOST = "lost"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"


class Budget(StrEnum):
    """Which retry budget an outcome is counted against."""

    FAILURES = "failures"
    OWN_CAP = "own_cap"
    FREE = "free"


@dataclass(frozen=True)
class OutcomeRule:
    """What an outcome costs: a budget, the cap of that outcome alone, and whether a retry is ever automatic."""

    budget: Budget
    cap: int | None = None
    retry: bool = True


OUTCOME_RULES: Mapping[Outcome, OutcomeRule] = {
    Outcome.SUCCEEDED: OutcomeRule(Budget.FREE, retry=False),
    Outcome.INTERRUPTED: OutcomeRule(Budget.OWN_CAP, cap=20),
    Outcome.SPOT_RECLAIMED: OutcomeRule(Budget.OWN_CAP, cap=20),
    Outcome.HOST_LOST: OutcomeRule(Budget.OWN_CAP, cap=20),
    Outcome.NO_CAPACITY: OutcomeRule(Budget.FREE),
    Outcome.INCOMPLETE: OutcomeRule(Budget.OWN_CAP, cap=20),
    Outcome.START_FAILED: OutcomeRule(Budget.OWN_CAP, cap=5),
    Outcome.HOST_SICK: OutcomeRule(Budget.OWN_CAP, cap=5),
    Outcome.OUT_OF_MEMORY: OutcomeRule(Budget.FAILURES),
    Outcome.TIMED_OUT: OutcomeRule(Budget.FAILURES, cap=2),
    Outcome.CRASHED: OutcomeRule(Budget.FAILURES),
    Outcome.NO_COMMIT: OutcomeRule(Budget.FAILURES),
    Outcome.CONFIG_ERROR: OutcomeRule(Budget.OWN_CAP, cap=3),
    Outcome.MISCONFIGURED: OutcomeRule(Budget.FREE),
    Outcome.BAD_DATA: OutcomeRule(Budget.FAILURES, retry=False),
    Outcome.LOST: OutcomeRule(Budget.OWN_CAP, cap=5),
    Outcome.CANCELLED: OutcomeRule(Budget.FREE, retry=False),
    Outcome.SUPERSEDED: OutcomeRule(Budget.FREE),
}

R, S, A, J = RequestState, ShardState, AttemptState, JobState

#: request: from → {to: label}
REQUEST_MOVES: Mapping[RequestState, Mapping[RequestState, str]] = {
    R.ACCEPTED: {R.PREPARING: "prepare job written", R.CANCELLING: "cancel"},
    R.PREPARING: {
        R.RUNNING: "plan published",
        R.ATTENTION: "preparation gave up",
        R.CANCELLING: "cancel",
    },
    R.RUNNING: {
        R.FINISHING: "every shard committed",
        R.ATTENTION: "failed shards, nothing live",
        R.CANCELLING: "cancel",
    },
    R.ATTENTION: {
        R.PREPARING: "operator: prepare again",
        R.RUNNING: "operator: requeue",
        R.FINISHING: "operator: accept with failures",
        R.FAILED: "operator: fail",
        R.CANCELLING: "cancel",
    },
    R.FINISHING: {
        R.SUCCEEDED: "manifest written, index active",
        R.ATTENTION: "finishing gave up",
        R.CANCELLING: "cancel",
    },
    R.SUCCEEDED: {},
    R.FAILED: {R.RUNNING: "operator: requeue"},
    R.CANCELLING: {R.CANCELLED: "no live job left"},
    R.CANCELLED: {},
}

SHARD_MOVES: Mapping[ShardState, Mapping[ShardState, str]] = {
    S.PENDING: {
        S.ASSIGNED: "attempt written",
        S.SUCCEEDED: "valid commit found",
        S.CANCELLED: "request cancelled",
    },
    S.ASSIGNED: {
        S.SUCCEEDED: "valid commit",
        S.PENDING: "retry",
        S.FAILED: "budget spent or no retry",
        S.CANCELLED: "request cancelled",
    },
    S.SUCCEEDED: {S.PENDING: "operator: redo, new generation"},
    S.FAILED: {
        S.PENDING: "operator: requeue, new generation",
        S.CANCELLED: "request cancelled",
    },
    S.CANCELLED: {},
}

ATTEMPT_MOVES: Mapping[AttemptState, Mapping[AttemptState, str]] = {
    A.SUBMITTING: {
        A.QUEUED: "SubmitJob answered or job adopted",
        A.RUNNING: "heartbeat came first",
        A.ENDED: "never submitted, or its report came first",
    },
    A.QUEUED: {A.RUNNING: "started", A.ENDED: "ended before it started"},
    A.RUNNING: {A.ENDED: "ended"},
    A.ENDED: {},
}

JOB_MOVES: Mapping[JobState, Mapping[JobState, str]] = {
    J.INTENDED: {J.SUBMITTED: "SubmitJob answered or job adopted", J.CLOSED: "never submitted"},
    J.SUBMITTED: {J.CLOSED: "every attempt ended"},
    J.CLOSED: {},
}

#: States from which nothing of a request runs any more without an operator.
REQUEST_TERMINAL = frozenset({R.SUCCEEDED, R.FAILED, R.CANCELLED})
SHARD_TERMINAL = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED})
ATTEMPT_LIVE = frozenset({A.SUBMITTING, A.QUEUED, A.RUNNING})


class RowStatus(StrEnum):
    """Status of one output row. `RETRYABLE` ones never survive into a committed chunk of a finished budget."""

    OK = "ok"
    MISSING = "missing"
    UNREADABLE = "unreadable"
    TOO_LARGE = "too_large"
    UNSUPPORTED = "unsupported"
    CHANGED = "changed"
    POISON = "poison"
    THROTTLED = "throttled"
    DENIED = "denied"
    DEADLINE = "deadline"


RETRYABLE = frozenset({RowStatus.THROTTLED, RowStatus.DENIED, RowStatus.DEADLINE})

MOVES: Mapping[str, Mapping[StrEnum, Mapping[StrEnum, str]]] = {
    "request": REQUEST_MOVES,  # type: ignore[dict-item]
    "shard": SHARD_MOVES,  # type: ignore[dict-item]
    "attempt": ATTEMPT_MOVES,  # type: ignore[dict-item]
    "job": JOB_MOVES,  # type: ignore[dict-item]
}


def diagram(name: str) -> str:
    """The Mermaid state diagram of one table of `MOVES`."""
    moves = MOVES[name]
    lines = ["stateDiagram-v2", f"    [*] --> {next(iter(moves))}"]
    for source, targets in moves.items():
        lines += [f"    {source} --> {target}: {label}" for target, label in targets.items()]
        if not targets:
            lines.append(f"    {source} --> [*]")
    return "\n".join(lines)
