"""What the reports loop takes for a report: nothing that a row cannot hold, or it would come again for ever."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.loops.reports import MOST_CHARACTERS, parse


def body(**changes: Any) -> str:
    data: dict[str, Any] = {"attempt_id": "a-1", "token": "t-1", "kind": "heartbeat", "seq": 1, "request_id": "r-1"}
    envelope = {"specversion": "1.0", "id": "w-1", "source": "worker", "type": "worker.report"}
    return json.dumps(envelope | {"data": data | changes})


def test_a_report_is_read() -> None:
    report = parse(body(figures={"assets": 2**40, "fetch_seconds": 1.5}, error="’é🜁", loaded={"3": "d"}))
    assert report is not None
    assert (report.attempt_id, report.figures.assets, report.loaded) == ("a-1", 2**40, {3: "d"})


@pytest.mark.parametrize(
    "changes",
    [
        {"seq": 2**31},
        {"error": "a\0b"},
        {"instance_type": "\ud800"},
        {"figures": {"fetch_seconds": float("nan")}},
        {"figures": {"fetch_seconds": float("inf")}},
        {"figures": {"assets": 10**30}},
        {"figures": {"ok": -1}},
        {"open_chunks": [2**31]},
        {"poison": [-(2**40)]},
        {"loaded": {"99999999999": "d"}},
        {"loaded": {"1": "\0"}},
        {"error": "x" * 4001},
        {"open_chunks": list(range(MOST_CHARACTERS // 2))},
    ],
)
def test_what_no_row_can_hold_is_no_report(changes: dict[str, Any]) -> None:
    assert parse(body(**changes)) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\ud800", '"\\ud800"', "[" * 100_000, "9" * 9999])
def test_any_text_is_no_report(text: str) -> None:
    assert parse(text) is None
