"""Patience with S3 in the preparation and index jobs: thousands of calls in a row, none of which may be skipped.

The SDK's few tries absorb a hiccup. Here a call is made again while S3 throttles, errs or is out of reach, for some
minutes; then its last error passes through, and the attempt ends as crashed, to be run again. A refusal is final
at once: `Refused`, with a text in the words of S3. A stop asked for meanwhile is `Interrupted`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from botocore import exceptions

from worker.commit import check_not_void
from worker.context import ConfigError, Context, Interrupted

_T = TypeVar("_T")

#: Waits between tries sum up to about four minutes: longer than S3 takes to spread the load of a busy partition.
_TRIES = 14
_LONGEST_WAIT_SECONDS = 30.0
_THROTTLES = frozenset({"SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "RequestLimitExceeded"})
_UNREACHED = (exceptions.HTTPClientError, exceptions.ConnectionError)


class Refused(ConfigError):
    """S3 will not do it however often it is asked: no such thing, no access, another region or owner."""

    def __init__(self, doing: str, error: exceptions.ClientError) -> None:
        answer = error.response.get("Error", {})
        self.code: str = answer.get("Code", "")
        self.status: int = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        super().__init__(f"cannot {doing}: {self.code}: {answer.get('Message', '')}".rstrip(": "))


def patiently(call: Callable[[], _T], stop: threading.Event, doing: str) -> _T:
    """What `call` returns, at last. `doing` completes the sentence "cannot …"."""
    for number in range(1, _TRIES + 1):
        if stop.is_set():
            raise Interrupted(f"stopped before it could {doing}")
        try:
            return call()
        except exceptions.ClientError as error:
            if not _transient(error):
                raise Refused(doing, error) from error
            if number == _TRIES:
                raise
        except _UNREACHED:
            if number == _TRIES:
                raise
        longest = min(_LONGEST_WAIT_SECONDS, 0.1 * 2**number)
        stop.wait(random.uniform(longest / 2, longest))
    raise AssertionError("unreachable")


def _transient(error: exceptions.ClientError) -> bool:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status >= 500 or status == 429 or error.response.get("Error", {}).get("Code") in _THROTTLES


def put_once(client: Any, bucket: str, key: str, body: bytes, stop: threading.Event) -> bytes:
    """Write an object unless it exists; what stands there now, ours or the one that came first."""
    doing = f"write s3://{bucket}/{key}"
    for _ in range(_TRIES):
        try:
            patiently(lambda: client.put_object(Bucket=bucket, Key=key, Body=body, IfNoneMatch="*"), stop, doing)
            return body
        except Refused as refused:
            if refused.status not in (409, 412):
                raise
        # 412: it exists, perhaps by our own call whose answer was lost. 409: another write is under way just now.
        try:
            return get(client, bucket, key, stop)
        except Refused as refused:
            if refused.status != 404:
                raise
        stop.wait(random.uniform(0.05, 0.5))
    raise RuntimeError(f"{doing}: S3 says that it exists, and that it does not")


def get(client: Any, bucket: str, key: str, stop: threading.Event) -> bytes:
    """A whole small object."""
    return patiently(
        lambda: client.get_object(Bucket=bucket, Key=key)["Body"].read(), stop, f"read s3://{bucket}/{key}"
    )


def refuse_if_void(context: Context) -> None:
    """Raise `Voided` if the controller withdrew our assignment meanwhile; asked before anything is published."""
    patiently(lambda: check_not_void(context.s3, context.assignment_uri), context.stop, "read the assignment again")
