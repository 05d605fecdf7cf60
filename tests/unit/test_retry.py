"""Budgets and waits, counted from attempt rows."""

from __future__ import annotations

from datetime import timedelta

import pytest

from controller.core.records import Attempt
from controller.core.retry import (
    GiveUp,
    Limits,
    Retry,
    batch_size,
    decide,
    fetch_concurrency,
    must_finalise,
    needs_large_memory,
    queue_to_avoid,
    should_hold,
    suspects,
)
from schema.plan import Figures
from schema.states import OUTCOME_RULES, AttemptState, Budget, Outcome
from tests.builders import NOW, attempt

LIMITS = Limits(failures=4, backoff_seconds=30, backoff_max_seconds=900, isolate_after=2)


def ended(*outcomes: Outcome, **changes: object) -> list[Attempt]:
    return [attempt(i, state=AttemptState.ENDED, outcome=o, **changes) for i, o in enumerate(outcomes)]


def verdict(*outcomes: Outcome, jitter: float = 0.5) -> Retry | GiveUp:
    return decide(outcomes[-1], ended(*outcomes), NOW, LIMITS, jitter)


def test_capacity_is_free_for_ever() -> None:
    assert verdict(*[Outcome.NO_CAPACITY] * 500) == Retry(eligible_at=NOW)


def test_failures_share_one_budget() -> None:
    mixed = [Outcome.CRASHED, Outcome.OUT_OF_MEMORY, Outcome.NO_COMMIT]
    assert isinstance(verdict(*mixed), Retry)
    assert isinstance(verdict(*mixed, Outcome.CRASHED), GiveUp)


@pytest.mark.parametrize("outcome", [o for o, rule in OUTCOME_RULES.items() if rule.budget is Budget.OWN_CAP])
def test_own_cap(outcome: Outcome) -> None:
    cap = OUTCOME_RULES[outcome].cap
    assert cap is not None
    assert isinstance(verdict(*[outcome] * (cap - 1)), Retry)
    last = cap + 1 if outcome is Outcome.INCOMPLETE else cap  # one finalising run more
    assert isinstance(verdict(*[outcome] * last), GiveUp)


def test_reclaims_do_not_spend_the_failure_budget() -> None:
    history = [Outcome.SPOT_RECLAIMED] * 5 + [Outcome.CRASHED] * 3
    assert isinstance(verdict(*history), Retry)


@pytest.mark.parametrize("outcome", [Outcome.BAD_DATA, Outcome.CANCELLED, Outcome.SUCCEEDED])
def test_no_blind_retry(outcome: Outcome) -> None:
    assert isinstance(verdict(outcome), GiveUp)


def test_wait_doubles_with_jitter_and_is_capped() -> None:
    waits = []
    for count in (1, 2, 3):
        decided = verdict(*[Outcome.CRASHED] * count)
        assert isinstance(decided, Retry)
        waits.append((decided.eligible_at - NOW).total_seconds())
    assert waits == [22.5, 45.0, 90.0]
    decided = verdict(*[Outcome.INCOMPLETE] * 19, jitter=0.999)
    assert isinstance(decided, Retry)
    assert decided.eligible_at <= NOW + timedelta(seconds=900)


def test_two_deaths_on_one_open_chunk_isolate_it() -> None:
    once = ended(Outcome.CRASHED, open_chunks=(3, 4))
    twice = [*once, *ended(Outcome.CRASHED, open_chunks=(4,))]
    assert suspects(once, 2) == ()
    assert suspects(twice, 2) == (4,)


def test_a_reclaim_is_no_death() -> None:
    assert suspects(ended(*[Outcome.SPOT_RECLAIMED] * 3, open_chunks=(1,)), 2) == ()


def test_the_next_run_avoids_a_bad_host_and_what_reclaimed_it_twice_in_a_row() -> None:
    reclaimed, crashed = Outcome.SPOT_RECLAIMED, Outcome.CRASHED
    assert queue_to_avoid(ended(Outcome.HOST_SICK, queue="g5")) == "g5"
    assert queue_to_avoid(ended(reclaimed, queue="g5")) is None
    assert queue_to_avoid(ended(Outcome.INTERRUPTED, reclaimed, queue="g5")) == "g5"
    assert queue_to_avoid(ended(reclaimed, crashed, reclaimed, queue="g5")) is None
    assert queue_to_avoid(ended(reclaimed, queue="g6e") + ended(reclaimed, queue="g5")) is None


def test_finalise_after_three_runs_without_progress_only() -> None:
    stuck = ended(*[Outcome.INCOMPLETE] * 3, figures=Figures(ok=0))
    moving = ended(*[Outcome.INCOMPLETE] * 3, figures=Figures(ok=5))
    assert must_finalise(stuck)
    assert not must_finalise(moving)


def test_out_of_memory_goes_to_a_smaller_batch_then_to_more_memory() -> None:
    steps = [ended(*[Outcome.OUT_OF_MEMORY] * count) for count in range(4)]
    assert [(batch_size(history), needs_large_memory(history)) for history in steps] == [
        (None, False),
        (32, False),
        (16, True),
        (8, True),
    ]
    assert batch_size(ended(*[Outcome.OUT_OF_MEMORY] * 99)) == 1


def test_each_remainder_is_fetched_with_half_the_concurrency() -> None:
    steps = [ended(*[Outcome.INCOMPLETE] * count) for count in (0, 1, 2, 20)]
    assert [fetch_concurrency(history, 64) for history in steps] == [None, 32, 16, 1]


def test_infrastructure_faults_never_eat_the_failure_budget() -> None:
    rules = OUTCOME_RULES.items()
    free = [o for o, rule in rules if rule.retry and rule.budget is not Budget.FAILURES]
    assert {Outcome.SPOT_RECLAIMED, Outcome.HOST_LOST, Outcome.START_FAILED, Outcome.LOST} <= set(free)
    for outcome in free:
        assert isinstance(verdict(outcome, outcome, *[Outcome.CRASHED] * 3), Retry)


def test_a_request_is_held_after_a_few_alike_and_in_a_row() -> None:
    wrong, other = Outcome.CONFIG_ERROR, Outcome.SUCCEEDED
    assert should_hold([wrong] * 3, LIMITS)
    assert should_hold([wrong] * 3 + [other], LIMITS)
    assert not should_hold([wrong] * 2, LIMITS)
    assert not should_hold([wrong, other, wrong, wrong], LIMITS)
    assert not should_hold([], LIMITS)
