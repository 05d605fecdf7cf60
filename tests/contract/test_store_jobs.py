"""Jobs in the real store: unique names, guards, what is to submit, to close and to watch."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from controller.core.records import Job
from controller.core.transitions import never_submitted, submit_started, submitted
from controller.store import PostgresStore
from schema.states import AttemptState, JobKind, JobState
from tests.builders import NOW, ago, attempt, job, request, shard
from tests.store_rows import fill

LATER = NOW + timedelta(seconds=60)


def named(number: int, **changes: Any) -> Job:
    return job(id=f"j-{number}", name=f"reembed-{number}", **changes)


def ids(jobs: Any) -> list[str]:
    return [found.id for found in jobs]


async def read(store: PostgresStore, job_id: str = "j-1") -> Job:
    async with store.transaction() as tx:
        found = await tx.jobs.get(job_id)
    assert found is not None
    return found


async def test_a_job_comes_back_as_it_was(store: PostgresStore) -> None:
    full = job(
        kind=JobKind.INDEX,
        state=JobState.CLOSED,
        size=2,
        multi_node=True,
        assignment={"entries": [{"shard": 1}]},
        submit_started_at=NOW,
        submitted_at=NOW,
        closed_at=LATER,
        batch_job_id="b",
        submit_epoch=2**40,
        reason="why",
    )
    await fill(store, request(), full)
    assert await read(store) == full
    async with store.transaction() as tx:
        assert await tx.jobs.get("j-9") is None


async def test_a_name_is_used_once(store: PostgresStore) -> None:
    await fill(store, request(), job())
    with pytest.raises(IntegrityError, match="jobs_name_key"):
        await fill(store, job(id="j-2"))


async def test_a_submission_is_recorded_once(store: PostgresStore) -> None:
    await fill(store, request(), job())
    async with store.transaction() as tx:
        assert await tx.jobs.apply(submit_started(job(), NOW, 7))
        assert await tx.jobs.apply(submitted(job(), "b-1", LATER))
        assert not await tx.jobs.apply(submitted(job(), "b-2", LATER))
        assert not await tx.jobs.apply(never_submitted(job(), "absent", LATER))
    values = {"submit_started_at": NOW, "submit_epoch": 7, "batch_job_id": "b-1", "submitted_at": LATER}
    assert await read(store) == replace(job(), state=JobState.SUBMITTED, **values)


async def test_intended_are_oldest_first(store: PostgresStore) -> None:
    await fill(
        store,
        request(),
        named(1),
        named(2, created_at=ago(5), submit_started_at=NOW),
        named(3, state=JobState.SUBMITTED),
        named(4, state=JobState.CLOSED),
    )
    async with store.transaction() as tx:
        assert ids(await tx.jobs.intended(NOW, 9)) == ["j-2", "j-1"]
        assert ids(await tx.jobs.intended(NOW, 1)) == ["j-2"]


async def test_a_job_closes_when_its_last_attempt_has_ended(store: PostgresStore) -> None:
    ended = {"state": AttemptState.ENDED}
    await fill(
        store,
        request(),
        *(shard(number) for number in range(6)),
        named(1, state=JobState.SUBMITTED),
        named(2, state=JobState.SUBMITTED),
        named(3, state=JobState.INTENDED),
        named(4, state=JobState.SUBMITTED),
        attempt(0, job_id="j-1", **ended),
        attempt(1, job_id="j-1"),
        attempt(2, job_id="j-2", **ended),
        attempt(3, job_id="j-3", **ended),
        attempt(4, job_id="j-4", **ended),
    )
    async with store.transaction() as tx:
        assert await tx.jobs.live_of_request("r-1") == 4
        assert await tx.jobs.close_finished(LATER, 1) == 1
        assert await tx.jobs.close_finished(LATER, 9) == 1
        assert await tx.jobs.close_finished(LATER, 9) == 0
        assert await tx.jobs.live_of_request("r-1") == 2
        assert await tx.jobs.live_of_request("r-2") == 0
    assert await read(store, "j-2") == named(2, state=JobState.CLOSED, closed_at=LATER)
    assert (await read(store, "j-1")).state is JobState.SUBMITTED


async def test_many_at_once_and_only_those_that_there_are(store: PostgresStore) -> None:
    await fill(store, request(), named(1), named(2), named(3))
    async with store.transaction() as tx:
        assert await tx.jobs.of_ids({"j-3", "j-1", "j-9"}) == {"j-1": named(1), "j-3": named(3)}
        assert await tx.jobs.of_ids([]) == {}


async def test_names_that_are_known(store: PostgresStore) -> None:
    await fill(store, request(), named(1), named(2))
    async with store.transaction() as tx:
        found = await tx.jobs.known_names(["reembed-2", "reembed-1", "reembed-3"])
        assert found == {"reembed-1": named(1), "reembed-2": named(2)}
        assert await tx.jobs.known_names([]) == {}
