"""How an attempt ended: evidence in, outcome class out, by one ordered table of which the first matching row decides.

The order is the policy: a valid commit outranks everything, then our own stored intent, then reason texts (a time-out
before exit 137, a lost host before the worker's own code), then exit codes. Operators may put rows of their own
before the reasons and codes, never before a commit or a stored intent. Reasons are matched by prefix, as AWS only
keeps prefixes stable. Every field of the evidence may be missing, and every combination finds a row.

Sources: AWS Batch user guide, "Job states" and "Troubleshooting"; Amazon ECS developer guide, "Stopped tasks error
messages"; the reports in docs/field-reports.md.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    @property
    def exit_code(self) -> int | None:
        """The worker's own word before Batch's."""
        return self.worker_exit_code if self.worker_exit_code is not None else self.batch_exit_code


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One row: every condition that is given must hold; within one, any of its values will do."""

    name: str
    outcome: Outcome
    committed: bool | None = None
    stop_intent: StopIntent | None = None
    started: bool | None = None
    batch_status: tuple[str, ...] = ()
    """Whole words as Batch spells them; "" for none known."""
    status_reason: tuple[str, ...] = ()
    """Prefixes of the job's reason."""
    container_reason: tuple[str, ...] = ()
    """Prefixes of the container's reason."""
    mentions: tuple[str, ...] = ()
    """Found anywhere in either reason, whatever the case."""
    exit_codes: tuple[int, ...] = ()
    has_exit_code: bool | None = None

    def matches(self, seen: Evidence) -> bool:
        code = seen.exit_code
        texts = f"{seen.status_reason}\n{seen.container_reason}".lower()
        return (
            self.committed in (None, seen.committed)
            and self.stop_intent in (None, seen.stop_intent)
            and self.started in (None, seen.started)
            and (not self.batch_status or (seen.batch_status or "") in self.batch_status)
            and (not self.status_reason or seen.status_reason.startswith(self.status_reason))
            and (not self.container_reason or seen.container_reason.startswith(self.container_reason))
            and (not self.mentions or any(word.lower() in texts for word in self.mentions))
            and (not self.exit_codes or code in self.exit_codes)
            and self.has_exit_code in (None, code is not None)
        )


#: Facts of ours. CancelJob cannot have stopped what had started: then the end had another cause.
CERTAIN: tuple[Rule, ...] = (
    Rule(name="commit", outcome=Outcome.SUCCEEDED, committed=True),
    Rule(name="cancel", outcome=Outcome.CANCELLED, stop_intent=StopIntent.CANCEL),
    Rule(name="supersede", outcome=Outcome.SUPERSEDED, stop_intent=StopIntent.SUPERSEDE),
    Rule(name="fall-back", outcome=Outcome.NO_CAPACITY, stop_intent=StopIntent.FALL_BACK, started=False),
    Rule(name="pause", outcome=Outcome.SUPERSEDED, stop_intent=StopIntent.PAUSE, started=False),
)

_PULL = ("CannotPull",)
_START = ("CannotPull", "CannotStart", "ResourceInitialization")
_REFUSED = ("unauthorized", "access denied", "accessdenied", "not authorized", "no basic auth", "authorization failed")
_NO_SUCH_IMAGE = ("not found", "manifest unknown", "does not exist", "does not contain descriptor matching platform")
_AGENT = ("CannotInspect", "CannotCreate", "DockerTimeout", "Cgroup", "AGENT", "TaskFailedToStart")

