"""S3 as the `ObjectStore` port: whole small objects (plans, assignments, markers, manifests), checked by SHA-256.

Every put sends the digest, so the store refuses a body that was damaged on the way and keeps the digest for `head`.
A bucket whose owner is known is addressed with it, so that a bucket that changed hands is an error, not a leak.

Fails with the ports' errors. A HEAD carries no error body, so on a missing bucket `head` says None, as for a missing
object, where the other calls say Refused.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from botocore.exceptions import ClientError

from controller.aws.clients import SdkClient
from controller.aws.errors import error_code, status_code, translated
from controller.ports import ObjectInfo, Unavailable
from schema.layout import Location

PUT_NEW_ATTEMPTS = 3
_TAKEN = 412
_RACING = 409
_ABSENT_CODES = frozenset({"NoSuchKey", "404", "NotFound"})
_RACING_CODES = frozenset({"ConditionalRequestConflict", "OperationAborted"})


class S3Objects:
    """`once_client` must not retry by itself; it serves `put_new` only, and defaults to `client`.

    `expected_owner` is bucket → account id; a bucket that is not in it is addressed without.
    """

    def __init__(
        self,
        client: SdkClient,
        expected_owner: Mapping[str, str] | None = None,
        *,
        once_client: SdkClient | None = None,
    ) -> None:
        self._client = client
        self._once_client = client if once_client is None else once_client
        self._expected_owner = dict(expected_owner or {})

    async def get(self, location: Location) -> bytes | None:
        """The body, checked against the digest that the store keeps; None when there is no such object."""
        with translated():
            try:
                answer = await self._client.get_object(**self._address(location), ChecksumMode="ENABLED")
            except ClientError as error:
                if error_code(error) in _ABSENT_CODES:
                    return None
                raise
            async with answer["Body"] as stream:
                return bytes(await stream.read())

    async def head(self, location: Location) -> ObjectInfo | None:
        """Size, and the SHA-256 where the store keeps one of the whole object."""
        with translated():
            try:
                answer = await self._client.head_object(**self._address(location), ChecksumMode="ENABLED")
            except ClientError as error:
                if error_code(error) in _ABSENT_CODES:
                    return None
                raise
        return ObjectInfo(size=int(answer["ContentLength"]), sha256=_hex(answer))

    async def put(self, location: Location, body: bytes) -> None:
        """Write or overwrite."""
        with translated():
            await self._client.put_object(**self._address(location), **_content(body))

    async def put_new(self, location: Location, body: bytes) -> bool:
        """Create; False when something else is there already.

        What is there counts as ours when its bytes are: the HTTP client repeats a PUT by itself when a kept-alive
        connection turns out dead, and a lost answer may hide a success, so even a plain 412 may be our own doing.
        """
        unclear: Unavailable | None = None
        for _ in range(PUT_NEW_ATTEMPTS):
            try:
                with translated():
                    if await self._create(location, body):
                        return True
            except Unavailable as error:
                unclear = error
            found = await self.get(location)
            if found is not None:
                return found == body
            # Nothing there: the lost call did not arrive, or what it raced with was not written after all.
        raise unclear or Unavailable(f"{location.uri}: other writers keep racing for it")

    async def _create(self, location: Location, body: bytes) -> bool:
        """One conditional PUT; False on 412 and 409, where the object has to be looked at."""
        try:
            await self._once_client.put_object(**self._address(location), **_content(body), IfNoneMatch="*")
        except ClientError as error:
            if status_code(error) == _TAKEN:
                return False
            if status_code(error) == _RACING and error_code(error) in _RACING_CODES:
                return False
            raise
        return True

    def _address(self, location: Location) -> dict[str, str]:
        address = {"Bucket": location.bucket, "Key": location.key}
        owner = self._expected_owner.get(location.bucket)
        return address if owner is None else address | {"ExpectedBucketOwner": owner}


def _content(body: bytes) -> dict[str, Any]:
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    return {"Body": body, "ChecksumSHA256": digest}


def _hex(answer: Mapping[str, Any]) -> str | None:
    """The digest as hex; a multipart object's is one of its parts' digests (`…-3`), not of its bytes."""
    with suppress(ValueError):
        digest = base64.b64decode(answer.get("ChecksumSHA256", ""), validate=True)
        if len(digest) == hashlib.sha256().digest_size and answer.get("ChecksumType") != "COMPOSITE":
            return digest.hex()
    return None
