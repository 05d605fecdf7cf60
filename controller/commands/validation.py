"""`reembed request validate`: what is wrong with a message, all of it, offline: no network, no database.

The contract decides (`controller.core.wire`); with a policy, admission has its say, too, which names its first
objection only. Never raises, whatever the text.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, cast

from pydantic import BaseModel

from controller.core.admission import Policy, admit, request_id
from controller.core.rejects import Reject, advice
from controller.core.wire import field_path, read
from schema.messages import (
    MAX_BODY_BYTES,
    Envelope,
    MessageType,
    RejectCode,
    RequestAmend,
    RequestCancel,
    RequestSubmit,
)
from schema.parsing import Problem, parse_strict

#: Where admission says that the message is fine, but not for this sender.
FORBIDDEN = frozenset({RejectCode.UNKNOWN_TENANT, RejectCode.FORBIDDEN_BUCKET, RejectCode.FORBIDDEN_MODEL})

_PAYLOADS: Mapping[str, type[BaseModel]] = {
    MessageType.REQUEST_SUBMIT: RequestSubmit,
    MessageType.REQUEST_CANCEL: RequestCancel,
    MessageType.REQUEST_AMEND: RequestAmend,
}


@dataclass(frozen=True)
class Fault:
    """One thing to change. `field` is None where it is the whole body."""

    code: RejectCode
    field: str | None
    problem: str
    fix: str


@dataclass(frozen=True)
class Judgement:
    """`request_id` is known of a message without faults. `ignored` are fields that nobody reads: typing errors?"""

    checked: str
    faults: tuple[Fault, ...] = ()
    type: str | None = None
    request_id: str | None = None
    ignored: tuple[str, ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        return {"valid": not self.faults, **asdict(self)}


def judge(body: str, policy: Policy | None, now: datetime) -> Judgement:
    """`body` as it would stand on the queue."""
    checked = "contract" if policy is None else "contract and settings"
    message = read(body, MAX_BODY_BYTES)
    if isinstance(message, Reject):
        return Judgement(checked, tuple(_faults(body, message)))
    refused = None if policy is None else admit(body, policy, now)
    faults = (_first(refused),) if isinstance(refused, Reject) else ()
    payload = message.payload
    return Judgement(
        checked,
        faults,
        type=message.origin.event_type,
        request_id=request_id(payload.tenant, payload.idempotency_key),
        ignored=tuple(_ignored(payload, json.loads(body)["data"], "data")),
    )


def _first(reject: Reject) -> Fault:
    return Fault(reject.code, reject.field, reject.reason, reject.fix)


def _faults(body: str, reject: Reject) -> Iterator[Fault]:
    """The reader's refusal, which is about one field, and every other field that does not fit its contract."""
    first, others = _first(reject), list(_by_contract(body))
    for position, fault in enumerate(others):
        if fault.field == first.field:
            # The same fault, alone: the refusal's text lists several.
            first = replace(first, problem=fault.problem)
            del others[position]
            break
    yield first
    yield from others


def _by_contract(body: str) -> Iterator[Fault]:
    """Of envelope and payload, where there are any to look at."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict) or not {"specversion", "data"} & document.keys():
        return
    fields = cast(dict[str, Any], document)
    yield from _problems(Envelope, fields, (), RejectCode.NOT_CLOUDEVENT)
    payload, kind = fields.get("data"), fields.get("type")
    if isinstance(payload, dict) and isinstance(kind, str) and kind in _PAYLOADS:
        yield from _problems(_PAYLOADS[kind], cast(dict[str, Any], payload), ("data",), RejectCode.INVALID_FIELD)


def _problems(
    model: type[BaseModel], fields: dict[str, Any], top: tuple[str, ...], code: RejectCode
) -> Iterator[Fault]:
    found = parse_strict(model, fields)
    for problem in found if isinstance(found, list) else []:
        # Numbers and characters that JSON has not are the reader's to refuse; it has done so.
        if problem.error_type != "json_invalid":
            yield _fault(problem, top, code)


def _fault(problem: Problem, top: tuple[str, ...], code: RejectCode) -> Fault:
    field = field_path(top + problem.path)
    return Fault(code, field, problem.text, advice(problem.error_type, field, problem.expected))


def _ignored(model: BaseModel, given: object, path: str) -> Iterator[str]:
    """Fields that no contract names; with the one that may have been meant."""
    if not isinstance(given, dict):
        return
    known = type(model).model_fields
    for name, value in cast(dict[str, Any], given).items():
        if name not in known:
            meant = difflib.get_close_matches(name, known, n=1)
            yield f"{field_path((path, name))}" + (f" (did you mean {meant[0]}?)" if meant else "")
        elif isinstance(inner := getattr(model, name), BaseModel):
            yield from _ignored(inner, value, f"{path}.{name}")
