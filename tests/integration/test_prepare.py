"""The preparation job against a real S3 protocol: exact keys, one plan, and errors that say what to change."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schema import layout
from schema.assignment import Entry, PrepareAssignment
from schema.exit_codes import ExitCode
from schema.plan import Figures, Plan
from schema.shardfile import Address, ShardFile
from worker import prepare, sources
from worker.context import ConfigError, Context, Interrupted, Voided
from worker.models import registry
from worker.settings import BatchIdentity, Settings
from worker.spill import Spill

MODEL = "tiny@1"
ODD_KEYS = [
    "in/a+b", "in/a b", "in/a%2Bb", "in/a\x01b", "in/a\nb", "in//b", "in/../b", "in/.", "in/写真/😀",
    "in/&#x8;<>&\"'", "in/é", "in/e\u0301", "in/" + "x" * 1021,
]  # fmt: skip


class Figured:
    """A reporter that keeps what it was told."""

    def __init__(self) -> None:
        self.figures = Figures()

    def update(self, figures: Figures | None = None, **_: Any) -> None:
        self.figures = figures or self.figures


class Site:
    """A source and a control bucket of one test."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.bucket = f"photos-{uuid.uuid4().hex[:8]}"
        self.control = f"control-{uuid.uuid4().hex[:8]}"
        for bucket in (self.bucket, self.control):
            client.create_bucket(Bucket=bucket)
        self.request = uuid.uuid4().hex

    def put(self, *keys: str, body: bytes = b"body") -> None:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda key: self.client.put_object(Bucket=self.bucket, Key=key, Body=body), keys))

    def assignment(self, **changes: Any) -> PrepareAssignment:
        given: dict[str, Any] = {
            "request_id": self.request,
            "job_id": uuid.uuid4().hex,
            "tenant": "stock",
            "control_bucket": self.control,
            "report_queue_url": "http://unused",
            "entries": [Entry(attempt_id="a1", token="t")],
            "model": MODEL,
            "source_bucket": self.bucket,
            "prefix": "in/",
            "shard_assets": 100,
            "chunk_assets": 30,
            "max_assets": 100_000,
        }
        return PrepareAssignment.model_validate(given | changes)

    def run(self, attempt: str = "a1", stop: threading.Event | None = None, **changes: Any) -> Figures:
        assignment = self.assignment(entries=[Entry(attempt_id=attempt, token="t")], **changes)
        key = layout.assignment_key(assignment.job_id)
        self.client.put_object(Bucket=self.control, Key=key, Body=assignment.to_bytes())
        settings = Settings(f"s3://{self.control}/{key}", BatchIdentity())
        reporter = Figured()
        context = Context(self.client, reporter, stop or threading.Event(), settings, settings.assignment_uri)  # type: ignore[arg-type]
        # An assignment withdrawn in the test stays so: `void` is read from S3, not from what the job was given.
        ending = prepare.run(assignment.model_copy(update={"void": False}), assignment.entries[0], context)
        assert ending.code is ExitCode.OK
        return reporter.figures

    def plan(self) -> Plan:
        body = self.client.get_object(Bucket=self.control, Key=layout.plan_key(self.request))["Body"].read()
        return Plan.model_validate_json(body)

    def addresses(self) -> list[list[Address]]:
        """What the shard files of the plan hold, verified against the plan."""
        found = []
        for shard in self.plan().shards:
            body = self.client.get_object(Bucket=self.control, Key=shard.key)["Body"].read()
            assert hashlib.sha256(body).hexdigest() == shard.sha256
            file = ShardFile.open(lambda offset, length, body=body: body[offset : offset + length], len(body))
            assert (file.bucket, file.count) == (self.bucket, shard.assets)
            held = list(file)
            assert (held[0].key.hex(), held[-1].key.hex()) == (shard.first_key_hex, shard.last_key_hex)
            assert sum(address.size for address in held) == shard.bytes
            found.append(held)
        return found

    def keys(self) -> list[str]:
        return [address.key.decode() for shard in self.addresses() for address in shard]

    def upload(self, body: bytes, key: str = "manifest") -> str:
        self.client.put_object(Bucket=self.control, Key=key, Body=body)
        return f"s3://{self.control}/{key}"


@pytest.fixture
def site(s3_client: Any) -> Site:
    return Site(s3_client)


def test_a_prefix_becomes_shards_in_byte_order(site: Site) -> None:
    wanted = [f"in/{number % 7}/{number:05d}.jpg" for number in range(1234)]
    site.put(*wanted, "in", "im/z", "io/a")
    figures = site.run()
    plan = site.plan()
    assert site.keys() == sorted(wanted)
    assert [shard.assets for shard in plan.shards] == [100] * 12 + [34]
    assert [shard.chunks for shard in plan.shards] == [4] * 12 + [2]
    assert (plan.assets, plan.bytes, plan.skipped, figures.assets) == (1234, 1234 * 4, 0, 1234)
    assert plan.preprocessing_digest == registry.find(MODEL).preprocessing_digest


