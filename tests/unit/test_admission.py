"""Admission: the golden messages, the allow-lists, and what a refusal tells and does not tell."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from controller.core.admission import (
    Amend,
    Cancel,
    Policy,
    Reject,
    Submit,
    TenantPolicy,
    admit,
    conflict_reject,
    rejected,
    request_id,
    too_late,
    unknown_request,
)
from controller.core.rejects import ADVICE, MAX_ORIGINAL_BYTES, RULES, cut
from schema.layout import partial_key
from schema.messages import MessageType, RejectCode, encode

EXAMPLES = Path(__file__).parents[2] / "schema" / "examples"
GUIDE = (Path(__file__).parents[2] / "docs" / "contracts.md").read_text(encoding="utf-8")
DEPLOYMENT = json.loads((EXAMPLES / "deployment.json").read_text())
DIGESTS = json.loads((EXAMPLES / "digests.json").read_text())
NOW = datetime.fromisoformat(DEPLOYMENT["now"])
POLICY = Policy(
    tenants={
        name: TenantPolicy(tuple(lists["inputs"]), tuple(lists["outputs"]), tuple(lists["models"]))
        for name, lists in DEPLOYMENT["tenants"].items()
    },
    models=frozenset(DEPLOYMENT["models"]),
    queues=DEPLOYMENT["queues"],
    max_body_bytes=DEPLOYMENT["max_body_bytes"],
)
KINDS = {"request.submit": Submit, "request.cancel": Cancel, "request.amend": Amend}
DECIDED_BY_INTAKE = {RejectCode.IDEMPOTENCY_CONFLICT, RejectCode.UNKNOWN_REQUEST, RejectCode.TOO_LATE}


def examples(pattern: str) -> list[Any]:
    return [pytest.param(path, id=f"{path.parent.name}/{path.stem}") for path in sorted(EXAMPLES.glob(pattern))]


def minimal(**changes: Any) -> dict[str, Any]:
    document = json.loads((EXAMPLES / "valid/request.submit/minimal.json").read_text())
    return document | {"data": document["data"] | changes}


def admitted(document: Any, policy: Policy = POLICY) -> Submit | Cancel | Amend | Reject:
    return admit(json.dumps(document), policy, NOW)


def refusal(document: Any, policy: Policy = POLICY) -> Reject:
    answer = admitted(document, policy)
    assert isinstance(answer, Reject)
    return answer


@pytest.mark.parametrize("path", examples("valid/request.*/*.json"))
def test_valid_example_is_admitted_for_ever(path: Path) -> None:
    answer = admit(path.read_text(encoding="utf-8"), POLICY, NOW)
    assert isinstance(answer, KINDS[path.parent.name]), answer
    assert answer.request_id == request_id(answer.message.tenant, answer.message.idempotency_key)
    assert answer.origin.event_type == path.parent.name
    if isinstance(answer, Submit):
        assert answer.body_digest == DIGESTS[path.stem]


@pytest.mark.parametrize("path", examples("invalid/*.json"))
def test_invalid_example_is_refused_with_its_code(path: Path) -> None:
    answer = admit(path.read_text(encoding="utf-8"), POLICY, NOW)
    assert isinstance(answer, Reject), answer
    assert answer.code == path.stem.partition("-")[0]
    assert answer.reason
    assert answer.fix


def test_every_code_has_an_example_or_is_decided_by_intake() -> None:
    shown = {path.stem.partition("-")[0] for path in (EXAMPLES / "invalid").iterdir()}
    assert shown | DECIDED_BY_INTAKE == set(RejectCode)
    assert set(RULES) == set(RejectCode)


def test_every_digest_on_record_has_its_example() -> None:
    assert set(DIGESTS) == {path.stem for path in (EXAMPLES / "valid/request.submit").iterdir()}


def test_every_kind_of_error_in_the_examples_has_advice_of_its_own() -> None:
    general = RULES[RejectCode.INVALID_FIELD].fix
    for path in sorted((EXAMPLES / "invalid").glob("invalid_field-*.json")):
        answer = admit(path.read_text(encoding="utf-8"), POLICY, NOW)
        assert isinstance(answer, Reject)
        assert answer.fix != general, path.stem


@pytest.mark.parametrize(
    ("example", "field", "words"),
    [
        ("invalid_field-keys-1001", "data.source.keys", "manifest"),
        ("invalid_field-priority-text", "data.priority", "without quotes"),
        ("invalid_field-label-name", "data.labels.Team Name", "lower-case"),
        ("invalid_field-bucket-arn", "data.source.bucket", "bare bucket name"),
        ("invalid_field-field-twice", "data.model", "once"),
        ("invalid_field-source-no-kind", "data.source.kind", "manifest"),
        ("invalid_field-key-parent", "data.source.keys.1", "`..`"),
        ("invalid_field-prefix-nul", "data.source.prefix", "NUL"),
        ("invalid_field-deadline-naive", "data.deadline", "offset"),
        ("not_cloudevent-eventbridge", "detail", "InputPath"),
        ("not_cloudevent-sns", "Message", "raw message delivery"),
        ("not_cloudevent-data-base64", "data", "data_base64"),
        ("forbidden_bucket-folder-without-slash", "data.source.prefix", "end `prefix` with `/`"),
        ("unsupported-since-request", "data.since_request", "leave the named field out"),
    ],
)
def test_refusal_names_the_field_and_the_change(example: str, field: str, words: str) -> None:
    answer = admit((EXAMPLES / f"invalid/{example}.json").read_text(), POLICY, NOW)
    assert isinstance(answer, Reject)
    assert answer.field == field
    assert words in answer.fix


def test_refusal_lists_several_problems_at_once() -> None:
    answer = admit((EXAMPLES / "invalid/invalid_field-several-problems.json").read_text(), POLICY, NOW)
    assert isinstance(answer, Reject)
    for field in ("data.model", "data.priority", "data.queues"):
        assert field in answer.reason
    crowded = minimal(labels={f"Bad {n}": "" for n in range(9)})
    assert refusal(crowded).reason.endswith("; and 4 more")


def test_a_refusal_finds_its_way_back_even_if_the_message_is_wrong_elsewhere() -> None:
    for document in (minimal(priority="5"), minimal(labels={"team": "\0"}), minimal() | {"type": "request.x"}):
        answer = refusal(document)
        assert (answer.tenant, answer.idempotency_key) == ("search", "stock-2026-12")
        assert answer.origin.event_id == "request.submit/minimal"
    assert refusal(minimal(tenant="no such name")).tenant is None
    assert refusal(minimal(tenant=["search"])).idempotency_key == "stock-2026-12"


SECRET = "hunter2-AKIAEXAMPLE"


@pytest.mark.parametrize(
    "changes",
    [
        {"source": {"kind": SECRET, "bucket": "stock"}},
        {"source": {"kind": "prefix", "bucket": "stock", "prefix": SECRET}},
        {"source": {"kind": "keys", "bucket": "stock", "keys": [SECRET]}},
        {"output": {"uri": f"s3://embeddings/{SECRET}"}},
        {"output": {"uri": f"s3://embeddings/search?X-Amz-Security-Token={SECRET}"}},
        {"labels": {"team": SECRET * 20}},
        {"mode": SECRET},
        {"priority": SECRET},
        {"deadline": SECRET},
        {"since_request": SECRET},
    ],
)
def test_a_refusal_repeats_nothing_but_names_with_a_narrow_pattern(changes: dict[str, Any]) -> None:
    answer = refusal(minimal(**changes))
    assert SECRET not in f"{answer.reason} {answer.fix} {answer.field}"


def test_a_repeat_is_recognised_although_policy_or_time_refuse_it_by_now() -> None:
    document = minimal(deadline="2026-12-02T00:00:00Z")
    first = admit(json.dumps(document), POLICY, NOW)
    late = admit(json.dumps(document), POLICY, datetime(2027, 1, 1, tzinfo=UTC))
    assert isinstance(first, Submit)
    assert isinstance(late, Reject)
    assert late.code is RejectCode.DEADLINE_PASSED
    assert (late.request_id, late.body_digest) == (first.request_id, first.body_digest)
    assert refusal(minimal(priority="5")).request_id is None


def test_request_id_is_frozen_and_separates_tenant_from_key() -> None:
    assert request_id("search", "stock-2026-12") == "r-48b9b81efd0919b63a96"
    assert request_id("a", "b-c") != request_id("a-b", "c")


def test_digest_depends_on_what_is_asked_not_on_how_it_is_written() -> None:
    plain = admitted(minimal(deadline="2026-12-02T06:00:00Z", max_cost_usd=5))
    spelt = minimal(max_cost_usd=5.0, later=1, deadline="2026-12-02T07:00:00+01:00", labels={}, index=None)
    spelt["data"] = dict(reversed(spelt["data"].items()))
    same, other = admitted(spelt), admitted(minimal(model="efficientnet-lite0@1"))
    assert isinstance(plain, Submit)
    assert isinstance(same, Submit)
    assert isinstance(other, Submit)
    assert plain.body_digest == same.body_digest != other.body_digest
    assert DIGESTS["minimal"] == DIGESTS["explicit-defaults"] == DIGESTS["unknown-fields"]


@pytest.mark.parametrize(
    ("entry", "prefix", "allowed"),
    [
        ("s3://stock/data/", "data/", True),
        ("s3://stock/data/", "data/deep/er", True),
        ("s3://stock/data/", "data", False),
        ("s3://stock/data/", "data-secret/", False),
        ("s3://stock/data", "data/x", True),
        ("s3://stock/data", "data-secret/", False),
        ("s3://stock/data", "data", False),
        ("s3://stock/data*", "data-secret/", True),
        ("s3://stock/data*", "dat", False),
        ("s3://stock/*", "anything", True),
        ("s3://stock/", "", True),
        ("s3://stock", "anything", True),
        ("s3://stock2/", "data/", False),
        ("s3://stock/Data/", "data/", False),
        ("s3://stock/caf\u00e9/", "cafe\u0301/", False),
    ],
)
def test_allow_list_entry(entry: str, prefix: str, allowed: bool) -> None:
    tenant = TenantPolicy((entry,), ("s3://embeddings/",), ("*",))
    policy = Policy({"search": tenant}, POLICY.models, POLICY.queues, POLICY.max_body_bytes)
    answer = admitted(minimal(source={"kind": "prefix", "bucket": "stock", "prefix": prefix}), policy)
    assert isinstance(answer, Submit) == allowed
    if not allowed:
        assert isinstance(answer, Reject)
        assert answer.code is RejectCode.FORBIDDEN_BUCKET


@pytest.mark.parametrize(
    "entry",
    ["", "stock", "s3:stock", "s3://", "s3://*", "s3://st*", "s3://stock*", "s3://stock/a*b/", "s3://stock/../x/",
     "s3a://stock/", "https://stock/", "s3://user@stock/", "s3://Stock/", "s3://stock/?x", "arn:aws:s3:::stock/"],
)  # fmt: skip
def test_an_allow_list_entry_of_another_form_stops_the_start(entry: str) -> None:
    with pytest.raises(ValueError, match="not an allow-list entry"):
        TenantPolicy(inputs=(entry,))
    with pytest.raises(ValueError, match="not an allow-list entry"):
        TenantPolicy(outputs=(entry,))


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ((), False),
        (("*",), True),
        (("clip-l@3",), True),
        (("clip-l@*",), True),
        (("clip-l@2",), False),
        (("clip-l",), False),
    ],
)
def test_models_of_a_tenant(entries: tuple[str, ...], allowed: bool) -> None:
    tenant = TenantPolicy(("s3://stock/",), ("s3://embeddings/",), entries)
    policy = Policy({"search": tenant}, POLICY.models, POLICY.queues, POLICY.max_body_bytes)
    assert isinstance(admitted(minimal(), policy), Submit) == allowed


def test_an_output_prefix_leaves_room_for_the_keys_below_it() -> None:
    longest = f"0123456789abcdef/{partial_key(0, 0, 'f' * 64)}"
    fits = "search/".ljust(1024 - len(longest) - 1, "o")
    assert isinstance(admitted(minimal(output={"uri": f"s3://embeddings/{fits}"})), Submit)
    for too_long in (fits + "o", fits[:-1] + "ö"):
        refused = refusal(minimal(output={"uri": f"s3://embeddings/{too_long}"}))
        assert (refused.code, refused.field) == (RejectCode.INVALID_FIELD, "data.output.uri")
        assert str(len(fits) + 1) in refused.fix


def test_refusals_that_intake_decides() -> None:
    for reject in (conflict_reject("t", "k"), unknown_request("t", "k"), too_late("t", "k", "succeeded")):
        assert reject.code in DECIDED_BY_INTAKE
        assert (reject.tenant, reject.idempotency_key) == ("t", "k")
        assert reject.fix == RULES[reject.code].fix
    assert "succeeded" in too_late("t", "k", "succeeded").reason


def test_a_body_at_the_limit_is_read_and_one_byte_more_is_not() -> None:
    body = json.dumps(minimal())
    tight = Policy(POLICY.tenants, POLICY.models, POLICY.queues, len(body))
    assert isinstance(admit(body, tight, NOW), Submit)
    refused = admit(body + " ", tight, NOW)
    assert isinstance(refused, Reject)
    assert refused.code is RejectCode.TOO_LARGE
    multibyte = admit("é" * (len(body) // 2 + 1), tight, NOW)
    assert isinstance(multibyte, Reject)
    assert multibyte.code is RejectCode.TOO_LARGE


@pytest.mark.parametrize("body", ["\0" * 1_000_000, "\ud800" * 1000, '"' * 1_048_576, "写" * 349_525, "🙂" * 262_144])
def test_a_rejection_fits_into_one_sqs_message(body: str) -> None:
    reject = admit(body, POLICY, NOW)
    assert isinstance(reject, Reject)
    sent = encode(MessageType.STATUS_REJECTED, rejected(reject, body), event_id="e" * 22, source="reembed", time=NOW)
    assert len(sent.encode()) < 1_048_576


def test_what_is_cut_is_a_prefix_that_fits_and_little_is_lost() -> None:
    assert cut("short", 100) == "short"
    for text in ("a" * 1000, '"' * 1000, "a" * 500 + "🙂" * 500, "🙂" * 500 + "a" * 500):
        kept = cut(text, 300)
        assert text.startswith(kept)
        assert len(json.dumps(kept)) <= 300
    assert len(cut("a" * 2 * MAX_ORIGINAL_BYTES, MAX_ORIGINAL_BYTES)) > 0.99 * MAX_ORIGINAL_BYTES


def test_guide_has_every_code_with_its_meaning_and_fix() -> None:
    sections = dict(re.findall(r"^### `(\w+)`\n\n(.*?)(?=^#|\Z)", GUIDE, re.DOTALL | re.MULTILINE))
    assert set(sections) == set(RejectCode)
    for code, rule in RULES.items():
        assert sections[code].startswith(rule.meaning)
        assert f"\nFix: {rule.fix}.\n" in sections[code]


class RecordedSqs:
    """Answers as SQS would and keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send_message(self, **arguments: Any) -> dict[str, Any]:
        self.sent.append(arguments)
        return {}

    def receive_message(self, **_: Any) -> dict[str, Any]:
        name = request_id("search", "stock-2026-12")
        data = {"request_id": name, "tenant": "search", "idempotency_key": "stock-2026-12"}
        return {"Messages": [{"Body": json.dumps({"type": "status.succeeded", "data": data}), "ReceiptHandle": "r"}]}

    def delete_message(self, **_: Any) -> None: ...


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL), ids=["boto3", "client"])
def test_guide_sends_what_is_admitted_from_python(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sqs = RecordedSqs()
    monkeypatch.setattr("boto3.client", lambda _: sqs)
    exec(compile(code, "docs/contracts.md", "exec"), {})
    (sent,) = sqs.sent
    assert sent["MessageBody"].isascii()
    assert sent["MessageAttributes"]["type"]["StringValue"] == json.loads(sent["MessageBody"])["type"]
    answer = admit(sent["MessageBody"], POLICY, NOW)
    assert isinstance(answer, Submit), answer
    assert sent["MessageGroupId"] == answer.message.tenant


def test_guide_sends_what_is_admitted_from_the_shell() -> None:
    bodies = re.findall(r"<<'EOF'\n(.*?)^EOF$", GUIDE, re.DOTALL | re.MULTILINE)
    assert bodies
    for body in bodies:
        assert isinstance(admit(body, POLICY, NOW), Submit)


def test_guide_cancels_and_amends_with_what_is_admitted() -> None:
    shown = [
        admit(body, POLICY, NOW) for body in re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL) if '"request.' in body
    ]
    assert {type(answer) for answer in shown} >= {Cancel, Amend}


def test_advice_is_one_line_each() -> None:
    for text in [*ADVICE.values(), *(rule.fix for rule in RULES.values())]:
        assert "\n" not in text
        assert text
        assert not text.endswith(".")
