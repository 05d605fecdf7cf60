"""`python -m schema.export [DIRECTORY]` writes the contracts that upstream teams validate against.

One JSON Schema (2020-12) for each message type, describing the whole SQS body, and one AsyncAPI 3.0 document of the
four queues; without a directory also the tables of fields in docs/contracts.md. All of it comes from
`schema.messages`; a test compares the committed files with a fresh export, so a change of a model shows up in review
as a change of the contract. Output is deterministic.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from schema.messages import PAYLOADS, Envelope, InlineSource, ManifestSource, MessageType, Output, PrefixSource

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAJOR = 1
DIRECTORY = Path(__file__).parent / "contracts"
GUIDE = Path(__file__).parents[1] / "docs" / "contracts.md"
_TABLE = re.compile(r"(<!-- fields of (\w+) -->\n).*?(\n<!-- end -->)", re.DOTALL)

Json = dict[str, Any]
_MODELS = (Envelope, PrefixSource, ManifestSource, InlineSource, Output)

#: channel → (SQS queue, which messages, what it is for)
CHANNELS: dict[str, tuple[str, tuple[MessageType, ...], str]] = {
    "requests": (
        "reembed-requests",
        (MessageType.REQUEST_SUBMIT, MessageType.REQUEST_CANCEL, MessageType.REQUEST_AMEND),
        "Upstream services ask for work. Set MessageGroupId to the tenant, for SQS's fair queues.",
    ),
    "status": (
        "reembed-status",
        tuple(kind for kind in MessageType if kind.startswith("status.")),
        "What becomes of requests and messages. At least once and in no order: go by the type, not by the arrival.",
    ),
    "rejects": (
        "reembed-rejects",
        (MessageType.STATUS_REJECTED,),
        "Messages that were not taken, kept for operators, with the reason, the fix and the message itself.",
    ),
    "reports": (
        "reembed-reports",
        (MessageType.WORKER_REPORT,),
        "Workers report on their attempts. Internal; upstream neither sends nor reads here.",
    ),
}


def message_schema(kind: MessageType) -> Json:
    """JSON Schema of the whole body of one type of message."""
    payload = PAYLOADS[kind].model_json_schema()
    definitions = cast(Json, payload.pop("$defs", {}))
    return {
        "$schema": DIALECT,
        "$id": f"urn:reembed:{kind.value}:v{MAJOR}",
        "title": kind.value,
        **_envelope(kind, payload),
        "$defs": definitions,
    }


def asyncapi() -> Json:
    """The four queues and what travels on them."""
    payloads = sorted(set(PAYLOADS.values()), key=lambda model: model.__name__)
    _, shared = models_json_schema(
        [(model, "validation") for model in payloads], ref_template="#/components/schemas/{model}"
    )
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "reembed",
            "version": f"{MAJOR}.0.0",
            "description": "CloudEvents 1.0 in structured mode, one JSON object as the body of an SQS message.",
        },
        "defaultContentType": "application/json",
        "channels": {name: _channel(name) for name in CHANNELS},
        "operations": {
            "takeRequests": _operation("receive", "requests", "The controller takes requests."),
            "tellStatus": _operation("send", "status", "The controller tells what becomes of requests."),
            "tellRejects": _operation("send", "rejects", "The controller returns what it cannot take."),
            "takeReports": _operation("receive", "reports", "The controller takes reports of workers."),
        },
        "components": {
            "messages": {kind.value: _message(kind) for kind in MessageType},
            "schemas": shared["$defs"],
        },
    }


def contracts() -> dict[str, str]:
    """File name → content."""
    documents = {f"{kind.value}.schema.json": message_schema(kind) for kind in MessageType}
    documents["asyncapi.json"] = asyncapi()
    return {name: json.dumps(document, indent=2, ensure_ascii=False) + "\n" for name, document in documents.items()}


def field_table(model: type[BaseModel]) -> str:
    """Markdown table of a model's fields for docs/contracts.md: meaning, limits, default."""
    document = model.model_json_schema()
    definitions = cast(dict[str, Json], document.get("$defs", {}))
    rows = ["| field | type and limits | default | meaning |", "| --- | --- | --- | --- |"]
    for name, declared in cast(dict[str, Json], document["properties"]).items():
        named = definitions.get(str(declared.get("$ref", "")).rsplit("/", 1)[-1], {})
        if "enum" in named:
            declared = {**named, **declared, "$ref": ""}
        required = name in document.get("required", [])
        default = "required" if required else f"`{json.dumps(declared.get('default'))}`"
        rows.append(f"| `{name}` | {_limits(declared)} | {default} | {_meaning(declared)} |")
    return "\n".join(rows)


