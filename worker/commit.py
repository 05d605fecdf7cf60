"""The commit marker: written once, read back when in doubt, and valid whoever wrote it.

The marker is the only thing that makes chunks the output, so everything here prefers reading S3 again to believing an
answer. Fails with `CommitFailed` when neither our marker nor another valid one can be seen.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from schema import assignment as assignments
from schema.exit_codes import ExitCode
from schema.layout import Location
from schema.plan import CommitMarker
from worker.context import Stopped, Voided
from worker.throttle import pause_seconds

TRIES = 6

log = logging.getLogger(__name__)


class CommitFailed(Stopped):
    """The shard's chunks are there, but no valid marker."""

    code = ExitCode.CRASHED


def read_marker(s3: Any, place: Location) -> CommitMarker | None:
    """The marker if one is there; CommitFailed if it is none that we can read."""
    try:
        body = s3.get_object(Bucket=place.bucket, Key=place.key)["Body"].read()
    except Exception as error:
        if _status(error) == 404:
            return None
        raise
    try:
        return CommitMarker.model_validate_json(body)
    except ValidationError as error:
        raise CommitFailed(f"{place.uri} is no commit marker: {error}") from error


def is_valid(s3: Any, output: Location, marker: CommitMarker, *, shard: int, rows: int) -> bool:
    """Whether it commits this shard whole: every chunk object is there with its size, rows and chunks complete."""
    numbers = [chunk.chunk for chunk in marker.chunks]
    if marker.shard != shard or marker.rows != rows or numbers != list(range(len(numbers))):
        return False
    if sum(chunk.rows for chunk in marker.chunks) != rows:
        return False
    return all(_size(s3, output.join(chunk.key)) == chunk.bytes for chunk in marker.chunks)


def check_not_void(s3: Any, assignment_uri: str) -> None:
    """Read the assignment again: withdrawn work must not be committed."""
    place = Location.parse(assignment_uri)
    body = s3.get_object(Bucket=place.bucket, Key=place.key)["Body"].read()
    if assignments.parse(body).void:
        raise Voided("the assignment was withdrawn")


def commit(
    s3: Any, output: Location, place: Location, marker: CommitMarker, *, sleep: Callable[[float], None] = time.sleep
) -> CommitMarker:
    """Write the marker unless there is one; gives the one that holds, ours or another's."""
    for tries in range(1, TRIES + 1):
        try:
            s3.put_object(Bucket=place.bucket, Key=place.key, Body=marker.to_bytes(), IfNoneMatch="*")
            return marker
        except Exception as error:
            log.info("commit answered with an error; reading back", extra={"error": str(error)[:300]})
            refused = error
        there = _read_back(s3, place)
        if there is not None:
            if is_valid(s3, output, there, shard=marker.shard, rows=marker.rows):
                return there
            raise CommitFailed(f"{place.uri} is there, but does not commit the shard whole")
        if _status(refused) in (400, 403, 404):
            raise CommitFailed(f"{place.uri} cannot be written: {refused}") from refused
        if tries < TRIES:
            sleep(pause_seconds(tries, random.uniform))
    raise CommitFailed(f"{place.uri} could not be written in {TRIES} tries")


def _read_back(s3: Any, place: Location) -> CommitMarker | None:
    try:
        return read_marker(s3, place)
    except CommitFailed:
        raise
    except Exception as error:
        log.info("marker could not be read back", extra={"error": str(error)[:300]})
        return None


def _size(s3: Any, place: Location) -> int | None:
    try:
        return int(s3.head_object(Bucket=place.bucket, Key=place.key)["ContentLength"])
    except Exception as error:
        if _status(error) == 404:
            return None
        raise


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    return response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
