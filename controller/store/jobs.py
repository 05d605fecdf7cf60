"""Jobs: one SubmitJob each, written before the call and closed when nothing of it lives."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, literal, select, update
from sqlalchemy.dialects.postgresql import insert

from controller.core.changes import JobChange
from controller.core.records import Job
from controller.store.connection import Connection
from controller.store.rows import Shape
from controller.store.sql import LIMIT, NOW, among, fixed, text, words
from schema.states import AttemptState, JobKind, JobState
from schema.tables import attempts, jobs

SHAPE = Shape(Job, jobs, kind=JobKind, state=JobState)

_CLOSED = jobs.c.state == fixed(JobState.CLOSED)
_BY_AGE = (jobs.c.created_at, jobs.c.id)

#: A new job; its name is unique.
INSERT = insert(jobs)
#: One job.
GET = select(*SHAPE.columns).where(jobs.c.id == text("id"))
#: Jobs with these ids.
OF_IDS = select(*SHAPE.columns).where(among(jobs.c.id, "ids")).order_by(jobs.c.id)
#: Jobs whose Batch id is not known, oldest first.
INTENDED = select(*SHAPE.columns).where(jobs.c.state == fixed(JobState.INTENDED)).order_by(*_BY_AGE).limit(LIMIT)
_ALIVE = (
    select(literal(1)).where(attempts.c.job_id == jobs.c.id, attempts.c.state != fixed(AttemptState.ENDED)).exists()
)
_FINISHED = (
    select(jobs.c.id)
    .where(jobs.c.state == fixed(JobState.SUBMITTED), ~_ALIVE)
    .order_by(*_BY_AGE)
    .limit(LIMIT)
    .with_for_update(skip_locked=True)
    .cte("picked")
)
#: Close submitted jobs of which no attempt lives.
CLOSE_FINISHED = update(jobs).where(jobs.c.id == _FINISHED.c.id).values(state=JobState.CLOSED.value, closed_at=NOW)
#: Jobs of some names.
NAMED = select(*SHAPE.columns).where(among(jobs.c.name, "names")).order_by(jobs.c.name)
#: How many jobs of a request are not closed.
COUNT_LIVE = (
    select(func.count().label("jobs")).select_from(jobs).where(jobs.c.request_id == text("of_request"), ~_CLOSED)
)


class SqlJobs:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def insert(self, job: Job) -> None:
        await self._connection.changed(INSERT, **SHAPE.write(job))

    async def get(self, job_id: str) -> Job | None:
        return SHAPE.read_one(await self._connection.row(GET, id=job_id))

    async def of_ids(self, job_ids: Collection[str]) -> Mapping[str, Job]:
        return {job.id: job for job in await self._read(OF_IDS, ids=sorted(job_ids))}

    async def apply(self, change: JobChange) -> bool:
        statement = (
            update(jobs)
            .where(jobs.c.id == text("the_id"), among(jobs.c.state, "expected"))
            .values(SHAPE.assignments(change.values, change.to))
        )
        return await self._connection.changed(statement, the_id=change.id, expected=words(change.expected)) == 1

    async def intended(self, now: datetime, limit: int) -> Sequence[Job]:
        return await self._read(INTENDED, limit=limit)

    async def close_finished(self, now: datetime, limit: int) -> int:
        return await self._connection.changed(CLOSE_FINISHED, now=now, limit=limit)

    async def known_names(self, names: Sequence[str]) -> Mapping[str, Job]:
        return {job.name: job for job in await self._read(NAMED, names=list(names))}

    async def live_of_request(self, request_id: str) -> int:
        row = await self._connection.row(COUNT_LIVE, of_request=request_id)
        assert row is not None
        return row.jobs

    async def _read(self, statement: Any, **values: Any) -> list[Job]:
        return [SHAPE.read(row) for row in await self._connection.rows(statement, **values)]