def guide(text: str) -> str:
    """The guide with every marked table of fields as the models have it now."""
    models = {model.__name__: model for model in (*_MODELS, *PAYLOADS.values())}
    return _TABLE.sub(lambda found: found[1] + field_table(models[found[2]]) + found[3], text)


def main(arguments: list[str]) -> None:
    directory = Path(arguments[0]) if arguments else DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in contracts().items():
        (directory / name).write_text(text, encoding="utf-8")
    if not arguments and GUIDE.exists():  # not part of the wheel
        GUIDE.write_text(guide(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")


def _envelope(kind: MessageType, data: Json) -> Json:
    """The CloudEvent with `type` fixed and `data` described; attributes it does not know are allowed."""
    envelope = Envelope.model_json_schema()
    properties = cast(Json, envelope["properties"])
    properties["type"] = {"const": kind.value, "type": "string"}
    properties["data"] = data
    return {"description": data.get("description", ""), "type": "object"} | {
        "properties": properties,
        "required": envelope["required"],
    }


def _channel(name: str) -> Json:
    queue, kinds, description = CHANNELS[name]
    return {
        "address": queue,
        "description": description,
        "messages": {kind.value: {"$ref": f"#/components/messages/{kind.value}"} for kind in kinds},
        "bindings": {"sqs": {"queue": {"name": queue, "fifoQueue": False}, "bindingVersion": "0.3.0"}},
    }


def _operation(action: str, channel: str, summary: str) -> Json:
    return {"action": action, "channel": {"$ref": f"#/channels/{channel}"}, "summary": summary}


def _message(kind: MessageType) -> Json:
    model = PAYLOADS[kind]
    return {
        "name": kind.value,
        "title": kind.value,
        "summary": " ".join((model.__doc__ or kind.value).split()),
        "contentType": "application/json",
        "payload": {
            "schemaFormat": "application/schema+json;version=draft-2020-12",
            "schema": _envelope(kind, {"$ref": f"#/components/schemas/{model.__name__}"}),
        },
    }


def _limits(declared: Json) -> str:
    """Type and limits of one field in words; None is not mentioned, since leaving out says the same."""
    options = [option for option in declared.get("anyOf", [declared]) if option.get("type") != "null"]
    said = {**declared, **options[0]}
    words = [_type(said)]
    if "minimum" in said or "maximum" in said:
        words.append(f"{said.get('minimum', '')}…{said.get('maximum', '')}")
    words += [
        f"{label} {said[name]}"
        for name, label in (
            ("exclusiveMinimum", "over"),
            ("maxLength", "length at most"),
            ("maxItems", "at most"),
            ("maxProperties", "at most"),
        )
        if name in said
    ]
    if "pattern" in said and said.get("format") != "date-time":
        words.append(f"`{said['pattern']}`".replace("|", "\\|"))
    return ", ".join(words)


def _type(said: Json) -> str:
    if "oneOf" in said:
        return "object with `kind`"
    if said.get("$ref"):
        return "object"
    if "const" in said or "enum" in said:
        return " or ".join(f'`"{value}"`' for value in said.get("enum", [said.get("const")]))
    if said.get("format") == "date-time":
        return "RFC 3339 time with an offset"
    if said.get("type") == "array":
        return f"array of {said['items'].get('type', 'object')}s"
    return str(said.get("type", "any"))


def _meaning(declared: Json) -> str:
    if "description" in declared:
        return str(declared["description"])
    inner = [option["description"] for option in declared.get("anyOf", []) if "description" in option]
    return str(inner[0]) if inner else ""


if __name__ == "__main__":
    main(sys.argv[1:])
