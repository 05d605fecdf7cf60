"""Attempts: one run of one shard, or of a prepare or index job; every write carries the attempt's token or claim."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import CTE, ColumnElement, and_, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from controller.core.changes import AttemptChange
from controller.core.records import Attempt, QueueLoad, Waiting
from controller.store.connection import Connection
from controller.store.rows import Shape
from controller.store.sql import LIMIT, NOW, among, claim, fixed, number, text, time, words
from schema.plan import Figures
from schema.states import AttemptState, JobKind, Outcome, StopIntent
from schema.tables import attempts, jobs, queues, requests

SHAPE = Shape(
    Attempt,
    attempts,
    kind=JobKind,
    state=AttemptState,
    outcome=Outcome,
    stop_intent=StopIntent,
    open_chunks=tuple,
    poison=tuple,
    figures=Figures.model_validate,
)


def _locked(*conditions: ColumnElement[bool]) -> CTE:
    """Ids of live attempts, locked in one order, so that two bulk updates never wait for each other in a circle."""
    found = select(attempts.c.id).where(_LIVE, *conditions).order_by(attempts.c.id)
    return found.with_for_update().cte("picked")


_LIVE = attempts.c.state != fixed(AttemptState.ENDED)
_INFER = attempts.c.kind == fixed(JobKind.INFER)
_UNSTARTED = attempts.c.state.in_([fixed(AttemptState.SUBMITTING), fixed(AttemptState.QUEUED)])
_OF_REQUEST = attempts.c.request_id == text("of_request")
_BY_AGE = (attempts.c.created_at, attempts.c.id)

#: New attempts; a second live one of a shard violates `attempts_one_live` (I2).
INSERT = insert(attempts)
#: One attempt.
GET = select(*SHAPE.columns).where(attempts.c.id == text("id"))
#: One attempt, which nobody else changes until this transaction ends.
GET_LOCKED = GET.with_for_update()
#: The attempt that reported under a Batch job id.
BOUND_TO = select(*SHAPE.columns).where(attempts.c.batch_job_id == text("bound")).order_by(*_BY_AGE).limit(1)
#: The attempt at an index of the job with a Batch job id.
CHILD_OF = (
    select(*SHAPE.columns)
    .join(jobs, jobs.c.id == attempts.c.job_id)
    .where(jobs.c.batch_job_id == text("parent"), attempts.c.array_index == number("index"))
    .order_by(*_BY_AGE)
    .limit(1)
)
#: The attempt of a job that is no array.
LONE_OF = CHILD_OF.where(jobs.c.size == 1)
#: Attempts of one job, by index.
OF_JOB = select(*SHAPE.columns).where(attempts.c.job_id == text("job")).order_by(attempts.c.array_index)
#: Attempts of one shard, oldest first.
OF_SHARD = select(*SHAPE.columns).where(_OF_REQUEST, _INFER, attempts.c.shard == number("ordinal")).order_by(*_BY_AGE)
#: Attempts of one kind of a request, oldest first.
OF_KIND = select(*SHAPE.columns).where(_OF_REQUEST, attempts.c.kind == text("of_kind")).order_by(*_BY_AGE)
#: Attempts of a request that have not ended, oldest first.
LIVE_OF_REQUEST = select(*SHAPE.columns).where(_OF_REQUEST, _LIVE).order_by(*_BY_AGE).limit(LIMIT)
#: Live attempts that somebody should look at now and nobody does (I7).
CLAIM_DUE = claim(attempts, and_(_LIVE, attempts.c.next_check_at <= NOW), ("next_check_at", "id"), SHAPE.columns)
#: They were looked at.
CHECKED = (
    update(attempts)
    .where(among(attempts.c.id, "ids"), attempts.c.claimed_by == text("holder"))
    .values(claimed_by=None, claim_until=None, next_check_at=time("again_at"))
)
#: Live attempts that we want to end: those never asked first, then those asked longest ago. What CancelJob cannot
#: stop any more, since it has started, is not asked again.
STOPS_WANTED = (
    select(*SHAPE.columns)
    .where(
        _LIVE,
        attempts.c.stop_intent.is_not(None),
        or_(_UNSTARTED, attempts.c.stop_intent.not_in([StopIntent.FALL_BACK.value, StopIntent.PAUSE.value])),
        or_(attempts.c.stop_requested_at.is_(None), attempts.c.stop_requested_at < time("again_before")),
    )
    .order_by(attempts.c.stop_requested_at.nulls_first(), attempts.c.id)
    .limit(LIMIT)
)


_QUEUE_UNSTARTED = (
    select(attempts.c.id)
    .where(
        _LIVE,
        _INFER,
        _UNSTARTED,
        attempts.c.queue == text("of_queue"),
        or_(text("only_request").is_(None), attempts.c.request_id == text("only_request")),
        attempts.c.stop_intent.is_(None),
    )
    .order_by(attempts.c.created_at.desc(), attempts.c.id.desc())
    .limit(LIMIT)
    .with_for_update(skip_locked=True)
    .cte("picked")
)
#: Mark what a queue has not started, the newest first: the head is what starts next. One that reports just now is
#: skipped: it may be starting.
INTEND_STOP_QUEUE = update(attempts).where(attempts.c.id == _QUEUE_UNSTARTED.c.id).values(stop_intent=text("intent"))
_REQUEST_UNSTARTED = _locked(_OF_REQUEST, _INFER, _UNSTARTED, attempts.c.stop_intent.is_(None))
#: Mark what a request has not started, unless it is marked already.
INTEND_STOP_UNSTARTED = (
    update(attempts).where(attempts.c.id == _REQUEST_UNSTARTED.c.id).values(stop_intent=text("intent"))
)
_REQUEST_OTHERWISE = _locked(_OF_REQUEST, attempts.c.stop_intent.is_distinct_from(text("intent")))
#: Mark everything of a request, over any other mark, and ask again: a stop so far may have spared what runs.
INTEND_CANCEL = (
    update(attempts)
    .where(attempts.c.id == _REQUEST_OTHERWISE.c.id)
    .values(stop_intent=text("intent"), stop_requested_at=None)
)
_LOADED = (
    select(
        attempts.c.queue.label("name"),
        func.count().filter(attempts.c.state == fixed(AttemptState.SUBMITTING)).label("submitting"),
        func.count().filter(attempts.c.state == fixed(AttemptState.QUEUED)).label("queued"),
        func.count().filter(attempts.c.state == fixed(AttemptState.RUNNING)).label("running"),
        func.count().filter(_UNSTARTED, attempts.c.stop_intent.is_not(None)).label("stopping"),
        func.min(func.coalesce(attempts.c.queued_at, attempts.c.created_at))
        .filter(attempts.c.state == fixed(AttemptState.QUEUED))
        .label("oldest_queued_at"),
    )
    .where(_LIVE, _INFER)
    .group_by(attempts.c.queue)
    .cte("loaded")
)
_KNOWN = select(_LOADED.c.name).union(select(queues.c.name)).cte("known")
_LAST_START = select(func.max(attempts.c.started_at)).where(attempts.c.queue == _KNOWN.c.name, _INFER).scalar_subquery()
#: Live GPU work by queue. The last start also counts attempts that have ended, and queues where nothing lives.
LOADS = (
    select(
        _KNOWN.c.name,
        func.coalesce(_LOADED.c.submitting, 0).label("submitting"),
        func.coalesce(_LOADED.c.queued, 0).label("queued"),
        func.coalesce(_LOADED.c.running, 0).label("running"),
        func.coalesce(_LOADED.c.stopping, 0).label("stopping"),
        _LOADED.c.oldest_queued_at,
        _LAST_START.label("last_started_at"),
    )
    .select_from(_KNOWN.outerjoin(_LOADED, _LOADED.c.name == _KNOWN.c.name))
    .order_by(_KNOWN.c.name)
)
_HELD = func.count().label("attempts")
#: What waits where, by request: the urgent and the old ones first, as they are served.
WAITING = (
    select(attempts.c.queue, attempts.c.request_id, _HELD)
    .join(requests, requests.c.id == attempts.c.request_id)
    .where(_LIVE, _INFER, _UNSTARTED, attempts.c.stop_intent.is_(None))
    .group_by(attempts.c.queue, attempts.c.request_id, requests.c.priority, requests.c.created_at)
    .order_by(requests.c.priority.desc(), requests.c.created_at, attempts.c.request_id, attempts.c.queue)
    .limit(LIMIT)
)
_SILENT = _locked(attempts.c.last_contact_at < time("since"))
#: We could not hear; let the silence of every attempt begin now.
HEAR_AGAIN = update(attempts).where(attempts.c.id == _SILENT.c.id).values(last_contact_at=NOW)
#: Batch's names of children: `parent:index` in an array, `parent#index` in a multi-node job.
_CHILD = re.compile(r"(?P<parent>[^:#]+)[:#](?P<index>[0-9]{1,9})")


class SqlAttempts:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def insert_many(self, attempts: Sequence[Attempt]) -> None:
        if attempts:
            await self._connection.each(INSERT, [SHAPE.write(attempt) for attempt in attempts])

    async def get(self, attempt_id: str, *, lock: bool = False) -> Attempt | None:
        return SHAPE.read_one(await self._connection.row(GET_LOCKED if lock else GET, id=attempt_id))

    async def apply(self, change: AttemptChange) -> bool:
        statement = update(attempts).where(
            attempts.c.id == text("the_id"),
            attempts.c.token == text("the_token"),
            among(attempts.c.state, "expected"),
        )
        values: dict[str, Any] = {"the_id": change.id, "the_token": change.token, "expected": words(change.expected)}
        if change.seq is not None:
            statement, values["seq"] = statement.where(attempts.c.last_seq < number("seq")), change.seq
        statement = statement.values(SHAPE.assignments(change.values, change.to))
        return await self._connection.changed(statement, **values) == 1

    async def by_batch_job_id(self, batch_job_id: str) -> Attempt | None:
        row = await self._connection.row(BOUND_TO, bound=batch_job_id)
        if row is None:
            child = _CHILD.fullmatch(batch_job_id)
            if child is None:
                row = await self._connection.row(LONE_OF, parent=batch_job_id, index=0)
            else:
                row = await self._connection.row(CHILD_OF, parent=child["parent"], index=int(child["index"]))
        return SHAPE.read_one(row)

    async def of_job(self, job_id: str) -> Sequence[Attempt]:
        return await self._read(OF_JOB, job=job_id)

    async def of_shard(self, request_id: str, shard: int) -> Sequence[Attempt]:
        return await self._read(OF_SHARD, of_request=request_id, ordinal=shard)

    async def of_kind(self, request_id: str, kind: JobKind) -> Sequence[Attempt]:
        return await self._read(OF_KIND, of_request=request_id, of_kind=kind.value)

    async def live(self, request_id: str, limit: int) -> Sequence[Attempt]:
        return await self._read(LIVE_OF_REQUEST, of_request=request_id, limit=limit)

    async def claim_due(self, holder: str, now: datetime, until: datetime, limit: int) -> Sequence[Attempt]:
        return await self._read(CLAIM_DUE, holder=holder, now=now, until=until, limit=limit)

    async def checked(self, attempt_ids: Sequence[str], holder: str, next_check_at: datetime) -> None:
        await self._connection.changed(CHECKED, ids=list(attempt_ids), holder=holder, again_at=next_check_at)

    async def stops_wanted(self, now: datetime, again_before: datetime, limit: int) -> Sequence[Attempt]:
        return await self._read(STOPS_WANTED, again_before=again_before, limit=limit)

    async def intend_stop_queue(self, queue: str, intent: StopIntent, limit: int, request_id: str | None = None) -> int:
        return await self._connection.changed(
            INTEND_STOP_QUEUE, of_queue=queue, only_request=request_id, intent=intent.value, limit=limit
        )

    async def intend_stop_request(self, request_id: str, intent: StopIntent) -> int:
        statement = INTEND_CANCEL if intent is StopIntent.CANCEL else INTEND_STOP_UNSTARTED
        return await self._connection.changed(statement, of_request=request_id, intent=intent.value)

    async def loads(self) -> Sequence[QueueLoad]:
        return [QueueLoad(**row._mapping) for row in await self._connection.rows(LOADS)]

    async def waiting(self, limit: int) -> Sequence[Waiting]:
        return [Waiting(**row._mapping) for row in await self._connection.rows(WAITING, limit=limit)]

    async def hear_again(self, since: datetime, now: datetime) -> int:
        return await self._connection.changed(HEAR_AGAIN, since=since, now=now)

    async def _read(self, statement: Any, **values: Any) -> list[Attempt]:
        return [SHAPE.read(row) for row in await self._connection.rows(statement, **values)]
