"""Why a message is refused and what its sender has to change: every code, every text, in one place.

Texts name fields, limits and identifiers that already passed a narrow pattern (tenant, bucket, model, queue).
They never repeat other content of the message: a secret pasted into the wrong field stays in `original`, which
goes to the reject queue only as far as it fits. docs/contracts.md prints `RULES`; a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schema.messages import MAX_INLINE_KEYS, RejectCode, Rejected

#: Size of `original` as JSON text in the body on the reject queue; with the other fields it stays under SQS's 1 MiB.
MAX_ORIGINAL_BYTES = 768 * 1024


@dataclass(frozen=True)
class Rule:
    """What a code means, and the advice given when nothing more specific is known."""

    meaning: str
    fix: str


@dataclass(frozen=True)
class Origin:
    """CloudEvent attributes of the message: for logs and for the sender to find its message by. Decide nothing."""

    event_id: str = ""
    event_source: str = ""
    event_type: str = ""


NO_ORIGIN = Origin()


@dataclass(frozen=True)
class Reject:
    """A refusal. `field` is the path from the top of the body, such as `data.source.bucket`.

    `request_id` and `body_digest` are set when the message was well-formed and only policy or time stood against
    it. A repeat of a request that is on record under that id with that digest is a duplicate, not a refusal: a
    redelivery must not be refused because meanwhile its deadline passed.
    """

    code: RejectCode
    reason: str
    field: str | None
    fix: str
    tenant: str | None = None
    idempotency_key: str | None = None
    origin: Origin = NO_ORIGIN
    request_id: str | None = None
    body_digest: str | None = None


RULES: Mapping[RejectCode, Rule] = {
    RejectCode.NOT_JSON: Rule(
        "The body is not one JSON document.",
        "send one JSON object as the SQS body: no byte-order mark, no text around it, not base64",
    ),
    RejectCode.TOO_LARGE: Rule(
        "The body is larger than this deployment takes.",
        "put the keys in a Parquet or CSV manifest on S3 and send its URI as a source of kind `manifest`",
    ),
    RejectCode.NOT_CLOUDEVENT: Rule(
        "The body is JSON but not a CloudEvents 1.0 event in structured mode.",
        'wrap the payload: {"specversion": "1.0", "id": …, "source": …, "type": "request.submit", "data": {…}}',
    ),
    RejectCode.UNKNOWN_TYPE: Rule(
        "The event's `type` is not one that the requests queue takes.",
        "set `type` to request.submit, request.cancel or request.amend",
    ),
    RejectCode.INVALID_FIELD: Rule(
        "A field is missing, has the wrong type, breaks its limit, or cannot be stored.",
        "change the named field as its contract says and send the message again",
    ),
    RejectCode.UNKNOWN_TENANT: Rule(
        "No such tenant is configured.",
        "check the spelling of `tenant`, or ask the operators to add the tenant",
    ),
    RejectCode.FORBIDDEN_BUCKET: Rule(
        "The tenant may not read from, or write to, that place on S3.",
        "use a place on the tenant's allow-list, or ask the operators to extend the list",
    ),
    RejectCode.FORBIDDEN_MODEL: Rule(
        "The model exists, but the tenant may not use it.",
        "use a model on the tenant's allow-list, or ask the operators to extend the list",
    ),
    RejectCode.UNKNOWN_MODEL: Rule(
        "No such model, in that version, is registered.",
        "check name and version (name@version), or ask the operators to register the model first",
    ),
    RejectCode.UNKNOWN_QUEUE: Rule(
        "A queue in `queues` is not configured.",
        "name only configured queues, or leave `queues` out to use the deployment's own order",
    ),
    RejectCode.UNSUPPORTED: Rule(
        "The message is well-formed, but asks for something this version or deployment cannot do.",
        "leave the named field out",
    ),
    RejectCode.DEADLINE_PASSED: Rule(
        "The deadline was already over when the message was read.",
        "send a later `deadline`, or leave it out",
    ),
    RejectCode.IDEMPOTENCY_CONFLICT: Rule(
        "A request with this tenant and idempotency_key exists and asks for something else.",
        "use a new idempotency_key for a new request; to change a running one send request.amend",
    ),
    RejectCode.UNKNOWN_REQUEST: Rule(
        "No request has this tenant and idempotency_key.",
        "send the tenant and idempotency_key of the submit, and send it after the submit was accepted",
    ),
    RejectCode.TOO_LATE: Rule(
        "The request is already at its end, or on its way there, and cannot be changed any more.",
        "nothing to do when the outcome is fine; otherwise submit again with a new idempotency_key",
    ),
}

#: Advice by the validator's error type; `{expected}` is filled from the error.
ADVICE: Mapping[str, str] = {
    "missing": "add the field",
    "string_type": "send a string in quotes",
    "int_type": "send a whole number without quotes and without a decimal point",
    "float_type": "send a number without quotes",
    "list_type": "send an array",
    "dict_type": "send an object",
    "model_type": "send an object",
    "datetime_type": 'send an RFC 3339 time with an offset as a string, such as "2027-01-31T18:00:00Z"',
    "rfc3339": 'send an RFC 3339 time with an offset, such as "2027-01-31T18:00:00Z"',
    "timezone_aware": 'add the offset to the time, such as "Z" or "+01:00"',
    "string_too_short": "send at least one character, or leave the field out if it is optional",
    "string_too_long": "shorten the text to the limit",
    "too_short": "send at least one item, or leave the field out if it is optional",
    "too_long": "send no more items than the limit",
    "less_than_equal": "send a number within the limits",
    "greater_than_equal": "send a number within the limits",
    "greater_than": "send a number within the limits",
    "finite_number": "send an ordinary finite number",
    "literal_error": "send {expected}",
    "enum": "send {expected}",
    "union_tag_invalid": 'set `kind` to "prefix", "manifest" or "keys"',
    "union_tag_not_found": 'add `kind`: "prefix", "manifest" or "keys"',
    "key_bytes": "S3 takes keys of at most 1,024 bytes in UTF-8: shorten it",
    "dot_segment": "take the `..` out: name the place itself; assets with such keys are reached by a prefix source",
    "repeated": "list every item once",
    "nothing_to_change": "add priority, deadline or queues",
    "nul": "take the NUL character out",
    "surrogate": "send whole Unicode characters: a \\ud800–\\udfff escape stands alone",
    "number": "send a finite number of at most 18 digits",
    "twice": "send the field once; readers disagree about which of two counts",
    "nesting": "flatten the message; nothing in the contract nests that deep",
}

#: What a value must look like, by field; used when a pattern does not match.
FORMATS: Mapping[str, str] = {
    "data.idempotency_key": "printable ASCII without spaces, at most 128 characters",
    "data.tenant": "lower-case letters, digits, `-` and `_`, at most 63, as the operators gave it",
    "data.index": "lower-case letters, digits, `-` and `_`, at most 63",
    "data.queues": "the name of a Batch job queue: letters, digits, `-` and `_`, at most 128",
    "data.labels": "label names are lower-case letters, digits, `-` and `_`, at most 63",
    "data.model": "name@version, such as clip-l@3",
    "data.source.bucket": "the bare bucket name, no URI, ARN or access point",
    "data.source.sha256": "64 lower-case hex digits",
    "data.source.uri": "s3://bucket/key with a plain bucket name and no user, port, query or wildcard",
    "data.output.uri": "s3://bucket/prefix with a plain bucket name and no user, port, query or wildcard",
}

TOO_MANY_KEYS = f"a message holds at most {MAX_INLINE_KEYS:,} keys: list more in a manifest (source of kind `manifest`)"


def advice(error_type: str, field: str, expected: str = "") -> str:
    """The most specific thing we can say about an error in `field`."""
    if error_type == "too_long" and field == "data.source.keys":
        return TOO_MANY_KEYS
    if error_type == "string_pattern_mismatch":
        for path, form in FORMATS.items():
            if field == path or field.startswith(path + "."):
                return f"write it as {form}" if path != "data.labels" else form
    return ADVICE.get(error_type, RULES[RejectCode.INVALID_FIELD].fix).format(expected=expected)


def conflict_reject(tenant: str, idempotency_key: str, origin: Origin = NO_ORIGIN) -> Reject:
    """Same (tenant, idempotency_key), other content: intake found the row with another digest."""
    reason = "another request was accepted under this idempotency_key, and it asks for something else"
    return _of(RejectCode.IDEMPOTENCY_CONFLICT, reason, "data.idempotency_key", tenant, idempotency_key, origin)


def unknown_request(tenant: str, idempotency_key: str, origin: Origin = NO_ORIGIN) -> Reject:
    """A cancel or amend of something that was never accepted."""
    reason = "no request was accepted under this idempotency_key for this tenant"
    return _of(RejectCode.UNKNOWN_REQUEST, reason, "data.idempotency_key", tenant, idempotency_key, origin)


def too_late(tenant: str, idempotency_key: str, state: str, origin: Origin = NO_ORIGIN) -> Reject:
    """A cancel or amend of a request whose state allows neither any more."""
    return _of(RejectCode.TOO_LATE, f"the request is already {state}", None, tenant, idempotency_key, origin)


def needs_on_demand(*, named: bool) -> Reject:
    """A multi-node request (submitted, or amended to other queues) for which no on-demand queue is left."""
    where = "none of the queues named is on-demand" if named else "this deployment has no on-demand queue"
    advised = "add an on-demand queue to `queues`" if named else 'leave `mode` out, or set it to "array"'
    return Reject(
        RejectCode.UNSUPPORTED,
        f"mode multi_node runs on on-demand queues only, and {where}",
        "data.queues" if named else "data.mode",
        advised,
    )


def needs_gpu_memory(model: str, holding: Sequence[str], *, named: bool) -> Reject:
    """A model that none of the queues has the GPU memory for; `holding` are those of the deployment that do."""
    where = "of the queues named" if named else "of the queues that the request may use"
    advised = f"name one that has it: {', '.join(holding)}" if holding else "use a smaller model, or ask for a queue"
    return Reject(
        RejectCode.UNSUPPORTED,
        f"none {where} has the GPU memory that model {model!r} needs",
        "data.queues" if named else "data.model",
        advised,
    )


def rejected(reject: Reject, body: str) -> Rejected:
    """The payload of `status.rejected` and of the reject queue."""
    return Rejected(
        code=reject.code,
        reason=reject.reason,
        field=reject.field,
        fix=reject.fix,
        original=cut(body, MAX_ORIGINAL_BYTES),
        tenant=reject.tenant,
        idempotency_key=reject.idempotency_key,
        event_id=reject.origin.event_id or None,
        event_type=reject.origin.event_type or None,
    )


def cut(text: str, limit_bytes: int) -> str:
    """A prefix of `text` whose JSON string fits. Lone surrogates become `?`, since UTF-8 has none."""
    text = text.encode("utf-8", "replace").decode()
    size_bytes = len(json.dumps(text))
    while size_bytes > limit_bytes:
        text = text[: len(text) * limit_bytes // size_bytes - 1]
        size_bytes = len(json.dumps(text))
    return text


def _of(code: RejectCode, reason: str, field: str | None, tenant: str, idempotency_key: str, origin: Origin) -> Reject:
    return Reject(code, reason, field, RULES[code].fix, tenant, idempotency_key, origin)
