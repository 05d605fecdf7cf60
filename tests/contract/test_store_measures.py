"""Aggregates of the real store: rows by state, measured rates, seconds and outcomes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from controller.store import PostgresStore
from schema.plan import Figures
from schema.states import AttemptState, JobKind, Outcome, RequestState, ShardState
from tests.builders import NOW, ago, attempt, job, request, shard
from tests.store_rows import fill


def ended(outcome: Outcome, seconds: float, assets: int = 0, **changes: Any) -> dict[str, Any]:
    values = {"state": AttemptState.ENDED, "outcome": outcome, "started_at": ago(seconds), "ended_at": NOW}
    return {**values, "figures": Figures(assets=assets), **changes}


@pytest.fixture
async def filled(store: PostgresStore) -> PostgresStore:
    await fill(
        store,
        request(),
        request(id="r-2", idempotency_key="2", body={"model": "other@1"}, state=RequestState.FAILED),
        *(shard(number) for number in range(8)),
        shard(0, request_id="r-2", state=ShardState.FAILED),
        job(size=9),
        job(id="j-2", name="j-2", request_id="r-2"),
        attempt(0, **ended(Outcome.SUCCEEDED, 100, 1000)),
        attempt(1, **ended(Outcome.SUCCEEDED, 300, 1000)),
        attempt(2, queue="g5", **ended(Outcome.SUCCEEDED, 10, 30)),
        attempt(3, **ended(Outcome.CRASHED, 50, 9999)),
        attempt(4, **ended(Outcome.SUCCEEDED, 1, 9999, ended_at=ago(900), started_at=ago(901))),
        attempt(5, started_at=ago(40), last_contact_at=ago(10)),
        attempt(6, state=AttemptState.QUEUED, started_at=None),
        attempt(7, **ended(Outcome.NO_CAPACITY, 0, started_at=None)),
        attempt(8, kind=JobKind.PREPARE, shard=None, queue="cpu", **ended(Outcome.SUCCEEDED, 20)),
        attempt(0, id="a-other", job_id="j-2", request_id="r-2", **ended(Outcome.SUCCEEDED, 1, 9999)),
    )
    return store


async def test_rows_by_state(filled: PostgresStore) -> None:
    async with filled.transaction() as tx:
        assert await tx.measures.states() == {
            ("attempt", "ended"): 8,
            ("attempt", "queued"): 1,
            ("attempt", "running"): 1,
            ("job", "intended"): 2,
            ("request", "failed"): 1,
            ("request", "running"): 1,
            ("shard", "failed"): 1,
            ("shard", "pending"): 8,
        }


async def test_the_rate_of_a_model_is_all_assets_over_all_seconds(filled: PostgresStore) -> None:
    async with filled.transaction() as tx:
        assert await tx.measures.assets_per_second("tiny@1", ago(60)) == {"g5": 3.0, "g6e": 5.0}
        assert await tx.measures.assets_per_second("tiny@1", NOW + timedelta(1)) == {}
        assert await tx.measures.assets_per_second("unknown@1", ago(60)) == {}


async def test_seconds_by_queue_and_verdict(filled: PostgresStore) -> None:
    async with filled.transaction() as tx:
        assert await tx.measures.attempt_seconds("r-1") == {
            ("cpu", None, "succeeded"): 20.0,
            ("g5", None, "succeeded"): 10.0,
            ("g6e", None, "crashed"): 50.0,
            ("g6e", None, "running"): 30.0,
            ("g6e", None, "succeeded"): 401.0,
        }
        assert await tx.measures.attempt_seconds("r-9") == {}


async def test_outcomes_count_gpu_attempts(filled: PostgresStore) -> None:
    async with filled.transaction() as tx:
        assert await tx.measures.outcomes("r-1") == {
            Outcome.CRASHED: 1,
            Outcome.NO_CAPACITY: 1,
            Outcome.SUCCEEDED: 4,
        }


async def test_latest_outcomes_newest_first_and_since(filled: PostgresStore) -> None:
    async with filled.transaction() as tx:
        every = await tx.measures.latest_outcomes("r-1", None, 99)
        assert sorted(every) == [Outcome.CRASHED, Outcome.NO_CAPACITY, *[Outcome.SUCCEEDED] * 4]
        assert list(await tx.measures.latest_outcomes("r-1", None, 2)) == list(every[:2])
        assert list(await tx.measures.latest_outcomes("r-1", NOW + timedelta(days=1), 99)) == []
        assert list(await tx.measures.latest_outcomes("r-9", None, 99)) == []
