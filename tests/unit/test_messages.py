"""The contracts as committed: fresh, valid, and true to the golden messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from schema import export
from schema.messages import (
    PAYLOADS,
    Accepted,
    Envelope,
    MessageType,
    RejectCode,
    RequestAmend,
    RequestCancel,
    RequestSubmit,
    encode,
)
from schema.parsing import parse_strict

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "schema" / "examples"
GUIDE = ROOT / "docs" / "contracts.md"
CONTRACTS = ROOT / "schema" / "contracts"
VALID = sorted((EXAMPLES / "valid").rglob("*.json"))
INVALID = sorted((EXAMPLES / "invalid").glob("*.json"))

#: Refused by admission for what JSON Schema cannot say, or what a JSON parser has lost by then.
BEYOND_JSON_SCHEMA = {
    "field-twice",
    "not-a-number",
    "infinity",
    "overflow",
    "max-cost-digits",
    "deep",
    "half-a-surrogate",
    "prefix-nul",
    "label-nul",
    "key-over-1024-bytes",
    "deadline-no-such-day",
}
#: Codes that depend on the deployment, not on the shape of the message.
OF_POLICY = {
    RejectCode.UNKNOWN_TENANT,
    RejectCode.FORBIDDEN_BUCKET,
    RejectCode.FORBIDDEN_MODEL,
    RejectCode.UNKNOWN_MODEL,
    RejectCode.UNKNOWN_QUEUE,
    RejectCode.UNSUPPORTED,
    RejectCode.DEADLINE_PASSED,
    RejectCode.TOO_LARGE,
}


def schema_of(kind: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((CONTRACTS / f"{kind}.schema.json").read_text()))


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def test_committed_contracts_are_what_the_models_say() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in CONTRACTS.iterdir()}
    assert committed == export.contracts(), "run: python -m schema.export"


def test_export_writes_all_contracts(tmp_path: Path) -> None:
    export.main([str(tmp_path / "new")])
    assert {path.name for path in (tmp_path / "new").iterdir()} == set(export.contracts())


@pytest.mark.parametrize("kind", list(MessageType))
def test_json_schema_is_valid_and_names_its_major_version(kind: MessageType) -> None:
    document = export.message_schema(kind)
    Draft202012Validator.check_schema(document)
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert document["$id"] == f"urn:reembed:{kind}:v1"


def test_asyncapi_has_every_message_on_a_channel_and_no_dangling_reference() -> None:
    document = export.asyncapi()
    assert document["asyncapi"] == "3.0.0"
    assert set(document["channels"]) == {"requests", "status", "rejects", "reports"}
    carried = {name for channel in document["channels"].values() for name in channel["messages"]}
    assert carried == set(MessageType)
    for pointer in set(references(document)):
        target: Any = document
        for part in pointer.removeprefix("#/").split("/"):
            target = target[part]
        assert target
    for operation in document["operations"].values():
        assert operation["action"] in ("send", "receive")
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("kind", list(MessageType))
def test_asyncapi_describes_a_message_as_its_json_schema_does(kind: MessageType) -> None:
    document = export.asyncapi()
    payload = document["components"]["messages"][kind]["payload"]["schema"]
    validator = Draft202012Validator(payload | {"components": document["components"]})
    for path in sorted((EXAMPLES / "valid" / kind).glob("*.json")):
        validator.validate(json.loads(path.read_text()))
    assert not validator.is_valid({"specversion": "1.0"})


def references(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        for name, value in document.items():
            if name == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(document, list):
        for value in document:
            yield from references(value)


@pytest.mark.parametrize("path", VALID, ids=name_of)
def test_valid_example_is_taken_for_ever(path: Path) -> None:
    document = json.loads(path.read_text())
    assert document["type"] == path.parent.name
    schema_of(path.parent.name).validate(document)
    event = parse_strict(Envelope, document)
    assert isinstance(event, Envelope)
    payload = parse_strict(PAYLOADS[MessageType(event.type)], event.data)
    assert not isinstance(payload, list), payload
    again = json.loads(encode(MessageType(event.type), payload, event_id=event.id, source=event.source))
    schema_of(event.type).validate(again)
    assert type(payload).model_validate(again["data"]) == payload


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_json_schema_refuses_the_invalid_example_if_it_can_tell(path: Path) -> None:
    code, _, name = path.stem.partition("-")
    try:
        document = json.loads(path.read_text())
    except (ValueError, RecursionError):
        assert code in ("not_json", "invalid_field")
        return
    kind = document.get("type") if isinstance(document, dict) else None
    known = kind if kind in set(MessageType) else "request.submit"
    told = not schema_of(known).is_valid(document)
    if code == RejectCode.UNKNOWN_TYPE:
        assert not any(schema_of(kind).is_valid(document) for kind in export.CHANNELS["requests"][1])
    else:
        assert told == (RejectCode(code) not in OF_POLICY and name not in BEYOND_JSON_SCHEMA)


@pytest.mark.parametrize("kind", list(MessageType))
def test_every_type_and_field_has_an_example(kind: MessageType) -> None:
    given: set[str] = set()
    alike = [other for other in MessageType if PAYLOADS[other] is PAYLOADS[kind]]
    assert list((EXAMPLES / "valid" / kind).glob("*.json"))
    for path in (path for other in alike for path in (EXAMPLES / "valid" / other).glob("*.json")):
        given |= set(json.loads(path.read_text())["data"])
    optional_without_example = {"since_request"} - set(PAYLOADS[kind].model_fields)
    assert set(PAYLOADS[kind].model_fields) - optional_without_example <= given


@pytest.mark.parametrize("model", [RequestSubmit, RequestCancel, RequestAmend, Envelope, *PAYLOADS.values()])
def test_every_field_that_upstream_sees_has_a_meaning(model: type[RequestSubmit]) -> None:
    if model is not PAYLOADS[MessageType.WORKER_REPORT]:
        for line in export.field_table(model).splitlines()[2:]:
            assert line.split(" | ")[-1].strip(" |"), line


def test_guide_has_the_tables_of_all_payloads_as_the_models_say() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert text == export.guide(text), "run: python -m schema.export"
    shown = set(re.findall(r"<!-- fields of (\w+) -->", text))
    upstream = {model.__name__ for kind, model in PAYLOADS.items() if kind is not MessageType.WORKER_REPORT}
    assert shown == upstream | {"Envelope", "PrefixSource", "ManifestSource", "InlineSource", "Output"}


def test_guide_shows_a_valid_example_of_every_message_that_upstream_sees() -> None:
    shown: set[str] = set()
    for block in re.findall(r"```json\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL):
        document = json.loads(block)
        schema_of(document["type"]).validate(document)
        shown.add(document["type"])
    sent_otherwise = {MessageType.REQUEST_SUBMIT, MessageType.WORKER_REPORT}  # in the sections on sending; internal
    assert shown == set(MessageType) - sent_otherwise


def submit(**changes: Any) -> dict[str, Any]:
    document = json.loads((EXAMPLES / "valid/request.submit/minimal.json").read_text())
    return document["data"] | changes


def test_a_deadline_is_one_instant_whatever_its_offset() -> None:
    local = datetime(2026, 12, 2, 7, tzinfo=timezone(timedelta(hours=1)))
    for deadline in ("2026-12-02T06:00:00Z", "2026-12-02t07:00:00.000+01:00", local):
        message = RequestSubmit.model_validate(submit(deadline=deadline))
        assert message.deadline == datetime(2026, 12, 2, 6, tzinfo=UTC)
        assert message.model_dump(mode="json")["deadline"] == "2026-12-02T06:00:00Z"


@pytest.mark.parametrize("deadline", ["0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59-10:00", "2026-12-02 06:00:00Z"])
def test_a_deadline_that_no_calendar_has_is_a_validation_error(deadline: str) -> None:
    with pytest.raises(ValidationError):
        RequestSubmit.model_validate(submit(deadline=deadline))


def test_a_body_is_ascii_so_that_sqs_takes_every_key() -> None:
    keys = ["tab\t", "bell\a", "写真🙂", "￾"]
    message = RequestSubmit.model_validate(submit(source={"kind": "keys", "bucket": "stock", "keys": keys}))
    body = encode(MessageType.REQUEST_SUBMIT, message, event_id="1", source="test", time=datetime.now(UTC))
    assert body.isascii()
    assert body.isprintable()
    assert json.loads(body)["data"]["source"]["keys"] == keys


def test_messages_are_immutable() -> None:
    event = Accepted(request_id="r-1", tenant="search", idempotency_key="k")
    with pytest.raises(ValidationError):
        event.tenant = "labs"  # type: ignore[misc]
