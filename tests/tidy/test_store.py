"""The SQL of the store is a function of its arguments and the rows: no clock, no dice, no order left to Postgres."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import Executable, Select
from sqlalchemy.dialects import postgresql

from controller.store import attempts, events, jobs, leases, measures, operations, queues, requests, shards, totals
from schema.tables import metadata

ROOT = Path(__file__).parents[2]
MODULES = (attempts, events, jobs, leases, measures, operations, queues, requests, shards, totals)
OWN_MIND = re.compile(
    r"\b(now|random|clock_timestamp|statement_timestamp|transaction_timestamp|gen_random_uuid|uuidv7|nextval)\s*\(|"
    r"\bcurrent_(timestamp|date|time)\b",
    re.IGNORECASE,
)
STATEMENTS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, Executable)
}
#: At most one row each: by primary key, or an aggregate.
ONE_ROW = re.compile(r"\.(GET\w*|FENCE|FREEZE|COUNT_LIVE|BOUND_TO|CHILD_OF|LONE_OF|_PLACE)$")


def sql(statement: Executable) -> str:
    return str(statement.compile(dialect=postgresql.dialect()))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_statement_has_a_mind_of_its_own(name: str) -> None:
    assert not OWN_MIND.search(sql(STATEMENTS[name])), sql(STATEMENTS[name])


@pytest.mark.parametrize("name", [name for name, value in STATEMENTS.items() if isinstance(value, Select)])
def test_rows_come_in_an_order_of_ours(name: str) -> None:
    assert ONE_ROW.search(name) or "ORDER BY" in sql(STATEMENTS[name]), sql(STATEMENTS[name])


def test_no_column_fills_itself() -> None:
    columns = [column for table in metadata.sorted_tables for column in table.columns]
    defaults = {column: str(getattr(column.server_default, "arg", "")) for column in columns}
    assert not [str(c) for c in columns if c.identity is not None or OWN_MIND.search(defaults[c])]


def test_the_modules_are_all_here() -> None:
    statements = {path.stem for path in (ROOT / "controller" / "store").glob("*.py")}
    helpers = {"__init__", "connection", "errors", "rows", "sql", "store"}
    assert statements - helpers == {module.__name__.rpartition(".")[2] for module in MODULES}
