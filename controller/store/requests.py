"""Requests: accepted once, claimed by one replica at a time, changed only from the state that was seen."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic_core import to_jsonable_python
from sqlalchemy import bindparam, select, tuple_, update
from sqlalchemy.dialects.postgresql import JSONB, insert

from controller.core.changes import RequestChange
from controller.core.records import Request
from controller.store.connection import Connection
from controller.store.rows import Shape, stored
from controller.store.sql import LIMIT, among, claim, text, words
from schema.states import REQUEST_TERMINAL, RequestState
from schema.tables import requests

SHAPE = Shape(Request, requests, state=RequestState)

#: Once; a second request of the same id, or of the same tenant and key, changes nothing.
INSERT = insert(requests).on_conflict_do_nothing()
#: One request.
GET = select(*SHAPE.columns).where(requests.c.id == text("id"))
#: The same, and nobody else changes it until this transaction ends; its jobs and attempts can still be inserted.
GET_LOCKED = GET.with_for_update(key_share=True)
#: Requests with these ids.
OF_IDS = select(*SHAPE.columns).where(among(requests.c.id, "ids")).order_by(requests.c.id)
#: Requests in some states that nobody works on, the most urgent first.
CLAIM = claim(requests, among(requests.c.state, "states"), ("-priority", "created_at", "id"), SHAPE.columns)
#: Give back what one replica holds.
RELEASE = (
    update(requests)
    .where(among(requests.c.id, "ids"), requests.c.claimed_by == text("holder"))
    .values(claimed_by=None, claim_until=None)
)
#: Requests in some states, the most urgent first.
IN_STATES = (
    select(*SHAPE.columns)
    .where(among(requests.c.state, "states"))
    .order_by(requests.c.priority.desc(), requests.c.created_at, requests.c.id)
    .limit(LIMIT)
)
#: The place of one request in the order of SEARCH.
_PLACE = select(requests.c.created_at, requests.c.id).where(requests.c.id == text("before"))
#: Every request, newest first; `search` adds the conditions that were asked for.
SEARCH = select(*SHAPE.columns).order_by(requests.c.created_at.desc(), requests.c.id.desc()).limit(LIMIT)
#: Put amended fields into the body as well; `amend` adds the columns that change.
AMEND = (
    update(requests)
    .where(requests.c.id == text("request_id"), ~among(requests.c.state, "over"))
    .values(body=requests.c.body.op("||")(bindparam("patch", type_=JSONB)))
)
_AMENDABLE_NO_MORE = words({*REQUEST_TERMINAL, RequestState.CANCELLING})


class SqlRequests:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def insert(self, request: Request) -> bool:
        return await self._connection.changed(INSERT, **SHAPE.write(request)) == 1

    async def get(self, request_id: str, *, lock: bool = False) -> Request | None:
        return SHAPE.read_one(await self._connection.row(GET_LOCKED if lock else GET, id=request_id))

    async def of_ids(self, request_ids: Collection[str]) -> Mapping[str, Request]:
        rows = await self._connection.rows(OF_IDS, ids=sorted(request_ids))
        return {row.id: SHAPE.read(row) for row in rows}

    async def apply(self, change: RequestChange) -> bool:
        statement = (
            update(requests)
            .where(requests.c.id == text("request_id"), among(requests.c.state, "expected"))
            .values(SHAPE.assignments(change.values, change.to))
        )
        return await self._connection.changed(statement, request_id=change.id, expected=words(change.expected)) == 1

    async def amend(
        self,
        request_id: str,
        *,
        priority: int | None,
        deadline: datetime | None,
        queues: Sequence[str] | None,
        now: datetime,
    ) -> bool:
        columns = {"priority": priority, "deadline": deadline}
        patch = {**columns, "queues": None if queues is None else list(queues)}
        given = {name: to_jsonable_python(value) for name, value in patch.items() if value is not None}
        statement = AMEND.values(
            updated_at=now, **{name: value for name, value in columns.items() if value is not None}
        )
        values = {"request_id": request_id, "over": _AMENDABLE_NO_MORE, "patch": stored(given)}
        return await self._connection.changed(statement, **values) == 1

    async def claim(
        self, states: Iterable[RequestState], holder: str, now: datetime, until: datetime, limit: int
    ) -> Sequence[Request]:
        rows = await self._connection.rows(
            CLAIM, states=words(states), holder=holder, now=now, until=until, limit=limit
        )
        return [SHAPE.read(row) for row in rows]

    async def release(self, request_ids: Sequence[str], holder: str) -> None:
        await self._connection.changed(RELEASE, ids=list(request_ids), holder=holder)

    async def in_states(self, states: Iterable[RequestState], limit: int) -> Sequence[Request]:
        rows = await self._connection.rows(IN_STATES, states=words(states), limit=limit)
        return [SHAPE.read(row) for row in rows]

    async def search(
        self, *, tenant: str | None, states: Iterable[RequestState] | None, before: str | None, limit: int
    ) -> Sequence[Request]:
        statement, values = SEARCH, dict[str, Any](limit=limit)
        if tenant is not None:
            statement, values["tenant"] = statement.where(requests.c.tenant == text("tenant")), tenant
        if states is not None:
            statement, values["states"] = statement.where(among(requests.c.state, "states")), words(states)
        if before is not None:
            older = tuple_(requests.c.created_at, requests.c.id) < _PLACE.scalar_subquery()
            statement, values["before"] = statement.where(older), before
        return [SHAPE.read(row) for row in await self._connection.rows(statement, **values)]
