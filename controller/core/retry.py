"""After an attempt ended: when and how the shard runs again, or why it does not.

Budgets are counted from the attempt rows of the shard's current generation, so they survive restarts and a requeue
(a new generation) starts fresh ones. Waiting for capacity costs nothing, ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controller.core.records import Attempt
from schema.states import OUTCOME_RULES, Budget, Outcome


@dataclass(frozen=True, kw_only=True)
class Limits:
    """From settings.Retries; seconds unless named otherwise."""

    failures: int
    backoff_seconds: float
    backoff_max_seconds: float
    isolate_after: int
    hold_after: int = 3


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Run again at `eligible_at`; `isolate` are chunks to run asset by asset."""

    eligible_at: datetime
    isolate: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """No automatic retry; the shard fails with this reason."""

    reason: str


#: The worker died while working: its open chunks are suspects.
_DEATHS = frozenset({Outcome.CRASHED, Outcome.OUT_OF_MEMORY, Outcome.TIMED_OUT, Outcome.NO_COMMIT})
#: What the first halving of a batch starts from, and how many smaller batches come before more memory.
LARGEST_BATCH = 64
SMALLER_BATCHES = 1
_RECLAIMS = frozenset({Outcome.SPOT_RECLAIMED, Outcome.INTERRUPTED})
_BAD_HOSTS = frozenset({Outcome.HOST_SICK, Outcome.HOST_LOST, Outcome.MISCONFIGURED})
_PROMPT = frozenset({Outcome.NO_CAPACITY, Outcome.SUPERSEDED, Outcome.SPOT_RECLAIMED, Outcome.INTERRUPTED})


def decide(
    outcome: Outcome, history: Sequence[Attempt], now: datetime, limits: Limits, jitter: float
) -> Retry | GiveUp:
    """`history`: ended attempts of this generation, oldest first, the one just ended included; `jitter` in [0, 1)."""
    rule = OUTCOME_RULES[outcome]
    counts = Counter(attempt.outcome for attempt in history)
    if not rule.retry:
        return GiveUp(reason=outcome.value)
    if rule.budget is Budget.FAILURES:
        failures = sum(counts[o] for o, r in OUTCOME_RULES.items() if r.budget is Budget.FAILURES)
        if failures >= limits.failures:
            return GiveUp(reason=f"{outcome.value}: {failures} failures, the budget is {limits.failures}")
    if rule.cap is not None and counts[outcome] >= rule.cap and not _may_finalise(outcome, history):
        return GiveUp(reason=f"{outcome.value}: {counts[outcome]} times, the cap is {rule.cap}")
    wait = 0.0 if outcome in _PROMPT else _backoff(_streak(history), limits, jitter)
    return Retry(eligible_at=now + timedelta(seconds=wait), isolate=suspects(history, limits.isolate_after))


def suspects(history: Sequence[Attempt], isolate_after: int) -> tuple[int, ...]:
    """Chunks that were open at `isolate_after` deaths or more."""
    deaths = Counter(chunk for attempt in history if attempt.outcome in _DEATHS for chunk in set(attempt.open_chunks))
    return tuple(sorted(chunk for chunk, count in deaths.items() if count >= isolate_after))


def must_finalise(history: Sequence[Attempt]) -> bool:
    """The next attempt shall make retryable rows final: the cap is near, or three runs brought nothing."""
    incomplete = [attempt for attempt in history if attempt.outcome is Outcome.INCOMPLETE]
    cap = OUTCOME_RULES[Outcome.INCOMPLETE].cap or 0
    stuck = len(incomplete) >= 3 and all(attempt.figures.ok == 0 for attempt in incomplete[-3:])
    return len(incomplete) >= cap or stuck


def fetch_concurrency(history: Sequence[Attempt], usual: int) -> int | None:
    """Half of it for every attempt that left a remainder, which is throttling as a rule; None: as usual."""
    incomplete = sum(attempt.outcome is Outcome.INCOMPLETE for attempt in history)
    return max(1, usual >> min(incomplete, 6)) if incomplete else None


def batch_size(history: Sequence[Attempt]) -> int | None:
    """A smaller batch after each attempt that ran out of memory; None: as measured for the model."""
    short = _out_of_memory(history)
    return max(1, LARGEST_BATCH >> min(short, 6)) if short else None


def needs_large_memory(history: Sequence[Attempt]) -> bool:
    """The smaller batch did not help: the shard gets the queue's large memory from here on."""
    return _out_of_memory(history) >= SMALLER_BATCHES + 1


def queue_to_avoid(history: Sequence[Attempt]) -> str | None:
    """Where the next run rather does not go: the queue whose host was bad, or that took the shard's host away twice
    in a row."""
    last = history[-1]
    reclaimed = [attempt.outcome in _RECLAIMS and attempt.queue == last.queue for attempt in history[-2:]]
    return last.queue if last.outcome in _BAD_HOSTS or reclaimed == [True, True] else None


def should_hold(latest: Sequence[Outcome], limits: Limits) -> bool:
    """A request whose `latest` attempts all met a wrong configuration waits for its operator: more would meet it too.
    `latest`: how its GPU attempts ended since an operator last sent it on, newest first."""
    alike = latest[: limits.hold_after]
    return len(alike) == limits.hold_after and all(outcome is Outcome.CONFIG_ERROR for outcome in alike)


def _out_of_memory(history: Sequence[Attempt]) -> int:
    return sum(attempt.outcome is Outcome.OUT_OF_MEMORY for attempt in history)


def _may_finalise(outcome: Outcome, history: Sequence[Attempt]) -> bool:
    """INCOMPLETE at its cap gets exactly one more run, which makes what is left final."""
    cap = OUTCOME_RULES[Outcome.INCOMPLETE].cap or 0
    return outcome is Outcome.INCOMPLETE and sum(a.outcome is outcome for a in history) == cap


def _streak(history: Sequence[Attempt]) -> int:
    """How many attempts in a row ended without cost to a queue's capacity: the exponent of the wait."""
    return sum(attempt.outcome not in _PROMPT for attempt in history)


def _backoff(streak: int, limits: Limits, jitter: float) -> float:
    ceiling = min(limits.backoff_max_seconds, limits.backoff_seconds * 2 ** min(max(streak - 1, 0), 16))
    return ceiling * (0.5 + jitter / 2)
