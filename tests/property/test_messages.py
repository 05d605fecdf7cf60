"""Admission under any text: it answers, never raises, and what it admits is allowed and stays the same message."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from controller.core.admission import Amend, Cancel, Policy, Reject, Submit, TenantPolicy, admit, body_digest, rejected
from schema.messages import InlineSource, MessageType, PrefixSource, RejectCode, RequestSubmit, encode
from schema.parsing import parse_strict

EXAMPLES = Path(__file__).parents[2] / "schema" / "examples"
GOLDEN = [json.loads(path.read_text()) for path in sorted((EXAMPLES / "valid").glob("request.*/*.json"))]
SMALL = [document for document in GOLDEN if len(json.dumps(document)) < 2000]
NOW = datetime(2026, 12, 1, tzinfo=UTC)
POLICY = Policy(
    tenants={"search": TenantPolicy(("s3://stock/images/", "s3://open-photos/"), ("s3://embeddings/search/",), ("*",))},
    models=frozenset({"clip-l@3", "efficientnet-lite0@1"}),
    queues={"g6e": False, "g6": False, "g5": False, "g6e-on-demand": True},
    max_body_bytes=256 * 1024,
)

any_text = st.text(st.characters(exclude_categories=[]))  # lone surrogates and NUL included
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**15, max_value=10**50)
    | st.floats()
    | any_text
    | st.sampled_from(["search", "stock", "images/", "clip-l@3", "request.submit", "1.0", "prefix"])
    | st.datetimes().map(lambda time: time.isoformat() + "Z")
)
names = st.sampled_from(sorted({*RequestSubmit.model_fields, "kind", "bucket", "prefix", "keys", "uri"})) | any_text
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, child in inner for path in paths(child, (*at, key)))]


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = changed(document[path[0]], path[1:], value)
    return copy


@st.composite
def nearly_valid(draw: st.DrawFn) -> str:
    """A golden message in which a place or two hold something else, spelt by a careless JSON writer."""
    document = draw(st.sampled_from(SMALL))
    for _ in range(draw(st.integers(1, 2))):
        document = changed(document, draw(st.sampled_from(paths(document))), draw(values))
    return json.dumps(document, ensure_ascii=draw(st.booleans()))


def check_answer(body: str, answer: Submit | Cancel | Amend | Reject) -> None:
    if not isinstance(answer, Reject):
        assert answer.message.tenant in POLICY.tenants
        return
    assert answer.code in set(RejectCode)
    assert answer.reason
    assert answer.fix
    event = encode(MessageType.STATUS_REJECTED, rejected(answer, body), event_id="e", source="reembed", time=NOW)
    sent = json.loads(event)
    assert sent["data"]["code"] == answer.code
    assert len(event) < 1024 * 1024


@given(any_text)
@example("[" * 100_000)
@example('{"a":' * 50_000)
@example('{"a":' + "9" * 10_000 + "}")
@example("\ufeff{}")
@example('"\\ud800"')
def test_any_text_gets_an_answer(body: str) -> None:
    check_answer(body, admit(body, POLICY, NOW))


@given(values)
def test_any_json_gets_an_answer(document: Any) -> None:
    body = json.dumps(document)
    check_answer(body, admit(body, POLICY, NOW))


@given(nearly_valid())
def test_a_damaged_message_gets_an_answer(body: str) -> None:
    check_answer(body, admit(body, POLICY, NOW))


@given(st.sampled_from(SMALL), st.integers(min_value=0), st.integers(min_value=0, max_value=0x10FFFF))
def test_a_message_cut_or_with_one_character_replaced_gets_an_answer(document: Any, at: int, code: int) -> None:
    body = json.dumps(document, ensure_ascii=False)
    at %= len(body)
    for damaged in (body[:at], body[:at] + chr(code) + body[at + 1 :]):
        check_answer(damaged, admit(damaged, POLICY, NOW))


stems = st.sampled_from(["images", "images/", "images/..", "image", "search", "search/", "search/../", ""])
keys = st.builds("{}{}".format, stems, st.text(st.sampled_from("/.-a*?é"), max_size=4)).filter(len)
buckets = st.sampled_from(["stock", "stock", "stock", "open-photos", "open-photos.x", "embeddings"])


def answer_to(**changes: Any) -> Submit | Cancel | Amend | Reject:
    document = {**GOLDEN_MINIMAL, "data": GOLDEN_MINIMAL["data"] | changes}
    return admit(json.dumps(document), POLICY, NOW)


def check_refused(answer: Submit | Cancel | Amend | Reject) -> None:
    assert isinstance(answer, Reject)
    assert answer.code in (RejectCode.FORBIDDEN_BUCKET, RejectCode.INVALID_FIELD)


@given(buckets, keys, st.lists(keys, max_size=2))
def test_what_is_read_lies_within_the_allow_list(bucket: str, key: str, others: list[str]) -> None:
    for source in (
        {"kind": "prefix", "bucket": bucket, "prefix": key},
        {"kind": "keys", "bucket": bucket, "keys": sorted({key, *others})},
    ):
        answer = answer_to(source=source)
        if not isinstance(answer, Submit):
            check_refused(answer)
            continue
        asked = answer.message.source
        assert isinstance(asked, PrefixSource | InlineSource)
        for name in [asked.prefix] if isinstance(asked, PrefixSource) else asked.keys:
            assert asked.bucket == "open-photos" or (asked.bucket == "stock" and name.startswith("images/"))
            assert ".." not in name.split("/")


@given(st.sampled_from(["embeddings", "embeddings", "embedding", "stock"]), keys)
def test_what_is_written_lies_within_the_allow_list(bucket: str, key: str) -> None:
    answer = answer_to(output={"uri": f"s3://{bucket}/{key}"})
    if isinstance(answer, Submit):
        assert f"{answer.message.output.uri}/".startswith("s3://embeddings/search/")
        assert ".." not in key.split("/")
    else:
        check_refused(answer)


GOLDEN_MINIMAL = json.loads((EXAMPLES / "valid/request.submit/minimal.json").read_text())
SUBMITS = [document for document in SMALL if document["type"] == "request.submit"]


@given(
    st.sampled_from(SUBMITS),
    st.randoms(use_true_random=False),
    st.dictionaries(st.text(min_size=1), scalars, max_size=3),
)
def test_digest_survives_reordering_and_unknown_fields(document: Any, random: Any, unknown: dict[str, Any]) -> None:
    plain = parse_strict(RequestSubmit, document["data"])
    assert isinstance(plain, RequestSubmit)
    known = set(RequestSubmit.model_fields)
    items = [*document["data"].items(), *((name, value) for name, value in unknown.items() if name not in known)]
    random.shuffle(items)
    again = RequestSubmit.model_validate(dict(items))
    stated = RequestSubmit.model_validate(plain.model_dump())
    assert body_digest(plain) == body_digest(again) == body_digest(stated)


@given(st.datetimes(timezones=st.timezones()), st.datetimes(timezones=st.just(UTC)))
def test_a_deadline_is_taken_exactly_when_it_is_ahead(deadline: datetime, now: datetime) -> None:
    try:
        instant, offset = deadline.astimezone(UTC), deadline.utcoffset()
    except OverflowError:
        return
    if offset is None or offset % timedelta(minutes=1):
        return
    document = {**GOLDEN_MINIMAL, "data": {**GOLDEN_MINIMAL["data"], "deadline": deadline.isoformat()}}
    answer = admit(json.dumps(document), POLICY, now)
    assert isinstance(answer, Submit) == (instant > now)