def test_odd_keys_arrive_exactly_with_size_and_etag(site: Site) -> None:
    site.put(*ODD_KEYS)
    site.run()
    etag = hashlib.md5(b"body").hexdigest()
    assert site.addresses() == [[Address(key, 4, etag) for key in sorted(key.encode() for key in ODD_KEYS)]]


def test_folder_markers_are_skipped_and_other_empty_objects_are_not(site: Site) -> None:
    site.put("in/", "in/sub/", "in/empty.jpg", body=b"")
    site.put("in/full/", body=b"not a marker")
    site.run()
    assert site.keys() == ["in/empty.jpg", "in/full/"]
    assert site.plan().skipped == 2


def test_whatever_the_threads_do_the_plan_is_the_same(site: Site) -> None:
    site.put(*(f"in/{number:06x}" for number in range(0, 6_000_000, 5000)))
    digests = []
    for concurrency in (1, 2, 16):
        site.request = uuid.uuid4().hex
        site.run(list_concurrency=concurrency)
        digests.append(site.plan().digest)
    assert len(set(digests)) == 1


def test_the_first_plan_wins_and_a_later_attempt_succeeds_with_it(site: Site) -> None:
    site.put("in/a")
    site.run("a1")
    first = site.plan()
    site.put("in/b")
    site.run("a2")
    assert site.plan() == first


def test_attempts_that_race_publish_one_plan(site: Site) -> None:
    site.put(*(f"in/{number}" for number in range(50)))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(site.run, ["a1", "a2", "a3", "a4"]))
    assert site.plan().attempt_id in {"a1", "a2", "a3", "a4"}
    assert len(site.keys()) == 50


def test_a_withdrawn_assignment_publishes_nothing(site: Site) -> None:
    site.put("in/a")
    with pytest.raises(Voided):
        site.run(void=True)
    assert site.client.list_objects_v2(Bucket=site.control, Prefix=layout.plan_key(site.request))["KeyCount"] == 0


def test_a_stop_is_obeyed(site: Site) -> None:
    site.put("in/a")
    stop = threading.Event()
    stop.set()
    with pytest.raises(Interrupted):
        site.run(stop=stop)


def test_inline_keys_are_sorted_and_repeated_ones_dropped(site: Site) -> None:
    uri = site.upload(json.dumps(["b", "写", "a\nb", "b", "folder/"]).encode())
    site.run(prefix=None, inline_keys_uri=uri)
    assert site.addresses() == [[Address(key.encode(), 0, "") for key in ("a\nb", "b", "folder/", "写")]]


def parquet(**columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'key,size,etag\r\n"b,""1""",7,"""e1"""\r\na,,\r\n"n\nl",-1,\r\na,5,e2\r\n', id="csv"),
        pytest.param(
            parquet(key=['b,"1"', "a", "n\nl", "a"], size=[7, None, -1, 5], etag=['"e1"', None, "", "e2"]),
            id="parquet",
        ),
        pytest.param(
            parquet(
                key=[b'b,"1"', b"a", b"n\nl", b"a"], size=[7.0, float("nan"), -1.0, 5.0], etag=["e1", "", "", "e2"]
            ),
            id="parquet of bytes and floats",
        ),
        pytest.param(b'\xef\xbb\xbfetag,Key,size\ne1,"b,""1""",7.0\n,a,\n,"n\nl",\ne2,a,5\n', id="spreadsheet csv"),
    ],
)
def test_a_manifest_is_read_sorted_and_made_unique(body: bytes, site: Site) -> None:
    site.run(prefix=None, manifest_uri=site.upload(body), manifest_sha256=hashlib.sha256(body).hexdigest())
    assert site.addresses() == [[Address(b"a", 5, "e2"), Address(b'b,"1"', 7, "e1"), Address(b"n\nl", 0, "")]]


