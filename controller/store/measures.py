"""Aggregates for gauges, progress and forecasts. They read many rows: never in a hot path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Table, func, literal, select, union_all

from controller.store.connection import Connection
from controller.store.sql import LIMIT, fixed, text, time
from schema.states import JobKind, Outcome
from schema.tables import attempts, jobs, requests, shards


def _by_state(name: str, table: Table) -> Any:
    rows = select(literal(name).label("kind"), table.c.state, func.count().label("rows"))
    return rows.select_from(table).group_by(table.c.state)


_COUNTED = union_all(
    _by_state("request", requests), _by_state("shard", shards), _by_state("attempt", attempts), _by_state("job", jobs)
).subquery("counted")
#: Rows of each table by state.
STATES = select(_COUNTED).order_by(_COUNTED.c.kind, _COUNTED.c.state)

_SECONDS = func.extract("epoch", attempts.c.ended_at - attempts.c.started_at)
#: Assets per second of one attempt, by queue: all assets over all seconds of a model's successful attempts.
ASSETS_PER_SECOND = (
    select(
        attempts.c.queue,
        (func.sum(attempts.c.figures["assets"].astext.cast(BigInteger)) / func.sum(_SECONDS)).label("rate"),
    )
    .join(requests, requests.c.id == attempts.c.request_id)
    .where(
        attempts.c.outcome == fixed(Outcome.SUCCEEDED),
        attempts.c.kind == fixed(JobKind.INFER),
        attempts.c.ended_at >= time("since"),
        attempts.c.ended_at > attempts.c.started_at,
        requests.c.body["model"].astext == text("model"),
    )
    .group_by(attempts.c.queue)
    .order_by(attempts.c.queue)
)
_VERDICT = func.coalesce(attempts.c.outcome, "running")
_TIME_SPENT = func.extract(
    "epoch", func.coalesce(attempts.c.ended_at, attempts.c.last_contact_at) - attempts.c.started_at
)
#: Seconds that a request's started attempts took so far, by queue, compute environment and how they ended.
ATTEMPT_SECONDS = (
    select(
        attempts.c.queue,
        attempts.c.compute_environment,
        _VERDICT.label("verdict"),
        func.sum(func.greatest(_TIME_SPENT, 0)).label("seconds"),
    )
    .where(attempts.c.request_id == text("request_id"), attempts.c.started_at.is_not(None))
    .group_by(attempts.c.queue, attempts.c.compute_environment, _VERDICT)
    .order_by(attempts.c.queue, attempts.c.compute_environment, _VERDICT)
)
#: How the GPU attempts of a request ended.
OUTCOMES = (
    select(attempts.c.outcome, func.count().label("attempts"))
    .where(
        attempts.c.request_id == text("request_id"),
        attempts.c.kind == fixed(JobKind.INFER),
        attempts.c.outcome.is_not(None),
    )
    .group_by(attempts.c.outcome)
    .order_by(attempts.c.outcome)
)
#: How the GPU attempts of a request ended lately, newest first; `latest_outcomes` adds since when.
LATEST_OUTCOMES = (
    select(attempts.c.outcome)
    .where(
        attempts.c.request_id == text("request_id"),
        attempts.c.kind == fixed(JobKind.INFER),
        attempts.c.outcome.is_not(None),
    )
    .order_by(attempts.c.ended_at.desc(), attempts.c.id)
    .limit(LIMIT)
)


class SqlMeasures:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def states(self) -> Mapping[tuple[str, str], int]:
        return {(row.kind, row.state): row.rows for row in await self._connection.rows(STATES)}

    async def assets_per_second(self, model: str, since: datetime) -> Mapping[str, float]:
        rows = await self._connection.rows(ASSETS_PER_SECOND, model=model, since=since)
        return {row.queue: float(row.rate) for row in rows if row.rate is not None}

    async def attempt_seconds(self, request_id: str) -> Mapping[tuple[str, str | None, str], float]:
        rows = await self._connection.rows(ATTEMPT_SECONDS, request_id=request_id)
        return {(row.queue, row.compute_environment, row.verdict): float(row.seconds) for row in rows}

    async def outcomes(self, request_id: str) -> Mapping[Outcome, int]:
        rows = await self._connection.rows(OUTCOMES, request_id=request_id)
        return {Outcome(row.outcome): row.attempts for row in rows}

    async def latest_outcomes(self, request_id: str, since: datetime | None, limit: int) -> Sequence[Outcome]:
        statement, values = LATEST_OUTCOMES, dict[str, Any](request_id=request_id, limit=limit)
        if since is not None:
            statement, values["since"] = statement.where(attempts.c.ended_at >= time("since")), since
        return [Outcome(row.outcome) for row in await self._connection.rows(statement, **values)]
