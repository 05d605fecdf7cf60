"""From an SQS body to a typed message, without knowing any policy.

`read(body, max_body_bytes)` answers with a `Message` or with a `Reject` that names the field; it never raises, and
its work is bounded by the size of the body. Validation is strict ("5" is no integer) and tolerant of fields that
it does not know. What JSON leaves open and readers decide differently (a key given twice, NaN, numbers beyond 64
bits, lone surrogates, NUL) is refused before validation, by one walk that knows the path of what it finds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from controller.core.rejects import RULES, Origin, Reject, advice
from schema.messages import (
    Envelope,
    MessageType,
    RejectCode,
    RequestAmend,
    RequestCancel,
    RequestSubmit,
)
from schema.parsing import Problem, parse_strict, sender_of

MAX_DEPTH = 32
MAX_DIGITS = 18
MAX_FIELD_CHARACTERS = 120
MAX_PROBLEMS = 5

Request = RequestSubmit | RequestCancel | RequestAmend

_PAYLOADS: Mapping[str, type[Request]] = {
    MessageType.REQUEST_SUBMIT: RequestSubmit,
    MessageType.REQUEST_CANCEL: RequestCancel,
    MessageType.REQUEST_AMEND: RequestAmend,
}


@dataclass(frozen=True)
class Message:
    """A well-formed request message."""

    payload: Request
    origin: Origin


class _Twice:
    """Stands in the parsed document for a key that an object holds more than once."""


def read(body: str, max_body_bytes: int) -> Message | Reject:
    """Size, JSON, oddities, envelope, type, payload; the first of these that fails is the answer."""
    size_bytes = len(body.encode("utf-8", "surrogatepass"))
    if size_bytes > max_body_bytes:
        return _plain(RejectCode.TOO_LARGE, f"the body has {size_bytes:,} bytes; at most {max_body_bytes:,} are taken")
    document = _parse(body)
    if isinstance(document, Reject):
        return document
    odd = _first_oddity(document)
    if not isinstance(document, dict):
        return odd or _plain(RejectCode.NOT_CLOUDEVENT, "the body is JSON but not an object")
    fields = cast(dict[str, Any], document)
    if odd is not None:
        tenant, idempotency_key = sender_of(fields.get("data"))
        return replace(odd, tenant=tenant, idempotency_key=idempotency_key, origin=_origin(fields))
    event = _envelope(fields)
    return event if isinstance(event, Reject) else _message(event)


def _parse(body: str) -> object | Reject:
    try:
        return json.loads(
            body,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_constant=lambda _: float("nan"),
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        return _plain(RejectCode.NOT_JSON, f"the body does not parse as JSON at {where}")
    except RecursionError:
        return _odd("nesting", (), f"nests deeper than {MAX_DEPTH} levels")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                fields[name] = _Twice()
            seen.add(name)
    return fields


def _integer(digits: str) -> object:
    """Infinity stands for what no field can hold; the walk then knows where it was."""
    return int(digits) if len(digits) <= MAX_DIGITS else float("inf")


def _first_oddity(document: object) -> Reject | None:
    """Walk the document in order, without recursion."""
    stack: list[tuple[tuple[str, ...], object]] = [((), document)]
    while stack:
        path, value = stack.pop()
        found = _oddity(value) if len(path) <= MAX_DEPTH else ("nesting", f"nests deeper than {MAX_DEPTH} levels")
        if found is not None:
            return _odd(found[0], path, found[1])
        if isinstance(value, dict):
            fields = cast(dict[str, object], value)
            stack.extend(((*path, name), inner) for name, inner in reversed(fields.items()))
            stack.extend((path, name) for name in reversed(fields))
        elif isinstance(value, list):
            items = cast(list[object], value)
            stack.extend(((*path, str(n)), items[n]) for n in range(len(items) - 1, -1, -1))
    return None


def storable(document: object) -> bool:
    """Whether rows can hold every value of a report: texts that UTF-8 and Postgres take, finite numbers, and integers
    of 32 bits; figures, which are added up, not below 0 and of 53 bits."""
    stack: list[object] = [document]
    while stack:
        value = stack.pop()
        if _oddity(value) is not None or (isinstance(value, int) and not -(2**31) <= value < 2**31):
            return False
        if isinstance(value, dict):
            fields = cast(dict[object, object], value)
            figures = fields.get("figures")
            if isinstance(figures, dict):
                numbers = cast(dict[object, object], figures).values()
                if any(isinstance(n, (int, float)) and not 0 <= n < 2**53 for n in numbers):
                    return False
            stack.extend(name for name in fields)
            stack.extend(inner for name, inner in fields.items() if name != "figures")
        elif isinstance(value, list):
            stack.extend(cast(list[object], value))
    return True


def _oddity(value: object) -> tuple[str, str] | None:
    """Error type and reason when one value by itself is nothing that we could store or compare."""
    if isinstance(value, _Twice):
        return "twice", "is given twice"
    if isinstance(value, float) and not abs(value) < float("inf"):
        return "number", "is not a finite number of reasonable size"
    if isinstance(value, str):
        if "\0" in value:
            return "nul", "holds a NUL character"
        if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            return "surrogate", "holds half a surrogate pair"
    return None


def _envelope(fields: dict[str, Any]) -> Envelope | Reject:
    if "detail-type" in fields and "detail" in fields:
        fix = 'forward only the detail: set InputPath "$.detail" on the rule\'s target and put the CloudEvent there'
        return Reject(RejectCode.NOT_CLOUDEVENT, "the body is an EventBridge envelope", "detail", fix)
    if fields.get("Type") == "Notification" and "Message" in fields:
        fix = "turn on raw message delivery for the SNS subscription, so that the body is the CloudEvent itself"
        return Reject(RejectCode.NOT_CLOUDEVENT, "the body is an SNS envelope", "Message", fix)
    event = parse_strict(Envelope, fields)
    if isinstance(event, Envelope):
        return event
    field, reason, fix = _explain(event, ())
    fix = f"{fix}; {RULES[RejectCode.NOT_CLOUDEVENT].fix}"
    if field == "data" and "data_base64" in fields:
        fix = "send the payload as a JSON object in `data`, not in `data_base64`"
    return Reject(RejectCode.NOT_CLOUDEVENT, reason, field, fix, origin=_origin(fields))


def _message(event: Envelope) -> Message | Reject:
    origin = Origin(event.id, event.source, event.type)
    tenant, idempotency_key = sender_of(event.data)
    if event.type not in _PAYLOADS:
        code, reason = RejectCode.UNKNOWN_TYPE, "this queue takes only " + ", ".join(_PAYLOADS)
        return Reject(code, reason, "type", RULES[code].fix, tenant, idempotency_key, origin)
    payload = parse_strict(_PAYLOADS[event.type], event.data)
    if not isinstance(payload, list):
        return Message(payload, origin)
    field, reason, fix = _explain(payload, ("data",))
    return Reject(RejectCode.INVALID_FIELD, reason, field, fix, tenant, idempotency_key, origin)


def _explain(problems: list[Problem], top: tuple[str, ...]) -> tuple[str, str, str]:
    """Field and fix of the first problem; the reason lists several, so that one round is enough."""
    first = problems[0]
    field = field_path(top + first.path)
    texts = [f"{field_path(top + problem.path)}: {problem.text}" for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        texts.append(f"and {len(problems) - MAX_PROBLEMS} more")
    return field, "; ".join(texts), advice(first.error_type, field, first.expected)


def field_path(parts: tuple[str, ...]) -> str:
    """Dotted, printable and short: names may come from the sender."""
    return ".".join(parts).encode("ascii", "backslashreplace").decode()[:MAX_FIELD_CHARACTERS]


def _origin(fields: dict[str, Any]) -> Origin:
    values = [fields.get(name) for name in ("id", "source", "type")]
    return Origin(*(value[:256] if isinstance(value, str) else "" for value in values))


def _plain(code: RejectCode, reason: str) -> Reject:
    return Reject(code, reason, None, RULES[code].fix)


def _odd(error_type: str, path: tuple[str, ...], reason: str) -> Reject:
    field = field_path(path) or None
    text = f"{field or 'the body'} {reason}"
    return Reject(RejectCode.INVALID_FIELD, text, field, advice(error_type, field or ""))