def test_a_manifest_larger_than_memory_is_sorted_in_runs(site: Site) -> None:
    keys = [f"{(number * 7919) % 5003:05d}" for number in range(5003)] * 2
    uri = site.upload("\n".join(["key", *keys]).encode())
    assignment = site.assignment(prefix=None, manifest_uri=uri)
    with Spill() as spill:
        found = list(sources.addresses(assignment, site.client, spill, threading.Event(), run_assets=700))
    assert [address.key.decode() for address in found] == sorted(set(keys))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(b"name,size\na,1\n", "no column `key`", id="csv without key"),
        pytest.param(parquet(name=["a"]), "no column `key`; it has name", id="parquet without key"),
        pytest.param(b"", "no column `key`", id="empty file"),
        pytest.param(b"key,size\na,1\n,2\n", "row 2: a key has 1 to 1024 bytes, this one 0", id="empty key"),
        pytest.param(b"key\n" + b"x" * 1025, "row 1: a key has 1 to 1024 bytes, this one 1025", id="long key"),
        pytest.param(b"key,size\na,many\n", "row 1: size 'many' is not a number of bytes", id="size of letters"),
        pytest.param(b"key,size\na,-2\n", "size '-2' is not", id="negative size"),
        pytest.param(b"key,size\na,1.5\n", "size '1.5' is not", id="broken size"),
        pytest.param(b"key,size\na,1e999999\n", "size '1e999999' is not", id="endless size"),
        pytest.param(b"key,size\na\n", "line 2: 1 fields under 2 columns", id="missing field"),
        pytest.param(b'key\n"a', "not CSV", id="quote left open"),
        pytest.param(b"key\n\xff", "not CSV in UTF-8", id="not UTF-8"),
        pytest.param(b"key,etag\na,\xc3\xa9\n", "impossible etag", id="etag not ASCII"),
        pytest.param(parquet(key=[b"\xff"]), "the key is not UTF-8", id="parquet key not UTF-8"),
        pytest.param(parquet(key=pa.array([None], pa.string())), "this one 0", id="parquet null key"),
        pytest.param(b"PAR1 and nothing else", "not a Parquet file", id="parquet cut short"),
    ],
)
def test_a_bad_manifest_is_explained(body: bytes, text: str, site: Site) -> None:
    with pytest.raises(ConfigError) as refused:
        site.run(prefix=None, manifest_uri=site.upload(body))
    assert text in str(refused.value)
    assert f"s3://{site.control}/manifest" in str(refused.value)


def test_a_changed_manifest_is_refused(site: Site) -> None:
    with pytest.raises(ConfigError, match=r"has sha256 .*; the request says 0000"):
        site.run(prefix=None, manifest_uri=site.upload(b"key\na\n"), manifest_sha256="0" * 64)


@pytest.mark.parametrize("body", [b"{}", b"[1]", b"nonsense", b'["\\ud800"]', b'[""]'])
def test_inline_keys_that_are_none_are_refused(body: bytes, site: Site) -> None:
    with pytest.raises(ConfigError, match="manifest"):
        site.run(prefix=None, inline_keys_uri=site.upload(body))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param(lambda site: {}, "no objects under s3://photos-", id="empty prefix"),
        pytest.param(lambda site: {"source_bucket": "nowhere"}, "cannot list s3://nowhere/in/: NoSuch", id="bucket"),
        pytest.param(lambda site: {"manifest_uri": f"s3://{site.control}/none"}, "cannot read s3://", id="no manifest"),
        pytest.param(lambda site: {"model": "tiny@77"}, "no model 'tiny@77'", id="unknown model"),
        pytest.param(lambda site: {"model": "tiny"}, "has no version", id="model without version"),
        pytest.param(lambda site: {"inline_keys_uri": site.upload(b"[]")}, "no objects under the", id="no keys"),
    ],
)
def test_what_the_request_must_change_is_said(changes: Callable[[Site], dict[str, Any]], text: str, site: Site) -> None:
    with pytest.raises(ConfigError) as refused:
        site.run(**changes(site))
    assert text in str(refused.value)


def test_a_source_over_the_limit_is_refused(site: Site) -> None:
    site.put(*(f"in/{number}" for number in range(12)))
    with pytest.raises(ConfigError, match="more than 11 assets under s3://"):
        site.run(max_assets=11)
    site.run(max_assets=12)


def test_a_throttled_listing_goes_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.exceptions import ClientError, EndpointConnectionError

    site.put(*(f"in/{number}" for number in range(12)))
    answer = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}}
    faults: list[Exception] = [ClientError(answer, "ListObjectsV2"), EndpointConnectionError(endpoint_url="x")]  # type: ignore[arg-type]
    real = site.client.list_objects_v2

    def list_objects(**arguments: Any) -> Any:
        if faults:
            raise faults.pop()
        return real(**arguments)

    monkeypatch.setattr(site.client, "list_objects_v2", list_objects)
    site.run()
    assert len(site.keys()) == 12


def test_a_lost_answer_and_a_conflict_still_publish(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is written but the answer lost; then S3 says 409, then 412: reading back finds our own."""
    from botocore.exceptions import ClientError, ReadTimeoutError

    site.put("in/a")
    real = site.client.put_object
    calls = 0

    def put(**arguments: Any) -> Any:
        nonlocal calls
        if "IfNoneMatch" not in arguments:
            return real(**arguments)
        calls += 1
        if calls == 1:
            answer = {"Error": {"Code": "ConditionalRequestConflict"}, "ResponseMetadata": {"HTTPStatusCode": 409}}
            raise ClientError(answer, "PutObject")  # type: ignore[arg-type]
        if calls == 2:
            real(**arguments)
            raise ReadTimeoutError(endpoint_url="x")
        return real(**arguments)

    monkeypatch.setattr(site.client, "put_object", put)
    site.run()
    assert (calls, site.plan().attempt_id) == (3, "a1")
