"""Shards: slices of a request's assets, served by priority, changed only from the state and attempt that were seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, Integer, Text, and_, bindparam, func, literal, select, true, update
from sqlalchemy.dialects.postgresql import insert

from controller.core.changes import ShardChange
from controller.core.records import Shard, ShardCounts
from controller.store.connection import Connection
from controller.store.rows import Shape
from controller.store.sql import LIMIT, NOW, among, fixed, number, text, words
from schema.states import AttemptState, Outcome, RequestState, ShardState
from schema.tables import attempts, requests, shards

SHAPE = Shape(Shard, shards, state=ShardState, last_outcome=Outcome, isolate=tuple, poison=tuple)

_OF_REQUEST = shards.c.request_id == text("of_request")
_SUCCEEDED = shards.c.state == fixed(ShardState.SUCCEEDED)

#: Once; the ordinals that are new come back.
INSERT = insert(shards).on_conflict_do_nothing().returning(shards.c.shard)
#: One shard.
GET = select(*SHAPE.columns).where(_OF_REQUEST, shards.c.shard == number("ordinal"))
#: A superseded attempt may outlive its shard's success and requeue; until it ends I2 admits no other.
_STILL_RUNNING = (
    select(literal(1))
    .where(
        attempts.c.request_id == shards.c.request_id,
        attempts.c.shard == shards.c.shard,
        attempts.c.shard.is_not(None),
        attempts.c.state != fixed(AttemptState.ENDED),
    )
    .exists()
)
#: The first shards of one request that may start; read from the index in order, so never more than `limit` of them.
_DUE_OF_REQUEST = (
    select(*SHAPE.columns)
    .where(
        shards.c.request_id == requests.c.id,
        shards.c.state == fixed(ShardState.PENDING),
        shards.c.eligible_at <= NOW,
        ~_STILL_RUNNING,
    )
    .order_by(shards.c.shard)
    .limit(LIMIT)
    .correlate(requests)
    .lateral("due")
)
#: Shards that may start, of running requests that are not paused: by request priority, request age, ordinal.
DUE = (
    select(*_DUE_OF_REQUEST.c)
    .select_from(requests.join(_DUE_OF_REQUEST, true()))
    .where(requests.c.state == fixed(RequestState.RUNNING), ~requests.c.paused)
    .order_by(requests.c.priority.desc(), requests.c.created_at, requests.c.id, _DUE_OF_REQUEST.c.shard)
    .limit(LIMIT)
)
#: Per state: shards, their rows by verdict, their assets, and how many of them the index holds.
COUNT = (
    select(
        shards.c.state,
        func.count().label("shards"),
        func.coalesce(func.sum(shards.c.ok), 0).label("ok"),
        func.coalesce(func.sum(shards.c.bad), 0).label("bad"),
        func.coalesce(func.sum(shards.c.assets), 0).label("assets"),
        func.count().filter(shards.c.indexed_digest == shards.c.marker_digest).label("indexed"),
    )
    .where(_OF_REQUEST)
    .group_by(shards.c.state)
    .order_by(shards.c.state)
)
_EACH_STATUS = func.jsonb_each_text(shards.c.statuses).table_valued("key", "value", joins_implicitly=True)
#: Rows of a request's succeeded shards by row status.
COUNT_STATUSES = (
    select(_EACH_STATUS.c.key, func.sum(_EACH_STATUS.c.value.cast(Integer)).label("rows"))
    .select_from(shards.join(_EACH_STATUS, true()))
    .where(_OF_REQUEST, _SUCCEEDED)
    .group_by(_EACH_STATUS.c.key)
    .order_by(_EACH_STATUS.c.key)
)
#: Succeeded shards whose current marker is not known to be in the index.
UNINDEXED = (
    select(*SHAPE.columns)
    .where(_OF_REQUEST, _SUCCEEDED, shards.c.indexed_digest.is_distinct_from(shards.c.marker_digest))
    .order_by(shards.c.shard)
    .limit(LIMIT)
)
#: Every succeeded shard of a request.
ALL_SUCCEEDED = select(*SHAPE.columns).where(_OF_REQUEST, _SUCCEEDED).order_by(shards.c.shard)
#: Shards of a request behind an ordinal; `search` adds the conditions that were asked for.
SEARCH = (
    select(*SHAPE.columns).where(_OF_REQUEST, shards.c.shard > number("after")).order_by(shards.c.shard).limit(LIMIT)
)
_TO_CANCEL = (
    select(shards.c.shard)
    .where(_OF_REQUEST, among(shards.c.state, "expected"))
    .order_by(shards.c.shard)
    .limit(LIMIT)
    .with_for_update()
    .cte("picked")
)
#: Give up what has not started and what an operator might have requeued.
CANCEL = (
    update(shards)
    .where(_OF_REQUEST, shards.c.shard == _TO_CANCEL.c.shard)
    .values(state=ShardState.CANCELLED.value, reason=Outcome.CANCELLED.value, attempt_id=None, updated_at=NOW)
)
_LOADED = (
    func.unnest(bindparam("ordinals", type_=ARRAY(Integer)), bindparam("digests", type_=ARRAY(Text)))
    .table_valued("ordinal", "digest", name="loaded")
    .render_derived()
)
#: Remember what the index holds, unless a shard has another marker by now.
MARK_INDEXED = (
    update(shards)
    .where(
        and_(_OF_REQUEST, shards.c.shard == _LOADED.c.ordinal, shards.c.marker_digest == _LOADED.c.digest),
        shards.c.indexed_digest.is_distinct_from(_LOADED.c.digest),
    )
    .values(indexed_digest=_LOADED.c.digest, updated_at=NOW)
)
_CANCELLABLE = words({ShardState.PENDING, ShardState.FAILED})


class SqlShards:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def insert_many(self, shards: Sequence[Shard]) -> int:
        if not shards:
            return 0
        return await self._connection.returned(INSERT, [SHAPE.write(shard) for shard in shards])

    async def get(self, request_id: str, shard: int) -> Shard | None:
        return SHAPE.read_one(await self._connection.row(GET, of_request=request_id, ordinal=shard))

    async def apply(self, change: ShardChange) -> bool:
        values: dict[str, Any] = {"of_request": change.request_id, "ordinal": change.shard}
        values["expected"] = words(change.expected)
        statement = update(shards).where(
            _OF_REQUEST, shards.c.shard == number("ordinal"), among(shards.c.state, "expected")
        )
        if change.attempt_id is not None:
            statement = statement.where(shards.c.attempt_id == text("current_attempt"))
            values["current_attempt"] = change.attempt_id
        statement = statement.values(SHAPE.assignments(change.values, change.to))
        return await self._connection.changed(statement, **values) == 1

    async def due(self, now: datetime, limit: int) -> Sequence[Shard]:
        return await self._read(DUE, now=now, limit=limit)

    async def counts(self, request_id: str) -> ShardCounts:
        rows = {ShardState(row.state): row for row in await self._connection.rows(COUNT, of_request=request_id)}
        by_state = {state: row.shards for state, row in rows.items()}
        done = rows.get(ShardState.SUCCEEDED)
        if done is None:
            return ShardCounts(by_state=by_state)
        statuses = await self._connection.rows(COUNT_STATUSES, of_request=request_id)
        return ShardCounts(
            by_state=by_state,
            ok=int(done.ok),
            bad=int(done.bad),
            assets_done=int(done.assets),
            indexed=done.indexed,
            statuses={row.key: int(row.rows) for row in statuses},
        )

    async def unindexed(self, request_id: str, limit: int) -> Sequence[Shard]:
        return await self._read(UNINDEXED, of_request=request_id, limit=limit)

    async def succeeded(self, request_id: str) -> Sequence[Shard]:
        return await self._read(ALL_SUCCEEDED, of_request=request_id)

    async def search(
        self, request_id: str, *, states: Iterable[ShardState] | None, outcome: Outcome | None, after: int, limit: int
    ) -> Sequence[Shard]:
        statement, values = SEARCH, dict[str, Any](of_request=request_id, after=after, limit=limit)
        if states is not None:
            statement, values["states"] = statement.where(among(shards.c.state, "states")), words(states)
        if outcome is not None:
            statement, values["outcome"] = statement.where(shards.c.last_outcome == text("outcome")), outcome.value
        return await self._read(statement, **values)

    async def cancel_pending(self, request_id: str, now: datetime, limit: int) -> int:
        return await self._connection.changed(
            CANCEL, of_request=request_id, expected=_CANCELLABLE, now=now, limit=limit
        )

    async def mark_indexed(self, request_id: str, loaded: Mapping[int, str], now: datetime) -> None:
        ordinals = sorted(loaded)
        digests = [loaded[ordinal] for ordinal in ordinals]
        await self._connection.changed(MARK_INDEXED, of_request=request_id, ordinals=ordinals, digests=digests, now=now)

    async def _read(self, statement: Any, **values: Any) -> list[Shard]:
        return [SHAPE.read(row) for row in await self._connection.rows(statement, **values)]
