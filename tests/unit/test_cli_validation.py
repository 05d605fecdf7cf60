"""`reembed request validate`: the golden messages, and every fault of a message, not the first alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller.commands.messages import as_event
from controller.commands.validation import FORBIDDEN, Judgement, judge
from schema.messages import RejectCode
from tests.unit.test_admission import EXAMPLES, NOW, POLICY, examples, minimal

#: Only a deployment can tell; the size is its own, too.
OF_POLICY = FORBIDDEN | {
    RejectCode.TOO_LARGE,
    RejectCode.UNKNOWN_MODEL,
    RejectCode.UNKNOWN_QUEUE,
    RejectCode.UNSUPPORTED,
    RejectCode.DEADLINE_PASSED,
}


def judged(document: Any) -> Judgement:
    return judge(json.dumps(document), None, NOW)


def faults(document: Any) -> dict[str | None, str]:
    """Field → fix."""
    found = judged(document).faults
    assert len({fault.field for fault in found}) == len(found), "one line a field"
    return {fault.field: fault.fix for fault in found}


@pytest.mark.parametrize("path", examples("valid/request.*/*.json"))
@pytest.mark.parametrize("policy", [None, POLICY], ids=["contract", "settings"])
def test_a_valid_example_has_no_fault(path: Path, policy: Any) -> None:
    found = judge(path.read_text(encoding="utf-8"), policy, NOW)
    assert found.faults == ()
    assert found.type == path.parent.name
    assert found.request_id is not None
    assert found.document["valid"] is True


@pytest.mark.parametrize("path", examples("invalid/*.json"))
def test_an_invalid_example_has_faults_with_fixes(path: Path) -> None:
    code = RejectCode(path.stem.partition("-")[0])
    with_settings = judge(path.read_text(encoding="utf-8"), POLICY, NOW)
    assert with_settings.faults[0].code is code
    for fault in with_settings.faults:
        assert fault.fix
        assert fault.problem
    alone = judge(path.read_text(encoding="utf-8"), None, NOW)
    assert bool(alone.faults) == (code not in OF_POLICY)


def test_every_fault_is_named_with_its_own_fix() -> None:
    wrong = minimal(
        tenant="Search",
        model="clip-l",
        priority="5",
        source={"kind": "prefix", "bucket": "s3://stock", "prefix": 1},
        output={"uri": "s3://embeddings/../x"},
    )
    del wrong["id"]
    found = faults(wrong)
    assert set(found) == {
        "id",
        "data.tenant",
        "data.model",
        "data.priority",
        "data.source.bucket",
        "data.source.prefix",
        "data.output.uri",
    }
    assert "name@version" in found["data.model"]
    assert "without quotes" in found["data.priority"]
    assert "bare bucket name" in found["data.source.bucket"]


def test_a_fault_that_only_the_reader_sees_does_not_hide_the_others() -> None:
    text = json.dumps(minimal(model="clip-l")).replace('"tenant"', '"tenant": "search", "tenant"', 1)
    found = {fault.field: fault.problem for fault in judge(text, None, NOW).faults}
    assert set(found) == {"data.tenant", "data.model"}
    assert "twice" in found["data.tenant"]


def test_what_json_has_not_is_one_fault() -> None:
    text = json.dumps(minimal(tolerance=float("nan")))
    assert [fault.field for fault in judge(text, None, NOW).faults] == ["data.tolerance"]


def test_an_envelope_of_another_service_is_one_fault() -> None:
    assert list(faults({"detail-type": "x", "detail": minimal(), "source": "y", "id": "z"})) == ["detail"]
    assert list(faults({"Type": "Notification", "Message": "{}"})) == ["Message"]


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '"x"', "[" * 100_000, '{"a": NaN}', "\ufeff{}", '{"data": 1}'])
def test_any_text_is_judged(text: str) -> None:
    assert judge(as_event(text), None, NOW).faults


def test_fields_that_nobody_reads_are_told() -> None:
    document = minimal(prioritty=1)
    document["data"]["output"]["zzz"] = 1
    found = judged(document)
    assert found.faults == ()
    assert sorted(found.ignored) == ["data.output.zzz", "data.prioritty (did you mean priority?)"]


def test_labels_are_the_senders_own() -> None:
    assert judged(minimal(labels={"priorty": "x"})).ignored == ()


def test_a_bare_payload_is_a_submit_and_a_whole_event_stays_as_it_is() -> None:
    payload = minimal()["data"]
    found = judge(as_event(json.dumps(payload)), None, NOW)
    assert (found.type, found.faults) == ("request.submit", ())
    cancel = (EXAMPLES / "valid/request.cancel").glob("*.json")
    text = next(iter(sorted(cancel))).read_text()
    assert as_event(text) == text


def test_settings_name_what_this_deployment_does_not_allow() -> None:
    found = judge(json.dumps(minimal(tenant="nobody")), POLICY, NOW)
    assert [fault.code for fault in found.faults] == [RejectCode.UNKNOWN_TENANT]
    assert found.checked == "contract and settings"
