"""Strict validation of parsed JSON against a message model, with problems as values.

Strict means that only JSON's own readings are taken: "5" is no integer and 1 no boolean, while strings stand for
times and enums. Problems never repeat what was sent, apart from names of fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from schema.fields import IdempotencyKey, S3Uri, Tenant

T = TypeVar("T", bound=BaseModel)

_URI: TypeAdapter[str] = TypeAdapter(S3Uri)
_TENANT: TypeAdapter[str] = TypeAdapter(Tenant)
_IDEMPOTENCY_KEY: TypeAdapter[str] = TypeAdapter(IdempotencyKey)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where, pydantic's name for it, its words, and for enums what was expected."""

    path: tuple[str, ...]
    error_type: str
    text: str
    expected: str = ""


def parse_strict(model: type[T], fields: Mapping[str, object]) -> T | list[Problem]:
    """The typed message, or every problem (at least one)."""
    try:
        return model.model_validate_json(json.dumps(fields), strict=True)
    except ValidationError as error:
        return [_problem(detail) for detail in error.errors(include_url=False, include_input=False)]


def sender_of(fields: object) -> tuple[str | None, str | None]:
    """Tenant and key of a message that is wrong elsewhere, so that a refusal finds its way back."""
    if not isinstance(fields, dict):
        return None, None
    named = cast(dict[str, object], fields)
    return _usable(_TENANT, named.get("tenant")), _usable(_IDEMPOTENCY_KEY, named.get("idempotency_key"))


def _usable(adapter: TypeAdapter[str], value: object) -> str | None:
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError:
        return None


def is_s3_uri(text: str) -> bool:
    """Whether `text` could stand in a field of type S3Uri."""
    try:
        _URI.validate_python(text)
    except ValidationError:
        return False
    return True


def _problem(detail: ErrorDetails) -> Problem:
    """Leaves out pydantic's marks for a union's branch and a dictionary's key, and the text that repeats input."""
    path = [str(part) for part in detail["loc"] if part != "[key]"]
    if path[:1] == ["source"] and len(path) > 1:
        del path[1]
    text = detail["msg"]
    if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        path.append("kind")
        text = "Input should be 'prefix', 'manifest' or 'keys'"
    return Problem(tuple(path), detail["type"], text, str(detail.get("ctx", {}).get("expected", "")))
