"""The few forms that statements of several aggregates share: values, lists, guards and claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    ARRAY,
    BindParameter,
    BooleanClauseList,
    Column,
    ColumnElement,
    DateTime,
    Integer,
    Select,
    Table,
    Text,
    any_,
    bindparam,
    or_,
    select,
    update,
)

NOW: BindParameter[Any] = bindparam("now", type_=DateTime(timezone=True))
LIMIT: BindParameter[Any] = bindparam("limit", type_=Integer)


def text(name: str) -> BindParameter[Any]:
    return bindparam(name, type_=Text)


def number(name: str) -> BindParameter[Any]:
    return bindparam(name, type_=Integer)


def time(name: str) -> BindParameter[Any]:
    return bindparam(name, type_=DateTime(timezone=True))


def fixed(value: StrEnum) -> BindParameter[Any]:
    """A word in the statement itself: only then can Postgres tell that a partial index serves it."""
    return bindparam(None, value.value, type_=Text, literal_execute=True)


def among(column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    """`column = ANY(list)`, one statement for lists of any length."""
    return column == any_(bindparam(name, type_=ARRAY(Text)))


def words(values: Iterable[StrEnum]) -> list[str]:
    """States as a list parameter, in one order."""
    return sorted(value.value for value in values)


def free(table: Table) -> BooleanClauseList | ColumnElement[bool]:
    """Nobody holds the row, or its holder did not come back in time."""
    return or_(table.c.claim_until.is_(None), table.c.claim_until <= NOW)


def claim(table: Table, due: ColumnElement[bool], order: Sequence[str], columns: Sequence[Column[Any]]) -> Select[Any]:
    """Take rows that are due and free, at most `limit`, and give them to `holder` until `until`.

    Rows that another transaction is taking are skipped, not waited for. `order` names columns; a minus before one
    sorts it from high to low.
    """
    taken = (
        select(table.c.id)
        .where(due, free(table))
        .order_by(*_ordering(table.c, order))
        .limit(LIMIT)
        .with_for_update(skip_locked=True)
        .cte("taken")
    )
    claimed = (
        update(table)
        .where(table.c.id == taken.c.id)
        .values(claimed_by=text("holder"), claim_until=time("until"))
        .returning(*columns)
        .cte("claimed")
    )
    return select(claimed).order_by(*_ordering(claimed.c, order))


def _ordering(columns: Any, order: Sequence[str]) -> list[ColumnElement[Any]]:
    return [columns[name[1:]].desc() if name.startswith("-") else columns[name].asc() for name in order]
