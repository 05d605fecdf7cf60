"""The table from what the SDK raises to the ports' errors."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)

from controller.aws.clients import is_local_endpoint
from controller.aws.errors import translated
from controller.ports import Ambiguous, PortError, Refused, Throttled, Unavailable

URL = "http://127.0.0.1"


def answered(status: int, code: str) -> ClientError:
    response = {"Error": {"Code": code, "Message": "text"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "AnyOperation")  # type: ignore[arg-type]


TABLE = [
    # what the SDK raises, its meaning, its meaning where a repeat is a second job
    pytest.param(answered(429, "TooManyRequestsException"), Throttled, Throttled, id="batch-429"),
    pytest.param(answered(429, "SomethingNew"), Throttled, Throttled, id="429-of-any-name"),
    pytest.param(answered(503, "SlowDown"), Throttled, Throttled, id="s3-slow-down"),
    pytest.param(answered(400, "ThrottlingException"), Throttled, Throttled, id="400-throttling"),
    pytest.param(answered(403, "RequestThrottled"), Throttled, Throttled, id="sqs-throttled"),
    pytest.param(answered(403, "AWS.SimpleQueueService.OverLimit"), Throttled, Throttled, id="sqs-over-limit"),
    pytest.param(answered(500, "ServerException"), Unavailable, Ambiguous, id="batch-500"),
    pytest.param(answered(503, "ServiceUnavailable"), Unavailable, Ambiguous, id="503"),
    pytest.param(answered(504, ""), Unavailable, Ambiguous, id="gateway-without-a-body"),
    pytest.param(answered(400, "ClientException"), Refused, Refused, id="batch-400"),
    pytest.param(answered(403, "AccessDenied"), Refused, Refused, id="access-denied"),
    pytest.param(answered(404, "NoSuchBucket"), Refused, Refused, id="no-such-bucket"),
    pytest.param(answered(400, "ExpiredToken"), Unavailable, Ambiguous, id="expired-token"),
    pytest.param(ReadTimeoutError(endpoint_url=URL), Unavailable, Ambiguous, id="read-time-out"),
    pytest.param(ConnectTimeoutError(endpoint_url=URL), Unavailable, Ambiguous, id="connect-time-out"),
    pytest.param(EndpointConnectionError(endpoint_url=URL), Unavailable, Ambiguous, id="connection-lost"),
    pytest.param(HTTPClientError(error=OSError()), Unavailable, Ambiguous, id="any-transport-error"),
    pytest.param(aiohttp.ClientPayloadError("cut"), Unavailable, Ambiguous, id="body-cut"),
    pytest.param(TimeoutError(), Unavailable, Ambiguous, id="time-out"),
    pytest.param(ConnectionResetError(), Unavailable, Ambiguous, id="reset"),
    pytest.param(NoCredentialsError(), Unavailable, Unavailable, id="no-credentials-nothing-sent"),
    pytest.param(ParamValidationError(report="bad"), Refused, Refused, id="bad-parameters-nothing-sent"),
]


@pytest.mark.parametrize(("error", "plain", "submit"), TABLE)
def test_the_table(error: Exception, plain: type[PortError], submit: type[PortError]) -> None:
    for ambiguous, meaning in ((False, plain), (True, submit)):
        with pytest.raises(PortError) as raised, translated(ambiguous=ambiguous):
            raise error
        assert type(raised.value) is meaning
        assert raised.value.__cause__ is error


def test_a_refusal_keeps_code_and_message() -> None:
    with pytest.raises(Refused) as refused, translated():
        raise answered(403, "AccessDenied")
    assert (refused.value.code, refused.value.message) == ("AccessDenied", "text")


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ValueError("a bug of ours"), Throttled("already ours")])
def test_what_is_not_the_sdks_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, translated(ambiguous=True):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:4566", True),
        ("http://[::1]:4566", True),
        ("http://10.0.0.7", True),
        ("http://localhost:4566", True),
        ("http://s3.localhost", True),
        ("https://s3.us-east-1.amazonaws.com", False),
        ("https://minio.example.com", False),
    ],
)
def test_where_a_bucket_name_cannot_be_part_of_the_host(url: str, local: bool) -> None:
    assert is_local_endpoint(url) is local
