"""The constrained scalars of the messages: names, keys, URIs, instants.

Each type states its whole rule, so that admission, the JSON Schema and the documentation cannot disagree. Errors
carry a `type` of their own where pydantic's would not tell a sender what to change; `controller.core.rejects`
has the advice for each.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field
from pydantic_core import PydanticCustomError

MAX_KEY_BYTES = 1024  # S3's own limit, counted in UTF-8

#: What the validators below refuse, as far as JSON Schema can say it too.
_RFC3339_PATTERN = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})$"
)
_NO_DOT_SEGMENT: dict[str, Any] = {"not": {"pattern": r"(^|/)\.\.(/|$)"}}
_RFC3339 = re.compile(_RFC3339_PATTERN)


def _safe_key(key: str) -> str:
    """S3 takes `..` literally, but HTTP clients resolve it: such a key could name another one than was allowed."""
    if len(key.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        raise PydanticCustomError("key_bytes", "Key should have at most 1024 bytes in UTF-8")
    if ".." in key.split("/"):
        raise PydanticCustomError("dot_segment", "Key should have no `..` segment")
    return key


def _safe_uri(uri: str) -> str:
    _safe_key(uri.split("/", 3)[3])
    return uri


def unique(items: list[str]) -> list[str]:
    seen: set[str] = set()
    for position, item in enumerate(items):
        if item in seen:
            raise PydanticCustomError("repeated", "Item {position} is given twice", {"position": position})
        seen.add(item)
    return items


def _instant(value: object) -> object:
    """Parsed here: pydantic alone would also take "1700000000", and refuse strings behind a validator when strict."""
    if not isinstance(value, str):
        return value
    if not _RFC3339.fullmatch(value):
        raise PydanticCustomError("rfc3339", "Input should be an RFC 3339 time with an offset")
    try:
        return datetime.fromisoformat(value.upper())
    except ValueError:
        raise PydanticCustomError("rfc3339", "Input should be a time that exists") from None


def _utc(value: datetime) -> datetime:
    """One instant, one spelling: digests of messages must not depend on the sender's offset."""
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("rfc3339", "Input should be a time between the years 1 and 9999 in UTC") from None


Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
Bucket = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
S3Uri = Annotated[
    str,
    Field(
        pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[^?#*]*$", max_length=1100, json_schema_extra=_NO_DOT_SEGMENT
    ),
    AfterValidator(_safe_uri),
]
Key = Annotated[
    str,
    Field(min_length=1, max_length=MAX_KEY_BYTES, json_schema_extra=_NO_DOT_SEGMENT),
    AfterValidator(_safe_key),
]
Prefix = Annotated[str, Field(max_length=MAX_KEY_BYTES, json_schema_extra=_NO_DOT_SEGMENT), AfterValidator(_safe_key)]
IdempotencyKey = Annotated[
    str,
    Field(
        min_length=1,
        max_length=128,
        pattern=r"^[\x21-\x7e]+$",
        description="the sender's own name for the request, unique within the tenant; printable ASCII, no space",
    ),
]
Model = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}@[A-Za-z0-9][A-Za-z0-9._-]{0,30}$",
        description="name@version of a registered model",
    ),
]
Tenant = Annotated[Name, Field(description="who asks; allow-lists, fair queueing and cost tags go by it")]
Priority = Annotated[
    int, Field(ge=-100, le=100, description="higher goes first among requests that wait for the same queue")
]
Deadline = Annotated[
    AwareDatetime,
    BeforeValidator(_instant),
    AfterValidator(_utc),
    Field(
        description="when the output is needed; it must lie ahead",
        json_schema_extra={"pattern": _RFC3339_PATTERN},
    ),
]
QueueName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$")]  # Batch's own rule
Queues = Annotated[
    list[QueueName],
    AfterValidator(unique),
    Field(
        min_length=1,
        max_length=16,
        description="GPU queues to use, preferred first; none: every queue in the deployment's order",
        json_schema_extra={"uniqueItems": True},
    ),
]
