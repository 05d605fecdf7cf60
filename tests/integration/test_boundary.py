"""The boundary: what a hostile or careless message may make us do. Each attack is refused before any call to AWS."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from controller.aws.s3 import S3Objects
from controller.core.admission import request_id
from controller.store import PostgresStore
from schema.layout import Location
from schema.messages import MAX_BODY_BYTES, MAX_INLINE_KEYS
from schema.states import RequestState
from tests.integration.api_site import payload
from tests.reports.site import Site, settings

#: Two tenants side by side; each has a folder, and the names are chosen to look alike.
TENANTS = {
    "stock": {"inputs": ["s3://photos/data/"], "outputs": ["s3://embeddings/stock/"], "models": ["tiny@1"]},
    "other": {"inputs": ["s3://photos/data-secret/"], "outputs": ["s3://embeddings/other/"], "models": ["*"]},
}


def prefix(bucket: str, key: str = "data/") -> dict[str, Any]:
    return {"source": {"kind": "prefix", "bucket": bucket, "prefix": key}}


def keys(*names: str) -> dict[str, Any]:
    return {"source": {"kind": "keys", "bucket": "photos", "keys": list(names)}}


def output(uri: str) -> dict[str, Any]:
    return {"output": {"uri": uri}}


ATTACKS: dict[str, dict[str, Any]] = {
    "another bucket": prefix("payroll"),
    "a bucket that looks alike": prefix("photos-internal"),
    "a bucket in another case": prefix("Photos"),
    "a bucket with a letter of another alphabet": prefix("phоtos"),
    "a bucket with a trailing dot": prefix("photos."),
    "a bucket with an account in it": prefix("b@evil"),
    "a bucket with a path": prefix("photos/../payroll"),
    "a bucket with an encoded slash": prefix("photos%2fx"),
    "an address as a bucket": prefix("169.254.169.254"),
    "an access point": prefix("arn:aws:s3:us-east-1:123456789012:accesspoint/x"),
    "an alias of an access point": prefix("photos-abcdefgh-s3alias"),
    "a URI as a bucket": prefix("s3://photos"),
    "an empty bucket": prefix(""),
    "a folder that looks alike": prefix("photos", "data-secret/"),
    "a prefix that takes in a folder that looks alike": prefix("photos", "data"),
    "a shorter prefix": prefix("photos", "dat"),
    "the whole bucket": prefix("photos", ""),
    "a step up": prefix("photos", "data/../payroll/"),
    "an encoded step up": prefix("photos", "%2e%2e/data/"),
    "a leading slash": prefix("photos", "/data/"),
    "a NUL": prefix("photos", "data/\0"),
    "another folder in capitals": prefix("photos", "DATA/"),
    "a key of another folder": keys("data/a.jpg", "data-secret/b.jpg"),
    "a key with a step up": keys("data/../data-secret/b.jpg"),
    "a manifest of keys nobody checked": {
        "source": {"kind": "manifest", "bucket": "photos", "uri": "s3://photos/data/m.parquet"}
    },
    "a manifest somewhere else": {"source": {"kind": "manifest", "bucket": "photos", "uri": "s3://payroll/m.parquet"}},
    "a manifest over HTTP": {"source": {"kind": "manifest", "bucket": "photos", "uri": "http://169.254.169.254/x"}},
    "a manifest from a file": {"source": {"kind": "manifest", "bucket": "photos", "uri": "file:///etc/passwd"}},
    "a kind of source that is not there": {"source": {"kind": "url", "url": "http://10.0.0.1/"}},
    "the output of another tenant": output("s3://embeddings/other/"),
    "an output that looks alike": output("s3://embeddings/stock-x/"),
    "an output above": output("s3://embeddings/"),
    "an output with a step up": output("s3://embeddings/stock/../other/"),
    "an output over the input": output("s3://photos/data/"),
    "an output with an account": output("s3://b@evil/stock/"),
    "an output with a port": output("s3://embeddings:443/stock/"),
    "an output with a query": output("s3://embeddings/stock/?versionId=1"),
    "an output of another scheme": output("s3a://embeddings/stock/"),
    "an output in a file": output("file:///var/lib/"),
    "an output of a host with other letters": output("s3://embeddіngs/stock/"),
    "an output at an access point": output("s3://arn:aws:s3:us-east-1:123456789012:accesspoint/x/stock/"),
    "a model by URI": {"model": "s3://evil/model.pt"},
    "a model by path": {"model": "../../etc/passwd@1"},
    "a model of others": {"model": "secret@1"},
    "a model that is not registered": {"model": "tiny@2"},
    "another tenant's name with its input": {"tenant": "other", **prefix("photos", "data/")},
    "a tenant that is not there": {"tenant": "admin"},
    "a tenant of a pattern": {"tenant": "*"},
    "a queue that is not there": {"queues": ["arn:aws:batch:us-east-1:1:job-queue/root"]},
}


@pytest.fixture
def site(store: PostgresStore) -> Site:
    return Site(store, settings(tenants=TENANTS, models=["tiny@1", "secret@1"]))


def event(data: dict[str, Any], kind: str = "request.submit") -> str:
    return json.dumps({"specversion": "1.0", "id": "e", "source": "s", "type": kind, "data": data})


def asked(**changes: Any) -> dict[str, Any]:
    base = payload(source={"kind": "prefix", "bucket": "photos", "prefix": "data/"})
    return base | {"output": {"uri": "s3://embeddings/stock/"}} | changes


@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_attack_is_refused_before_any_call(site: Site, attack: str) -> None:
    site.requests.put(event(asked(**ATTACKS[attack])))
    await site.step("intake", "plan", "dispatch")
    [refusal] = [sent["data"] for sent in site.rejects.sent]
    assert refusal["reason"]
    assert refusal["fix"]
    assert site.objects.calls.total() == 0
    assert site.batch.called("submit") == []
    async with site.store.transaction() as tx:
        assert await tx.measures.states() == {}


async def test_what_is_on_the_lists_is_taken_and_names_its_owner(store: PostgresStore) -> None:
    known = {"photos": "111122223333", "control": "444455556666", "another": "777788889999"}
    owners = {"control_bucket": "control", "bucket_owners": known}
    site = Site(store, settings(tenants=TENANTS, storage=owners))
    site.requests.put(event(asked(status_queue="https://sqs.evil/", reply_to="arn:evil", callback="http://10.0.0.1/")))
    await site.step("intake", "plan", "dispatch")
    assert site.rejects.sent == []
    assert (await site.request(request_id("stock", "k-1"))).state is RequestState.PREPARING
    [assignment] = [json.loads(body) for place, body in site.objects.content.items() if "assignments/" in str(place)]
    assert assignment["source_owner"] == "111122223333"
    assert assignment["bucket_owners"] == {"photos": "111122223333", "control": "444455556666"}
    # Where status events go is the deployment's alone: a message has no word in it.
    assert assignment["report_queue_url"] == site.settings.sqs.reports
    assert b"evil" not in b"".join(site.objects.content.values())


async def test_the_expected_owner_goes_with_every_call() -> None:
    seen: list[dict[str, Any]] = []

    class Client:
        def __getattr__(self, name: str) -> Any:
            async def call(**arguments: Any) -> dict[str, Any]:
                seen.append(arguments)
                return {"ContentLength": 1}

            return call

    objects = S3Objects(Client(), {"photos": "111122223333"})  # type: ignore[arg-type]
    await objects.head(Location("photos", "k"))
    await objects.put(Location("photos", "k"), b"x")
    await objects.put_new(Location("photos", "k"), b"x")
    await objects.head(Location("embeddings", "k"))
    owners = [arguments.get("ExpectedBucketOwner") for arguments in seen]
    assert owners == ["111122223333"] * 3 + [None]


@pytest.mark.parametrize(
    "changes",
    [
        {"source": {"kind": "keys", "bucket": "photos", "keys": [f"data/{n}" for n in range(MAX_INLINE_KEYS + 1)]}},
        {"labels": {f"l-{n}": "v" for n in range(17)}},
        {"labels": {"team": "x" * 4096}},
        {"queues": ["g6e"] * 17},
        {"priority": 10**6},
        {"max_cost_usd": -1},
        {"tolerance": 2},
        {"idempotency_key": "k" * 10_000},
        {"deadline": datetime(1, 1, 1, tzinfo=UTC).isoformat()},
        {"comment": "x" * MAX_BODY_BYTES},
    ],
)
async def test_what_a_message_asks_for_has_limits(site: Site, changes: dict[str, Any]) -> None:
    site.requests.put(event(asked(**changes)))
    await site.step("intake")
    assert len(site.rejects.sent) == 1
    assert len(json.dumps(site.rejects.sent[0]).encode()) < 1024 * 1024


async def test_nobody_stops_or_changes_the_request_of_another_tenant(site: Site) -> None:
    site.requests.put(event(asked()))
    await site.step("intake")
    for kind, more in (("request.cancel", {"reason": "mine"}), ("request.amend", {"priority": 9})):
        site.requests.put(event({"tenant": "other", "idempotency_key": "k-1", **more}, kind))
    await site.step("intake")
    request = await site.request(request_id("stock", "k-1"))
    assert (request.state, request.priority) == (RequestState.ACCEPTED, 0)
    assert [sent["data"]["code"] for sent in site.rejects.sent] == ["unknown_request"] * 2
