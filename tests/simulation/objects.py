"""S3 as one dictionary: strong reads, conditional writes, and errors on demand.

Controllers use it through gates. Workers use it through `WorkerClient`, the few calls of a boto3 client that
`worker.commit` makes, with answers that get lost, 409 and 503 on conditional writes.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError, ConnectionClosedError

from controller.ports import ObjectInfo, Throttled, Unavailable
from schema.layout import Location
from tests.simulation.scheduler import Scheduler

ERRORS: Mapping[str, type[Exception]] = {"503": Throttled, "500": Unavailable}


class Objects:
    """`controller.ports.ObjectStore`. `written_at`: virtual time of the last write of a key."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.content: dict[tuple[str, str], bytes] = {}
        self.written_at: dict[tuple[str, str], float] = {}
        self._scheduler = scheduler

    def read(self, location: Location) -> bytes | None:
        """Without a gate, for models and checks."""
        return self.content.get((location.bucket, location.key))

    def write(self, location: Location, body: bytes) -> None:
        place = (location.bucket, location.key)
        self.content[place], self.written_at[place] = body, self._scheduler.time

    async def get(self, location: Location) -> bytes | None:
        await self._gate("get", location)
        return self.read(location)

    async def head(self, location: Location) -> ObjectInfo | None:
        await self._gate("head", location)
        body = self.read(location)
        return None if body is None else ObjectInfo(len(body), hashlib.sha256(body).hexdigest())

    async def put(self, location: Location, body: bytes) -> None:
        await self._gate("put", location)
        self.write(location, body)

    async def put_new(self, location: Location, body: bytes) -> bool:
        await self._gate("put_new", location)
        there = self.read(location)
        if there is None:
            self.write(location, body)
        return there is None or there == body

    async def _gate(self, call: str, location: Location) -> None:
        fault = await self._scheduler.gate(f"s3 {call} {location.key}")
        if fault is not None:
            raise ERRORS[fault](f"S3: {fault}")


class WorkerClient:
    """`faults`: asked at each conditional PUT; `lost`, `409`, `503` or None."""

    def __init__(self, objects: Objects, faults: Callable[[], str | None]) -> None:
        self._objects = objects
        self._faults = faults

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        body = self._objects.read(Location(Bucket, Key))
        if body is None:
            raise _error(404, "NoSuchKey")
        return {"Body": io.BytesIO(body)}

    def head_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        body = self._objects.read(Location(Bucket, Key))
        if body is None:
            raise _error(404, "NotFound")
        return {"ContentLength": len(body)}

    def put_object(self, *, Bucket: str, Key: str, Body: bytes, IfNoneMatch: str | None = None) -> None:
        place = Location(Bucket, Key)
        fault = self._faults()
        if fault == "409":
            raise _error(409, "ConditionalRequestConflict")
        if fault == "503":
            raise _error(503, "SlowDown")
        if IfNoneMatch and self._objects.read(place) is not None:
            raise _error(412, "PreconditionFailed")
        self._objects.write(place, Body)
        if fault == "lost":
            raise ConnectionClosedError(endpoint_url="s3")


def _error(status: int, code: str) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "call")  # type: ignore[typeddict-item]
