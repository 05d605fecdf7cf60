"""The three ways to name the assets of a request, over more keys than S3 lists in a page."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from controller.core.admission import request_id
from deploy.local.environment import TENANT
from deploy.local.output import read_output
from deploy.local.resources import BucketName
from deploy.local.s3proxy import Action, Rule
from schema.layout import plan_key
from tests.e2e.site import Site, eventually, pictures

PREFIX, COPIES = "many/", 40
PICTURES = [body for body in pictures().values() if body]
KEYS = [f"{PREFIX}{number % 7}/{number:05d}.jpg" for number in range(COPIES * len(PICTURES))]
LISTS = "lists/"
SIZES = {"REEMBED_WORK__SHARD_ASSETS": "500", "REEMBED_WORK__CHUNK_ASSETS": "250"}

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site.build(tmp_path_factory.mktemp("sources"), **SIZES) as site:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: put(site, KEYS[n], PICTURES[n % len(PICTURES)]), range(len(KEYS))))
        site.stack.start_controller("one")
        yield site


def put(site: Site, key: str, body: bytes) -> str:
    site.s3.put_object(Bucket=BucketName.PHOTOS, Key=key, Body=body)
    return f"s3://{BucketName.PHOTOS}/{key}"


def embedded(site: Site, name: str, source: str | dict[str, Any]) -> set[str]:
    """The keys with a vector in the output of a finished request."""
    output = f"s3://{BucketName.EMBEDDINGS}/{name}"
    ref = site.upstream().submit(name, source, "tiny@1", output, tolerance=0.5)
    final = "SELECT state, reason, manifest_uri FROM requests WHERE id = %(id)s AND finished_at IS NOT NULL"
    [(state, reason, manifest)] = eventually(lambda: site.rows(final, id=ref.request_id), f"the end of {name}")
    assert state == "succeeded", reason
    found = read_output(site.s3, manifest)
    assert found.not_exactly_once(set(found.statuses)) == set()
    return {key for key, status in found.statuses.items() if status == "ok"}


def test_every_key_below_a_prefix(site: Site) -> None:
    assert embedded(site, "prefix", f"s3://{BucketName.PHOTOS}/{PREFIX}") == set(KEYS)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_keys_of_a_manifest(site: Site, kind: str) -> None:
    wanted = KEYS[:300]
    body = as_csv(wanted) if kind == "csv" else as_parquet(wanted)
    uri = put(site, f"{LISTS}wanted.{kind}", body)
    source = {"kind": "manifest", "bucket": BucketName.PHOTOS, "uri": uri, "sha256": hashlib.sha256(body).hexdigest()}
    plan = plan_key(request_id(TENANT, f"manifest-{kind}"))
    site.s3_faults(
        Rule(action=Action.THROTTLE, prefix=uri.removeprefix("s3://"), at_most=12),
        Rule(action=Action.LOSE_ANSWER, prefix=f"{BucketName.CONTROL}/{plan}", methods=frozenset({"PUT"}), at_most=1),
    )
    assert embedded(site, f"manifest-{kind}", source) == set(wanted)


def test_the_keys_in_the_message(site: Site) -> None:
    wanted = KEYS[5:25]
    assert embedded(site, "keys", {"kind": "keys", "bucket": BucketName.PHOTOS, "keys": wanted}) == set(wanted)


def as_csv(keys: list[str]) -> bytes:
    """Some keys twice, as an export of a database may have them."""
    text = io.StringIO()
    csv.writer(text).writerows([["key", "size"], *([key, ""] for key in [*keys, *keys[:10]])])
    return text.getvalue().encode()


def as_parquet(keys: list[str]) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table({"key": keys}), stream)
    return stream.getvalue()


def test_a_manifest_that_cannot_be_read_says_what_to_change(site: Site, tmp_path: Path) -> None:
    uri = put(site, f"{LISTS}wrong.csv", b"name\nnothing\n")
    source = {"kind": "manifest", "bucket": BucketName.PHOTOS, "uri": uri}
    ref = site.upstream().submit("wrong", source, "tiny@1", f"s3://{BucketName.EMBEDDINGS}/wrong")
    attention = "SELECT reason FROM requests WHERE id = %(id)s AND state = 'attention'"
    [(reason,)] = eventually(lambda: site.rows(attention, id=ref.request_id), "an operator is asked")
    assert "no column `key`" in reason
