"""Messages from files, stdin or flags. Whether they are right is said elsewhere: offline, or by the API.

A file holds a whole CloudEvent or only the payload of request.submit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controller.commands.exits import CliError, Exit
from controller.core.rejects import Reject
from controller.core.wire import read
from schema.messages import MAX_BODY_BYTES, MessageType


def read_text(path: Path) -> str:
    """The file's text; `-` is stdin."""
    try:
        if str(path) == "-":
            return sys.stdin.read()
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CliError(Exit.USAGE, f"cannot read {path}: it is not UTF-8", "write JSON in UTF-8 or ASCII") from error
    except OSError as error:
        fix = "name a file with the message; `-` reads stdin"
        raise CliError(Exit.USAGE, f"cannot read {path}: {error.strerror}", fix) from error


def as_event(text: str) -> str:
    """The body as it would stand on the queue: a bare payload gets an envelope, anything else is left alone."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(document, dict) or {"specversion", "data", "detail", "Message"} & document.keys():
        return text
    head = {"specversion": "1.0", "id": "validate", "source": "urn:reembed:cli", "type": MessageType.REQUEST_SUBMIT}
    return f'{json.dumps(head)[:-1]}, "data": {text}}}'


def payload_of(text: str) -> str:
    """What the API takes: the payload alone, as it was written where it stands by itself."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise CliError(Exit.USAGE, f"this is not JSON: {error}", "give one JSON object") from error
    except RecursionError as error:
        raise CliError(Exit.USAGE, "this nests too deep", "nothing in the contract nests that deep") from error
    if not isinstance(document, dict) or "specversion" not in document:
        return text
    checked = read(text, MAX_BODY_BYTES)
    if isinstance(checked, Reject):
        more: dict[str, Any] = {"code": checked.code.value, "field": checked.field}
        raise CliError(Exit.USAGE, checked.reason, checked.fix, **more)
    if document["type"] != MessageType.REQUEST_SUBMIT:
        fix = "send it to the requests queue, or use `reembed request cancel`"
        raise CliError(Exit.USAGE, f"this is a {document['type']}, not a request.submit", fix)
    return json.dumps(document["data"])


def from_flags(
    *,
    tenant: str | None,
    key: str | None,
    source: str | None,
    model: str | None,
    output: str | None,
    dtype: str | None,
    labels: Sequence[str] | None,
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
        "output": {"uri": output} | ({"dtype": dtype} if dtype else {}),
        "labels": dict(map(_label, labels)) if labels else None,
        **optional,
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
