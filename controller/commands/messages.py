"""Messages from files, stdin or flags, and their validation offline: no network, no database.

A file holds a whole CloudEvent or only the payload of request.submit. Without settings the contract alone is
checked; with them also what this deployment allows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from controller.commands.exits import CliError, Exit
from controller.core.admission import Policy, admit, request_id
from controller.core.rejects import Reject
from controller.core.wire import read
from schema.messages import MAX_BODY_BYTES, MessageType, RejectCode

_FORBIDDEN = (RejectCode.UNKNOWN_TENANT, RejectCode.FORBIDDEN_BUCKET, RejectCode.FORBIDDEN_MODEL)


def read_text(path: Path) -> str:
    """The file's text; `-` is stdin."""
    try:
        if str(path) == "-":
            return sys.stdin.read()
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CliError(Exit.USAGE, f"cannot read {path}: {error}") from error


def as_event(text: str) -> str:
    """The body as it would stand on the queue: a bare payload gets an envelope, anything else is left alone."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(document, dict) or "specversion" in document or "data" in document:
        return text
    head = {"specversion": "1.0", "id": "validate", "source": "urn:reembed:cli", "type": MessageType.REQUEST_SUBMIT}
    return f'{json.dumps(head)[:-1]}, "data": {text}}}'


def payload_of(text: str) -> str:
    """What the API takes: the payload alone, as it was written where it stands by itself."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CliError(Exit.USAGE, f"not JSON: {error}", "give one JSON object") from error
    if not isinstance(document, dict) or "specversion" not in document:
        return text
    checked = read(text, MAX_BODY_BYTES)
    if isinstance(checked, Reject):
        raise refusal(checked)
    if document["type"] != MessageType.REQUEST_SUBMIT:
        fix = "send it to the requests queue, or use `reembed request cancel`"
        raise CliError(Exit.USAGE, f"this is a {document['type']}, not a request.submit", fix)
    return json.dumps(document["data"])


def judge(text: str, policy: Policy | None) -> dict[str, Any]:
    """What is known of an acceptable message; a CliError that says field and fix for another."""
    body = as_event(text)
    if policy is None:
        message = read(body, MAX_BODY_BYTES)
        if isinstance(message, Reject):
            raise refusal(message)
        payload = message.payload
        name = request_id(payload.tenant, payload.idempotency_key)
        return {"valid": True, "checked": "contract", "type": message.origin.event_type, "request_id": name}
    fact = admit(body, policy, datetime.now(UTC))
    if isinstance(fact, Reject):
        raise refusal(fact)
    kind = fact.origin.event_type
    return {"valid": True, "checked": "contract and settings", "type": kind, "request_id": fact.request_id}


def refusal(reject: Reject) -> CliError:
    code = Exit.FORBIDDEN if reject.code in _FORBIDDEN else Exit.USAGE
    field = {"field": reject.field} if reject.field else {}
    return CliError(code, reject.reason, reject.fix, code=reject.code.value, **field)


def from_flags(
    *,
    tenant: str | None,
    key: str | None,
    source: str | None,
    model: str | None,
    output: str | None,
    labels: Sequence[str],
    **optional: Any,
) -> dict[str, Any]:
    """A payload from the flags of `reembed submit`; admission checks the values."""
    required = {"--tenant": tenant, "--key": key, "--source": source, "--model": model, "--to": output}
    missing = [flag for flag, value in required.items() if value is None]
    if missing:
        raise CliError(Exit.USAGE, f"missing {', '.join(missing)}", "give them, or a FILE with the whole payload")
    assert source is not None
    payload = {
        "tenant": tenant,
        "idempotency_key": key,
        "source": _source(source),
        "model": model,
        "output": {"uri": output},
        "labels": dict(_label(label) for label in labels) or None,
        **{name: value or None for name, value in optional.items()},
    }
    return {name: value for name, value in payload.items() if value is not None}


def _source(uri: str) -> dict[str, str]:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not uri.startswith("s3://") or not bucket:
        raise CliError(
            Exit.USAGE, f"--source {uri!r} is not an S3 URI", "write s3://bucket/prefix/ or s3://bucket/file.parquet"
        )
    if key.endswith((".parquet", ".csv")):
        return {"kind": "manifest", "bucket": bucket, "uri": uri}
    return {"kind": "prefix", "bucket": bucket, "prefix": key}


def _label(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise CliError(Exit.USAGE, f"--label {text!r} has no value", "write name=value")
    return name, value
