"""The S3 that the embedded stack offers: ministack behind the fault-injecting proxy, seen by three clients."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import boto3
import httpx
import obstore
import pytest
from aiobotocore.session import get_session
from botocore.client import BaseClient
from botocore.config import Config
from botocore.exceptions import ClientError, HTTPClientError
from obstore.store import S3Store

from deploy.local.ministack import Ministack
from deploy.local.processes import Process, start_on_free_port

BUCKET = "photos"
ODD_KEYS = [
    "plain.jpg",
    "a//b.jpg",
    "trailing + plus %2B.jpg",
    "percent%20literal%.jpg",
    "dir/ünïcödé-写真.jpg",
    "question?and#hash&amp=.jpg",
    "tilde~star*paren(1)'quote\"!.jpg",
    "=:@,;$.jpg",
    "a/./b.jpg",
    "a/../b.jpg",
    "/leading.jpg",
    "trailing/",
]
KEYS_OBSTORE_CANNOT_ADDRESS = {"a//b.jpg", "a/./b.jpg", "a/../b.jpg", "/leading.jpg", "trailing/"}
CREDENTIALS = {
    "aws_access_key_id": "test",
    "aws_secret_access_key": "test",
    "region_name": "us-east-1",
}

Faults = Callable[..., None]


@pytest.fixture(scope="module")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    directory = tmp_path_factory.mktemp("ministack")
    server = Ministack(directory / "state", log_path=directory / "ministack.log")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def endpoint(ministack: Ministack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log_path = tmp_path_factory.mktemp("proxy") / "proxy.log"

    def proxy(port: int) -> Process:
        arguments = ["--port", str(port), "--target", ministack.endpoint]
        return Process("s3proxy", [sys.executable, "-m", "deploy.local.s3proxy", *arguments], log_path=log_path)

    process, port = start_on_free_port(proxy)
    yield f"http://127.0.0.1:{port}"
    process.stop()


def client_for(endpoint: str, **config: Any) -> BaseClient:
    retries = {"total_max_attempts": 1}
    return boto3.client("s3", endpoint_url=endpoint, config=Config(retries=retries, **config), **CREDENTIALS)


@pytest.fixture
def s3(endpoint: str) -> Iterator[BaseClient]:
    client = client_for(endpoint)
    client.create_bucket(Bucket=BUCKET)
    yield client
    keys = [item["Key"] for item in client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]
    for key in keys:
        client.delete_object(Bucket=BUCKET, Key=key)
    client.close()


@pytest.fixture
def faults(endpoint: str) -> Iterator[Faults]:
    """Sets the rules given; afterwards none are left."""

    def replace(*rules: dict[str, Any]) -> None:
        httpx.post(f"{endpoint}/_faults", json=list(rules)).raise_for_status()

    httpx.delete(f"{endpoint}/_faults")
    yield replace
    httpx.delete(f"{endpoint}/_faults").raise_for_status()


def counts(endpoint: str) -> dict[str, int]:
    return httpx.get(f"{endpoint}/_faults").json()


@pytest.fixture
async def async_s3(endpoint: str) -> AsyncIterator[Any]:
    async with get_session().create_client("s3", endpoint_url=endpoint, **CREDENTIALS) as client:
        yield client


def store_for(endpoint: str) -> S3Store:
    return S3Store(
        BUCKET,
        endpoint=endpoint,
        access_key_id="test",
        secret_access_key="test",
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


@pytest.mark.parametrize("key", ODD_KEYS)
async def test_a_key_means_the_same_object_to_each_client(
    key: str, s3: BaseClient, async_s3: Any, ministack: Ministack, endpoint: str
) -> None:
    body = b"body of " + key.encode()
    s3.put_object(Bucket=BUCKET, Key=key, Body=body)

    behind_the_proxy = client_for(ministack.endpoint)
    assert behind_the_proxy.get_object(Bucket=BUCKET, Key=key)["Body"].read() == body
    behind_the_proxy.close()
    assert s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == body
    assert s3.head_object(Bucket=BUCKET, Key=key)["ContentLength"] == len(body)
    answer = await async_s3.get_object(Bucket=BUCKET, Key=key)
    assert await answer["Body"].read() == body
    assert [item["Key"] for item in s3.list_objects_v2(Bucket=BUCKET)["Contents"]] == [key]
    if key not in KEYS_OBSTORE_CANNOT_ADDRESS:
        result = await obstore.get_async(store_for(endpoint), key)
        assert bytes(await result.bytes_async()) == body


def test_likely_confused_keys_stay_apart(s3: BaseClient) -> None:
    keys = ["x + y", "x%20+%20y", "x%2By", "x+y", "x y", "x//y", "x/y"]
    for key in keys:
        s3.put_object(Bucket=BUCKET, Key=key, Body=key.encode())
    assert {key: s3.get_object(Bucket=BUCKET, Key=key)["Body"].read().decode() for key in keys} == {
        key: key for key in keys
    }


@pytest.mark.parametrize("size_bytes", [0, 1, 3_000_000])
async def test_bodies_and_ranges_pass_unchanged(size_bytes: int, s3: BaseClient, endpoint: str) -> None:
    body = bytes(range(256)) * (size_bytes // 256) + b"x" * (size_bytes % 256)
    s3.put_object(Bucket=BUCKET, Key="body.bin", Body=body, ContentType="image/jpeg", Metadata={"a": "b"})
    answer = s3.get_object(Bucket=BUCKET, Key="body.bin")
    assert answer["Body"].read() == body
    assert (answer["ContentType"], answer["Metadata"]) == ("image/jpeg", {"a": "b"})
    store = store_for(endpoint)
    assert bytes(await (await obstore.get_async(store, "body.bin")).bytes_async()) == body
    if size_bytes > 100:
        ranged = s3.get_object(Bucket=BUCKET, Key="body.bin", Range="bytes=10-19")
        assert ranged["Body"].read() == body[10:20]
        assert bytes(await obstore.get_range_async(store, "body.bin", start=10, length=10)) == body[10:20]


async def test_obstore_and_aiobotocore_can_write(s3: BaseClient, async_s3: Any, endpoint: str) -> None:
    big = b"0123456789" * 1_200_000  # above obstore's part size: a multipart upload
    await obstore.put_async(store_for(endpoint), "multi/part.bin", big)
    await async_s3.put_object(Bucket=BUCKET, Key="async +.bin", Body=b"async")
    assert s3.get_object(Bucket=BUCKET, Key="multi/part.bin")["Body"].read() == big
    assert s3.get_object(Bucket=BUCKET, Key="async +.bin")["Body"].read() == b"async"


async def test_a_conditional_write_has_one_winner(s3: BaseClient, async_s3: Any) -> None:
    async def write(body: bytes) -> bytes | str:
        try:
            await async_s3.put_object(Bucket=BUCKET, Key="commit.json", Body=body, IfNoneMatch="*")
        except ClientError as error:
            return error.response["Error"]["Code"]
        return body

    results = await asyncio.gather(*(write(f"{number}".encode()) for number in range(8)))
    winners = [result for result in results if isinstance(result, bytes)]
    assert results.count("PreconditionFailed") == 7
    assert winners == [s3.get_object(Bucket=BUCKET, Key="commit.json")["Body"].read()]


def test_listing_starts_after_a_key_and_sorts_by_bytes(s3: BaseClient) -> None:
    keys = ["a", "a+", "a/b", "aé", "a写", "a😀", "b"]
    for key in reversed(keys):
        s3.put_object(Bucket=BUCKET, Key=key, Body=b"")
    listed = [item["Key"] for item in s3.list_objects_v2(Bucket=BUCKET)["Contents"]]
    assert listed == sorted(keys, key=lambda key: key.encode())
    after = s3.list_objects_v2(Bucket=BUCKET, StartAfter="a/b", MaxKeys=2)
    assert [item["Key"] for item in after["Contents"]] == ["aé", "a写"]
    assert after["IsTruncated"]
    rest = s3.list_objects_v2(Bucket=BUCKET, ContinuationToken=after["NextContinuationToken"])
    assert [item["Key"] for item in rest["Contents"]] == ["a😀", "b"]


def test_presigned_urls_keep_a_signature_that_verifies(s3: BaseClient, endpoint: str) -> None:
    s3.put_object(Bucket=BUCKET, Key="signed + key.jpg", Body=b"signed")
    signer = client_for(endpoint, signature_version="s3v4")
    url = signer.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "signed + key.jpg"})
    signer.close()
    assert httpx.get(url).content == b"signed"
    assert httpx.get(url.replace("X-Amz-Expires=3600", "X-Amz-Expires=3601")).status_code == 403


def test_the_next_n_matching_gets_are_throttled(s3: BaseClient, faults: Faults, endpoint: str) -> None:
    for key in ("in/a", "in/b", "out/c"):
        s3.put_object(Bucket=BUCKET, Key=key, Body=b"x")
    faults({"action": "throttled", "prefix": f"{BUCKET}/in/", "at_most": 2})
    assert s3.list_objects_v2(Bucket=BUCKET, Prefix="in/")["KeyCount"] == 2
    assert s3.get_object(Bucket=BUCKET, Key="out/c")["Body"].read() == b"x"
    for key in ("in/a", "in/b"):
        with pytest.raises(ClientError) as refused:
            s3.get_object(Bucket=BUCKET, Key=key)
        assert refused.value.response["Error"]["Code"] == "SlowDown"
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
    assert s3.get_object(Bucket=BUCKET, Key="in/a")["Body"].read() == b"x"
    assert counts(endpoint)["throttled"] == 2


def test_a_share_of_gets_is_throttled(s3: BaseClient, faults: Faults, endpoint: str) -> None:
    s3.put_object(Bucket=BUCKET, Key="k", Body=b"x")
    faults({"action": "throttled", "share": 0.5})
    statuses = [httpx.get(f"{endpoint}/{BUCKET}/k").status_code for _ in range(60)]
    assert 0 < statuses.count(503) < 60
    assert counts(endpoint)["throttled"] == statuses.count(503)


@pytest.mark.parametrize(
    ("action", "status", "code"),
    [
        ("conflicted", 409, "ConditionalRequestConflict"),
        ("precondition_failed", 412, "PreconditionFailed"),
        ("throttled", 503, "SlowDown"),
    ],
)
def test_a_write_is_refused_before_it_reaches_s3(
    action: str, status: int, code: str, s3: BaseClient, faults: Faults
) -> None:
    faults({"action": action, "methods": ["PUT"], "at_most": 1})
    with pytest.raises(ClientError) as refused:
        s3.put_object(Bucket=BUCKET, Key="k", Body=b"x" * 100_000, IfNoneMatch="*")
    assert refused.value.response["Error"]["Code"] == code
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert s3.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 0


@pytest.mark.parametrize(("action", "written"), [("reset", 0), ("answer_lost", 1)])
def test_the_connection_breaks_before_or_after_s3_acted(
    action: str, written: int, s3: BaseClient, faults: Faults, endpoint: str
) -> None:
    faults({"action": action, "methods": ["PUT"], "at_most": 1})
    with pytest.raises(HTTPClientError):
        s3.put_object(Bucket=BUCKET, Key="k", Body=b"x")
    assert s3.list_objects_v2(Bucket=BUCKET)["KeyCount"] == written
    assert counts(endpoint)[action] == 1


def test_a_rule_that_says_nothing_known_is_refused(endpoint: str) -> None:
    answer = httpx.post(f"{endpoint}/_faults", json=[{"action": "throttled", "bucket": "photos"}])
    assert answer.status_code == 422
    assert "bucket" in answer.text
