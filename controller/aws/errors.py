"""What the SDK raises → the error tree of the ports. The only place that knows error codes.

    429, SlowDown and their kin                      Throttled    certainly not done
    5xx, time-outs, lost connections, no credentials Unavailable  nothing learnt
    every other answer, and what the SDK won't send  Refused      with the code

SubmitJob has no client token, so for it "nothing learnt" means that the job may exist: `ambiguous` makes `Ambiguous` of
what would be Unavailable after the request left. Cancellation passes through untouched.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from http import HTTPStatus

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    UnknownEndpointError,
)

from controller.ports import Ambiguous, PortError, Refused, Throttled, Unavailable

TRANSPORT_ERRORS = (BotoCoreError, ClientError, aiohttp.ClientError, OSError)  # time-outs are OSErrors

_THROTTLE_CODES = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "KmsThrottled",
        "OverLimit",  # SQS: too many messages in flight
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
# 4xx by number, but of the moment: the next call comes with fresh credentials or a whole body.
_PASSING_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "RequestTimeout"})
_NOT_SENT = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError)
_NEVER_SENT = (ParamValidationError, NoRegionError, UnknownEndpointError)


def error_code(error: ClientError) -> str:
    """`Throttling`, `404`, …; SQS puts a legacy prefix before some (`AWS.SimpleQueueService.NonExistentQueue`)."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_code(error: ClientError) -> int:
    """The HTTP status, 0 when the SDK does not tell."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def port_error(error: Exception) -> PortError:
    """The error of the ports that says what `error` says."""
    if isinstance(error, ClientError):
        return _answered(error)
    if isinstance(error, _NEVER_SENT):
        return Refused(type(error).__name__, str(error))
    return Unavailable(f"{type(error).__name__}: {error}")


def _answered(error: ClientError) -> PortError:
    code, status = error_code(error), status_code(error)
    message = str(error.response.get("Error", {}).get("Message", "")) or str(error)
    if status == HTTPStatus.TOO_MANY_REQUESTS or code.rpartition(".")[2] in _THROTTLE_CODES:
        return Throttled(f"{code}: {message}")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or code in _PASSING_CODES:
        return Unavailable(f"{code}: {message}")
    return Refused(code or str(status), message)


@contextmanager
def translated(*, ambiguous: bool = False) -> Generator[None, None, None]:
    """Raise the ports' errors for the SDK's. `ambiguous`: the call must not be repeated unless it surely failed."""
    try:
        yield
    except TRANSPORT_ERRORS as error:
        meaning = port_error(error)
        if ambiguous and isinstance(meaning, Unavailable) and not isinstance(error, _NOT_SENT):
            raise Ambiguous(str(meaning)) from error
        raise meaning from error