#: What Batch, ECS and the worker say.
BUILT_IN: tuple[Rule, ...] = (
    Rule(name="time-out", outcome=Outcome.TIMED_OUT, status_reason=("Job attempt duration exceeded timeout",)),
    Rule(name="host-terminated", outcome=Outcome.SPOT_RECLAIMED, status_reason=("Host EC2",)),
    Rule(
        name="head-misconfigured",
        outcome=Outcome.MISCONFIGURED,
        status_reason=("Canceled by JobStateTimeLimit action",),
        mentions=("MISCONFIGURATION:", "ACTION_REQUIRED"),
    ),
    Rule(name="head-dry", outcome=Outcome.NO_CAPACITY, status_reason=("Canceled by JobStateTimeLimit action",)),
    Rule(name="capacity", outcome=Outcome.NO_CAPACITY, status_reason=("CAPACITY:", "UNDETERMINED")),
    Rule(
        name="misconfigured",
        outcome=Outcome.MISCONFIGURED,
        status_reason=(
            "MISCONFIGURATION:",
            "ACTION_REQUIRED",
            "Container Overrides length must be at most",
            "JobQueue deleted",
        ),
    ),
    Rule(name="out-of-memory", outcome=Outcome.OUT_OF_MEMORY, container_reason=("OutOfMemory",)),
    Rule(name="refused", outcome=Outcome.CONFIG_ERROR, container_reason=_START, mentions=_REFUSED),
    Rule(
        name="start-refused",
        outcome=Outcome.CONFIG_ERROR,
        status_reason=("Task failed to start",),
        mentions=_REFUSED,
    ),
    Rule(name="no-such-image", outcome=Outcome.CONFIG_ERROR, container_reason=_PULL, mentions=_NO_SUCH_IMAGE),
    Rule(
        name="no-such-command",
        outcome=Outcome.CONFIG_ERROR,
        container_reason=("CannotStart",),
        mentions=("executable file not found",),
    ),
    Rule(name="start-failed", outcome=Outcome.START_FAILED, container_reason=(*_START, *_AGENT)),
    Rule(name="task-failed", outcome=Outcome.START_FAILED, status_reason=("Task failed to start", *_AGENT)),
    # A stop of ours whose intent is not on record any more, as after a restored database: nobody's fault.
    Rule(name="own-stop", outcome=Outcome.INTERRUPTED, status_reason=("reembed: ",), exit_codes=(137, 143)),
    Rule(name="interrupted", outcome=Outcome.INTERRUPTED, exit_codes=(ExitCode.INTERRUPTED, 143)),
    Rule(name="incomplete", outcome=Outcome.INCOMPLETE, exit_codes=(ExitCode.INCOMPLETE,)),
    Rule(name="bad-data", outcome=Outcome.BAD_DATA, exit_codes=(ExitCode.BAD_DATA,)),
    Rule(name="config-error", outcome=Outcome.CONFIG_ERROR, exit_codes=(ExitCode.CONFIG_ERROR,)),
    Rule(name="host-sick", outcome=Outcome.HOST_SICK, exit_codes=(ExitCode.HOST_SICK,)),
    Rule(name="memory-code", outcome=Outcome.OUT_OF_MEMORY, exit_codes=(ExitCode.OUT_OF_MEMORY, 137)),
    Rule(name="void", outcome=Outcome.SUPERSEDED, exit_codes=(ExitCode.VOID,)),
    Rule(name="mismatch", outcome=Outcome.MISCONFIGURED, exit_codes=(ExitCode.ASSIGNMENT_MISMATCH,)),
    Rule(name="nothing-committed", outcome=Outcome.NO_COMMIT, exit_codes=(ExitCode.OK,)),
    Rule(name="crash", outcome=Outcome.CRASHED, has_exit_code=True),
    Rule(name="no-word", outcome=Outcome.LOST, batch_status=("",)),
    Rule(name="nothing-committed-no-code", outcome=Outcome.NO_COMMIT, batch_status=("SUCCEEDED",)),
    # An end without code or known reason after the start: the host took it along. Before: it never ran.
    Rule(name="host-gone", outcome=Outcome.HOST_LOST, started=True, batch_status=("FAILED",)),
    Rule(name="never-ran", outcome=Outcome.START_FAILED, started=False, batch_status=("FAILED",)),
    # A status that is no end, as after a missing job whose last word was RUNNING.
    Rule(name="no-end", outcome=Outcome.LOST),
)

#: What a row of an operator may conclude: the rest follows from facts of ours, never from a text.
CONCLUSIONS = frozenset(
    set(Outcome) - {Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.SUPERSEDED, Outcome.INCOMPLETE, Outcome.LOST}
)


def table(own: Sequence[Rule] = ()) -> tuple[Rule, ...]:
    """The whole table in its order, with an operator's `own` rows; ValueError says which of them cannot stand."""
    names = {rule.name for rule in (*CERTAIN, *BUILT_IN)}
    for rule in own:
        if rule.name in names:
            raise ValueError(f"outcome rule {rule.name!r}: there is another of this name")
        if rule.outcome not in CONCLUSIONS:
            raise ValueError(
                f"outcome rule {rule.name!r}: a row cannot conclude {rule.outcome.value}; "
                f"it may conclude {', '.join(sorted(CONCLUSIONS))}"
            )
        texts = (*rule.status_reason, *rule.container_reason, *rule.mentions)
        if not texts and not rule.exit_codes:
            raise ValueError(f"outcome rule {rule.name!r} would match nearly everything: name a text or an exit code")
        if "" in texts:
            raise ValueError(f"outcome rule {rule.name!r}: an empty text matches everything")
        names.add(rule.name)
    return (*CERTAIN, *own, *BUILT_IN)


TABLE = table()


def rule_for(seen: Evidence, rules: Sequence[Rule] = TABLE) -> Rule:
    """The row that decides."""
    return next(rule for rule in rules if rule.matches(seen))


def classify(seen: Evidence, rules: Sequence[Rule] = TABLE) -> Outcome:
    """The outcome class of one ended attempt; LOST when there is no evidence of an end at all."""
    return rule_for(seen, rules).outcome
