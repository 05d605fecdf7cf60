"""An S3 that refuses is an error of configuration and holds the request; one that is out of order must not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from schema.assignment import Entry, InferAssignment
from worker.aws import expect_owners
from worker.context import ConfigError
from worker.infer import check_source
from worker.main import read_assignment

ASSIGNMENT = InferAssignment(
    request_id="r",
    job_id="j",
    tenant="t",
    control_bucket="c",
    report_queue_url="q",
    entries=[Entry(attempt_id="a", token="t")],
    source_bucket="photos",
    source_owner="111122223333",
    output_uri="s3://o/d",
    model="m@1",
    preprocessing_digest="p",
    chunk_assets=1,
)
CASES = [
    (301, "PermanentRedirect", ConfigError),
    (403, "AccessDenied", ConfigError),
    (404, "NoSuchKey", ConfigError),
    (500, "InternalError", ClientError),
    (503, "SlowDown", ClientError),
]


@pytest.fixture
def s3() -> BaseClient:
    return boto3.client("s3", region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test")


@pytest.mark.parametrize(("status", "code", "raised"), CASES)
def test_reading_the_assignment(s3: BaseClient, status: int, code: str, raised: type[Exception]) -> None:
    with Stubber(s3) as stub:
        stub.add_client_error("get_object", code, http_status_code=status)
        with pytest.raises(raised, match=code):
            read_assignment(s3, "s3://c/assignments/j.json")


@pytest.mark.parametrize(("status", "code", "raised"), CASES)
def test_looking_at_the_source_bucket(s3: BaseClient, status: int, code: str, raised: type[Exception]) -> None:
    with Stubber(s3) as stub:
        stub.add_client_error("head_bucket", code, http_status_code=status)
        with pytest.raises(raised):
            check_source(s3, ASSIGNMENT)


def test_a_role_that_may_read_but_not_list_is_no_error_where_no_owner_is_expected(s3: BaseClient) -> None:
    with Stubber(s3) as stub:
        stub.add_client_error("head_bucket", "403", http_status_code=403)
        check_source(s3, ASSIGNMENT.model_copy(update={"source_owner": None}))


def test_the_owner_goes_with_every_call_to_a_bucket_that_has_one(s3: BaseClient) -> None:
    owners: list[bytes | str | None] = []

    def answer(params: dict[str, Any], **_: Any) -> tuple[Any, dict[str, Any]]:
        owners.append(params["headers"].get("x-amz-expected-bucket-owner"))
        return SimpleNamespace(status_code=200), {}

    s3.meta.events.register("before-call.s3", answer)
    expect_owners(s3, {"mine": "111122223333"})
    s3.put_object(Bucket="mine", Key="k", Body=b"", IfNoneMatch="*")
    s3.get_object(Bucket="mine", Key="k")
    s3.list_objects_v2(Bucket="mine")
    s3.head_bucket(Bucket="mine")
    s3.put_object(Bucket="another", Key="k", Body=b"")
    assert owners == ["111122223333"] * 4 + [None]
