"""`ObjectStore` on a real S3 protocol, behind the proxy that misbehaves on demand."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from controller.aws.clients import ClientOptions, Clients
from controller.aws.s3 import S3Objects
from controller.ports import ObjectInfo, ObjectStore, Refused, Throttled, Unavailable
from schema.layout import Location

BODY = b"some bytes \x00\xff"

Faults = Callable[..., None]


@pytest.fixture
async def bucket(clients: Clients) -> str:
    name = f"contract-{uuid.uuid4().hex[:12]}"
    await clients.s3.create_bucket(Bucket=name)
    return name


@pytest.fixture
def store(clients: Clients) -> ObjectStore:
    return S3Objects(clients.s3, once_client=clients.s3_once)


@pytest.fixture
def place(bucket: str) -> Location:
    return Location(bucket, "requests/r 1/plän+.json")


@pytest.fixture
def faults(s3_proxy_url: str) -> Iterator[Faults]:
    """Sets the rules given; afterwards none are left."""

    def replace(*rules: dict[str, Any]) -> None:
        httpx.post(f"{s3_proxy_url}/_faults", json=list(rules)).raise_for_status()

    httpx.delete(f"{s3_proxy_url}/_faults").raise_for_status()
    yield replace
    httpx.delete(f"{s3_proxy_url}/_faults").raise_for_status()


def fired(s3_proxy_url: str) -> dict[str, int]:
    counts: dict[str, int] = httpx.get(f"{s3_proxy_url}/_faults").json()
    return counts


async def test_what_is_put_is_got(store: ObjectStore, place: Location) -> None:
    await store.put(place, BODY)
    assert await store.get(place) == BODY
    await store.put(place, b"")
    assert await store.get(place) == b""


async def test_an_object_that_is_not_there_is_none(store: ObjectStore, place: Location) -> None:
    assert await store.get(place) is None
    assert await store.head(place) is None


async def test_head_tells_size_and_digest(store: ObjectStore, place: Location) -> None:
    await store.put(place, BODY)
    assert await store.head(place) == ObjectInfo(size=len(BODY), sha256=hashlib.sha256(BODY).hexdigest())


async def test_head_of_an_object_without_a_digest(clients: Clients, store: ObjectStore, place: Location) -> None:
    await clients.s3.put_object(Bucket=place.bucket, Key=place.key, Body=BODY)
    assert await store.head(place) == ObjectInfo(size=len(BODY), sha256=None)


async def test_put_new_creates_once(store: ObjectStore, place: Location) -> None:
    assert await store.put_new(place, b"first")
    assert not await store.put_new(place, b"second")
    assert await store.get(place) == b"first"


async def test_put_new_of_the_same_bytes_is_the_same_put(store: ObjectStore, place: Location) -> None:
    assert await store.put_new(place, b"mine")
    assert await store.put_new(place, b"mine")


async def test_put_new_has_one_winner(store: ObjectStore, place: Location) -> None:
    bodies = [f"writer {number}".encode() for number in range(8)]
    won = await asyncio.gather(*(store.put_new(place, body) for body in bodies))
    assert won.count(True) == 1
    assert await store.get(place) == bodies[won.index(True)]


async def test_put_new_whose_answer_is_lost_is_still_ours(
    store: ObjectStore, place: Location, faults: Faults, s3_proxy_url: str
) -> None:
    faults({"action": "answer_lost", "methods": ["PUT"], "prefix": place.bucket, "at_most": 1})
    assert await store.put_new(place, b"mine")
    assert fired(s3_proxy_url)["answer_lost"] == 1
    assert await store.get(place) == b"mine"


async def test_put_new_whose_answer_is_lost_may_have_lost(
    store: ObjectStore, place: Location, faults: Faults, s3_proxy_url: str
) -> None:
    await store.put(place, b"theirs")
    faults({"action": "answer_lost", "methods": ["PUT"], "prefix": place.bucket, "at_most": 1})
    assert not await store.put_new(place, b"mine")
    assert fired(s3_proxy_url)["answer_lost"] == 1


async def test_put_new_that_never_arrived_is_done_again(
    store: ObjectStore, place: Location, faults: Faults, s3_proxy_url: str
) -> None:
    faults({"action": "reset", "methods": ["PUT"], "prefix": place.bucket, "at_most": 1})
    assert await store.put_new(place, b"mine")
    assert fired(s3_proxy_url)["reset"] == 1
    assert await store.get(place) == b"mine"


async def test_put_new_that_races_is_done_again(
    store: ObjectStore, place: Location, faults: Faults, s3_proxy_url: str
) -> None:
    faults({"action": "conflicted", "methods": ["PUT"], "prefix": place.bucket, "at_most": 1})
    assert await store.put_new(place, b"mine")
    assert fired(s3_proxy_url)["conflicted"] == 1


@pytest.mark.parametrize("action", ["conflicted", "reset"])
async def test_put_new_gives_up_in_the_end(store: ObjectStore, place: Location, faults: Faults, action: str) -> None:
    faults({"action": action, "methods": ["PUT"], "prefix": place.bucket})
    with pytest.raises(Unavailable):
        await store.put_new(place, b"mine")


async def test_slow_down_is_throttled(store: ObjectStore, place: Location, faults: Faults) -> None:
    faults({"action": "throttled", "methods": ["GET", "HEAD", "PUT"], "prefix": place.bucket})
    for call in (store.get(place), store.put(place, BODY), store.put_new(place, BODY)):
        with pytest.raises(Throttled):
            await call


async def test_a_head_that_is_throttled_has_no_code_to_say_so(
    store: ObjectStore, place: Location, faults: Faults
) -> None:
    faults({"action": "throttled", "methods": ["HEAD"], "prefix": place.bucket})
    with pytest.raises(Unavailable):
        await store.head(place)


async def test_a_connection_that_breaks_is_unavailable(store: ObjectStore, place: Location, faults: Faults) -> None:
    faults({"action": "reset", "methods": ["GET", "HEAD", "PUT"], "prefix": place.bucket})
    for call in (store.get(place), store.head(place), store.put(place, BODY)):
        with pytest.raises(Unavailable):
            await call


async def test_sdk_retries_hide_a_short_failure(
    clients: Clients, place: Location, faults: Faults, s3_proxy_url: str
) -> None:
    faults({"action": "throttled", "methods": ["PUT"], "prefix": place.bucket, "at_most": 1})
    async with Clients(ClientOptions(sdk_attempts=2)) as patient:
        await S3Objects(patient.s3).put(place, BODY)
        assert fired(s3_proxy_url)["throttled"] == 1
        faults({"action": "throttled", "methods": ["PUT"], "prefix": place.bucket, "at_most": 1})
        with pytest.raises(Throttled):
            await S3Objects(patient.s3, once_client=patient.s3_once).put_new(place, BODY)


async def test_a_missing_bucket_is_refused(store: ObjectStore) -> None:
    missing = Location("no-such-bucket", "key")
    for call in (store.get(missing), store.put(missing, BODY), store.put_new(missing, BODY)):
        with pytest.raises(Refused) as refused:
            await call
        assert refused.value.code == "NoSuchBucket"


async def test_the_owner_is_named_where_it_is_known(clients: Clients, bucket: str) -> None:
    sent: list[str | None] = []

    def note(request: Any, **_rest: object) -> None:
        sent.append(request.headers.get("x-amz-expected-bucket-owner"))

    clients.s3.meta.events.register("before-sign.s3", note)
    await S3Objects(clients.s3, {bucket: "000000000000"}).put(Location(bucket, "known"), BODY)
    await S3Objects(clients.s3, {"other": "000000000000"}).put(Location(bucket, "unknown"), BODY)
    assert sent == ["000000000000", None]
