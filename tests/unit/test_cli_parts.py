"""The pure parts of the command line: payloads from flags, tables, verdicts of a wait, what is printed of errors."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from controller.commands.connection import actor_name
from controller.commands.exits import CliError, Exit
from controller.commands.extras import _load, needed
from controller.commands.messages import from_flags, payload_of
from controller.commands.terminal import Format, put_record, put_rows, report, say
from controller.commands.waiting import operation_verdict, verdict
from schema.states import RequestState

FLAGS: dict[str, Any] = {
    "tenant": "search",
    "key": "k",
    "source": "s3://stock/images/",
    "model": "clip-l@3",
    "output": "s3://embeddings/x",
    "dtype": None,
    "labels": None,
}


def flags(**changes: Any) -> dict[str, Any]:
    return from_flags(**FLAGS | changes)


def refused(work: Any, *arguments: Any, **changes: Any) -> CliError:
    with pytest.raises(CliError) as caught:
        work(*arguments, **changes)
    assert caught.value.document.get("fix"), "says what to do"
    return caught.value


# --- messages ---------------------------------------------------------------------------------------------------


def test_flags_become_a_payload_without_what_was_not_given() -> None:
    assert flags(priority=None, tolerance=0.0, queues=None) == {
        "tenant": "search",
        "idempotency_key": "k",
        "source": {"kind": "prefix", "bucket": "stock", "prefix": "images/"},
        "model": "clip-l@3",
        "output": {"uri": "s3://embeddings/x"},
        "tolerance": 0.0,
    }


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("s3://stock", {"kind": "prefix", "bucket": "stock", "prefix": ""}),
        ("s3://stock/a//b", {"kind": "prefix", "bucket": "stock", "prefix": "a//b"}),
        ("s3://stock/k.csv", {"kind": "manifest", "bucket": "stock", "uri": "s3://stock/k.csv"}),
        ("s3://stock/k.parquet", {"kind": "manifest", "bucket": "stock", "uri": "s3://stock/k.parquet"}),
    ],
)
def test_a_source_is_a_prefix_or_a_manifest(source: str, expected: dict[str, str]) -> None:
    assert flags(source=source)["source"] == expected


@pytest.mark.parametrize("changes", [{"source": "stock/images/"}, {"source": "s3://"}, {"labels": ["team"]}])
def test_flags_that_cannot_be_read_are_refused(changes: dict[str, Any]) -> None:
    assert refused(flags, **changes).code is Exit.USAGE


def test_missing_flags_are_all_named() -> None:
    error = refused(flags, tenant=None, output=None)
    assert str(error) == "missing --tenant, --to"


def test_labels_keep_what_follows_the_first_equals_sign() -> None:
    assert flags(labels=["team=a=b", "empty="])["labels"] == {"team": "a=b", "empty": ""}


def test_a_payload_stays_as_written_and_an_event_is_opened() -> None:
    text = '{"tenant": "a",   "tenant": "b"}'
    assert payload_of(text) == text, "the API sees what was sent"
    event = {"specversion": "1.0", "id": "1", "source": "s", "type": "request.cancel"}
    data = {"tenant": "search", "idempotency_key": "k"}
    assert "request.cancel" in str(refused(payload_of, json.dumps(event | {"data": data})))
    refusal = refused(payload_of, json.dumps(event | {"type": "request.submit", "data": data}))
    assert refusal.document["field"].startswith("data.")
    for text in ("{", "[" * 100_000):
        assert refused(payload_of, text).code is Exit.USAGE


# --- printing ---------------------------------------------------------------------------------------------------


def test_tables_are_aligned_plain_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 500
    rows = [{"a": 1, "b": None, "c": long}, {"a": "語", "b": True, "c": ""}]
    put_rows(rows, ("a", "b", "c"), Format.TABLE)
    assert capsys.readouterr().out == f"a   b    c\n1   -    {long}\n語  yes\n"
    put_rows([], ("a", "b"), Format.TABLE)
    assert capsys.readouterr().out == "a  b\n"


def test_what_strangers_wrote_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    put_rows([{"key": "a\x1b[2Jb\nc\u202ed"}], ("key",), Format.TABLE)
    say("x\x1b]0;owned\x07\nsecond")
    out, err = capsys.readouterr()
    assert out == "key\na\\x1b[2Jb c\\u202ed\n"
    assert err == "x\\x1b]0;owned\\x07\nsecond\n"


def test_a_record_leaves_out_what_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    record = {
        "id": "r-1",
        "reason": None,
        "shards": 0,
        "paused": False,
        "at": "2026-12-01T13:00:00.5+01:00",
        "counts": {"ok": 3, "eta": None},
        "list": ["a", "b"],
        "deep": {"a": {"b": 1}},
        "body": {"x": 1},
    }
    put_record(record, Format.TABLE, leave_out=("body",))
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert lines == {
        "id": "r-1",
        "shards": "0",
        "paused": "no",
        "at": "2026-12-01T12:00:00Z",
        "counts": "ok 3",
        "list": "a, b",
        "deep": '{"a": {"b": 1}}',
    }
    put_record({}, Format.TABLE)
    assert capsys.readouterr().out == ""


def test_json_has_everything_and_always_parses(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"key": "\x1b\ud800", "b": {"c": None}}]
    put_rows(rows, ("key",), Format.JSON)
    assert json.loads(capsys.readouterr().out) == rows
    put_rows([], ("key",), Format.JSON)
    assert json.loads(capsys.readouterr().out) == []


def test_errors_are_told_in_the_format_of_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    error = CliError(Exit.NOT_FOUND, "there is no shard 7", "count from 0", field="shard")
    report(error, Format.TABLE)
    report(error, Format.JSON)
    out, err = capsys.readouterr()
    assert out == ""
    text, document = err[: err.index("{")], json.loads(err[err.index("{") :])
    assert text == "error: there is no shard 7 (shard)\n  fix: count from 0\n"
    assert document == {"detail": "there is no shard 7", "fix": "count from 0", "field": "shard", "exit_code": 3}


# --- verdicts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "done", "code"),
    [
        (RequestState.SUCCEEDED, 4, Exit.OK),
        (RequestState.SUCCEEDED, 3, Exit.PARTIAL),
        (RequestState.FAILED, 4, Exit.FAILED),
        (RequestState.CANCELLED, 0, Exit.FAILED),
        (RequestState.ATTENTION, 3, Exit.FAILED),
    ],
)
def test_a_wait_ends_with_the_requests_end(state: RequestState, done: int, code: Exit) -> None:
    assert verdict({"state": state.value, "shards": 4, "progress": {"shards_done": done}}) is code


@pytest.mark.parametrize(
    ("state", "moved", "skipped", "code"),
    [
        ("pending", 0, 0, Exit.OK),
        ("done", 3, 0, Exit.OK),
        ("done", 3, 1, Exit.PARTIAL),
        ("done", 0, 1, Exit.CONFLICT),
        ("refused", 0, 0, Exit.CONFLICT),
    ],
)
def test_an_order_ends_with_what_it_changed(state: str, moved: int, skipped: int, code: Exit) -> None:
    assert operation_verdict({"state": state, "moved": moved, "skipped": skipped}) is code


def test_the_actor_fits_its_header() -> None:
    assert actor_name("Åsa Berg\n") == "_sa_Berg_"
    assert len(actor_name("x" * 100)) == 64


# --- extras -----------------------------------------------------------------------------------------------------


def test_a_missing_extra_says_what_to_install() -> None:
    with pytest.raises(CliError) as caught, needed("controller"):
        import no_such_package  # noqa: F401  # pyright: ignore[reportMissingImports]
    assert caught.value.document == {
        "detail": "this command needs no_such_package, which is not installed",
        "fix": "pip install 'reembed[controller]'",
    }
    broken = EntryPoint("mine", "no_such_package.cli:app", "reembed.cli")
    assert "reembed[mine]" in refused(_load, broken).document["fix"]
