"""Each invariant finds what breaks it, and nothing in a healthy database."""

from __future__ import annotations

from typing import Any

import pytest

from controller.core.invariants import check, i7_looked_at
from schema.states import OUTCOME_RULES, AttemptState, JobState, Outcome, RequestState, ShardState
from tests.builders import NOW, ago, attempt, job, request, shard

ASSIGNED = shard(0, state=ShardState.ASSIGNED, attempt_id="a-0")
DONE = shard(1, state=ShardState.SUCCEEDED, marker_digest="m", ok=39, bad=1)
ENDED = {"state": AttemptState.ENDED, "outcome": Outcome.SUCCEEDED, "ended_at": NOW}
JOB = job(state=JobState.SUBMITTED, size=2)
HEALTHY: dict[str, list[Any]] = {
    "requests": [request(shards=2, assets=80)],
    "shards": [ASSIGNED, DONE],
    "attempts": [attempt(0), attempt(1, **ENDED)],
    "jobs": [JOB],
}
OVER_CAP = (OUTCOME_RULES[Outcome.LOST].cap or 0) + 2
LOST = [attempt(n, shard=0, **ENDED | {"outcome": Outcome.LOST}) for n in range(10, 10 + OVER_CAP)]
SUCCEEDED = {"state": RequestState.SUCCEEDED, "shards": 2}
FAILED = shard(0, state=ShardState.FAILED)
CANCELLED: dict[str, list[Any]] = {
    "requests": [request(state=RequestState.CANCELLED)],
    "shards": [DONE],
    "attempts": [],
}


def test_nothing_is_wrong_with_a_healthy_database() -> None:
    assert check(**HEALTHY) == []


@pytest.mark.parametrize(
    ("tag", "broken"),
    [
        pytest.param("I2", {"attempts": [attempt(0), attempt(1, shard=0)]}, id="two live attempts of a shard"),
        pytest.param("I4", {"attempts": []}, id="assigned to nothing"),
        pytest.param("I4", {"attempts": [attempt(0, **ENDED)]}, id="assigned to an attempt that has ended"),
        pytest.param("I4", {"attempts": [attempt(0, generation=2)]}, id="assigned to another generation"),
        pytest.param("I4", {"shards": [shard(0, attempt_id="a-0")]}, id="pending with an attempt"),
        pytest.param("I5", {"shards": [shard(1, state=ShardState.SUCCEEDED)]}, id="succeeded without a marker"),
        pytest.param("I6", {"jobs": []}, id="attempts without a job"),
        pytest.param("I6", {"jobs": [job(state=JobState.CLOSED)]}, id="a closed job with a live attempt"),
        pytest.param("I8", {"attempts": [attempt(0), *LOST]}, id="more attempts than the cap"),
        pytest.param("I10", {"requests": [request(state=RequestState.ATTENTION)]}, id="work in a request that waits"),
        pytest.param("I10", CANCELLED | {"attempts": [attempt(0, shard=None)]}, id="an attempt outlives its request"),
        pytest.param("I10", CANCELLED, id="a job outlives its request"),
        pytest.param("I11", {"requests": [request(**SUCCEEDED)], "shards": [FAILED, DONE]}, id="a gap nobody accepted"),
        pytest.param("I11", {"requests": [request(**SUCCEEDED, assets=81)], "shards": [DONE]}, id="an asset too few"),
    ],
)
def test_a_violation_is_found_and_named(tag: str, broken: dict[str, list[Any]]) -> None:
    found = check(**HEALTHY | broken)
    assert found
    assert {line.partition(":")[0] for line in found} == {tag}


def test_i11_an_accepted_gap_is_none() -> None:
    accepted = request(**SUCCEEDED, assets=80, accept_failures=True)
    assert check(**HEALTHY | {"requests": [accepted], "shards": [FAILED, DONE]}) == []


def test_i7_a_live_attempt_that_nobody_looks_at() -> None:
    attempts = [attempt(0, next_check_at=ago(61)), attempt(1, next_check_at=ago(61), **ENDED), attempt(2)]
    assert i7_looked_at(attempts, NOW, 60) == ["I7: attempt a-0 is overdue"]
