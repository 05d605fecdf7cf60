"""Records to rows and back: the only place that knows how a field is kept in its column.

Enums are kept as their text, tuples as JSON lists, figures as a JSON object. Postgres can keep neither U+0000 nor
half of a surrogate pair in a text; both come as U+FFFD, so that a hostile message cannot stop a loop for good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from sqlalchemy import Column, Row, Table

R = TypeVar("R")

Reader = Callable[[Any], Any]


class Shape(Generic[R]):
    """How one kind of record lies in its table. `readers`: what turns a column's value back into the field's."""

    def __init__(self, record: type[R], table: Table, **readers: Reader) -> None:
        self._record = record
        self._readers = readers
        self._table = table
        self.columns: list[Column[Any]] = [table.c[field.name] for field in fields(record)]  # type: ignore[arg-type]

    def read(self, row: Row[Any]) -> R:
        values = dict(row._mapping)
        for name, reader in self._readers.items():
            if values[name] is not None:
                values[name] = reader(values[name])
        return self._record(**values)

    def read_one(self, row: Row[Any] | None) -> R | None:
        return None if row is None else self.read(row)

    def write(self, record: R) -> dict[str, Any]:
        return {column.name: stored(getattr(record, column.name)) for column in self.columns}

    def assignments(self, values: Mapping[str, Any], to: StrEnum | None) -> dict[str, Any]:
        """What an UPDATE sets. An unknown column, or a change that changes nothing, is our own bug."""
        unknown = values.keys() - {column.name for column in self.columns} | values.keys() & {"id", "state"}
        assert not unknown, f"no columns to change in {self._table.name}: {sorted(unknown)}"
        found = {name: stored(value) for name, value in values.items()}
        found |= {} if to is None else {"state": to.value}
        assert found, f"a change of {self._table.name} without a change"
        return found


def stored(value: Any) -> Any:
    """One value as the driver takes it."""
    if isinstance(value, str):
        return _text(value.value if isinstance(value, StrEnum) else value)
    if isinstance(value, BaseModel):
        return stored(value.model_dump(mode="json"))
    if isinstance(value, Mapping):
        return {_text(str(key)): stored(item) for key, item in value.items()}
    if isinstance(value, (tuple, list, frozenset, set)):
        return [stored(item) for item in value]
    return value


def _text(text: str) -> str:
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")
