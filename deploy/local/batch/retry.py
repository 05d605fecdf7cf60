"""Whether Batch itself runs a failed attempt again. Pure; the rules of aws-facts 1.5."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.local.batch.model import ExitRule, RetryAction


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt ended, in the fields Batch shows."""

    status_reason: str
    exit_code: int | None = None
    reason: str | None = None
    retryable: bool = True  # False: terminated, timed out
    counted: bool = True  # False: lost before RUNNING

    @property
    def succeeded(self) -> bool:
        return self.retryable and self.exit_code == 0


def runs_again(end: AttemptEnd, attempts_made: int, max_attempts: int, rules: tuple[ExitRule, ...]) -> bool:
    if end.succeeded or not end.retryable or attempts_made >= max_attempts:
        return False
    for rule in rules:
        if _matches(rule, end):
            return rule.action is RetryAction.RETRY
    return True


def _matches(rule: ExitRule, end: AttemptEnd) -> bool:
    """All conditions that the rule gives must hold; a field that the attempt lacks matches only `*`."""
    conditions = (
        (rule.on_status_reason, end.status_reason),
        (rule.on_reason, end.reason or ""),
        (rule.on_exit_code, "" if end.exit_code is None else str(end.exit_code)),
    )
    return all(pattern is None or _glob(pattern, text) for pattern, text in conditions)


def _glob(pattern: str, text: str) -> bool:
    if pattern.endswith("*"):
        return text.startswith(pattern[:-1])
    return text == pattern
