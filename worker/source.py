"""One GET or PUT of one object, once: obstore for keys it can address, botocore for the rest.

obstore (native, 0.19 ms of CPU a GET against 1.8 ms) cannot name every key that S3 can: some raise, and with a slash at
either end it silently names *another* key. So the key alone decides, before any call.

SDK retries are off in both: `worker.fetch` owns the retries of GETs and must see every 503. Time-outs are explicit:
obstore's default of 30 seconds for a whole request fails large objects. What S3 answers becomes a value
(`Body` or `Failure`) for a GET and `PutError` for a PUT.

The owner of the bucket is checked once at the start of the job (`worker.infer`), not here: obstore would
send the header unsigned, which S3 refuses.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from schema.states import RowStatus
from worker.rows import Failure

if TYPE_CHECKING:
    from obstore.store import S3Store

CONNECT_SECONDS = 3
REQUEST_SECONDS = 600  # beyond any deadline of `worker.fetch`, which is by size
FALLBACK_THREADS = 8
ERROR_CHARACTERS = 300
LOOPBACK = ("127.0.0.1", "localhost", "::1")

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_THROTTLED = frozenset({429, 500, 502, 503, 504})
_NOT_THE_ASSET = frozenset({"NoSuchBucket", "AllAccessDisabled"})


@dataclass(frozen=True, slots=True)
class Body:
    """A whole object. `etag` without quotes."""

    data: bytes | memoryview
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class Expected:
    """What the listing said of an asset (0 and "" where it said nothing), and the most we take."""

    size: int = 0
    etag: str = ""
    max_bytes: int | None = None

    def refusal(self, size: int, etag: str) -> Failure | None:
        """Whether an answer with this size and ETag is still the listed object, before its body is read."""
        if (self.size and size != self.size) or (self.etag and etag and etag != self.etag):
            return Failure(RowStatus.CHANGED, f"listed {self.size} bytes {self.etag}, found {size} bytes {etag}")
        if self.max_bytes is not None and size > self.max_bytes:
            return Failure(RowStatus.TOO_LARGE, f"{size} bytes, at most {self.max_bytes}")
        return None


class PutError(Exception):
    """`transient`: the same PUT may work later."""

    def __init__(self, message: str, *, transient: bool) -> None:
        super().__init__(message)
        self.transient = transient


def obstore_can_address(key: bytes) -> bool:
    """Whether obstore would ask for exactly this key. False sends it to botocore."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return False
    if any(ord(character) < 32 or 127 <= ord(character) < 160 for character in text):
        return False
    return not any(segment in ("", ".", "..") for segment in text.split("/"))


class Bucket:
    """One bucket at one endpoint, for one process. Made inside the process that uses it."""

    def __init__(self, name: str, environment: Mapping[str, str] = os.environ) -> None:
        self.name = name
        self._environment = environment
        self._endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
        self._store = self._native()
        self._botocore: Any = None
        self._making = threading.Lock()
        self._fallback_slots = asyncio.Semaphore(FALLBACK_THREADS)

    async def get(self, key: bytes, expected: Expected) -> Body | Failure:
        """One GET, one answer. Raises only for our own bugs."""
        if obstore_can_address(key):
            return await self._get_native(key.decode(), expected)
        try:
            text = key.decode()
        except UnicodeDecodeError:
            return Failure(RowStatus.MISSING, "not a key: it is not UTF-8")
        async with self._fallback_slots:
            return await asyncio.to_thread(self._get_botocore, text, expected)

    async def put(self, key: str, body: bytes) -> None:
        """One PUT as a single request, with a checksum that S3 verifies and keeps."""
        if not obstore_can_address(key.encode()):
            return await asyncio.to_thread(self._put_botocore, key, body)
        try:
            await self._store.put_async(key, body, use_multipart=False)
        except Exception as error:
            failure = classify(error)
            transient = failure.status in (RowStatus.THROTTLED, RowStatus.DEADLINE)
            raise PutError(f"PUT s3://{self.name}/{key}: {failure.error}", transient=transient) from None

    def _native(self) -> S3Store:
        from obstore.store import S3Store

        loopback = self._endpoint is not None and urlsplit(self._endpoint).hostname in LOOPBACK
        place: dict[str, Any] = {"endpoint": self._endpoint} if self._endpoint else {}
        return S3Store(
            self.name,
            **place,
            region=self._environment.get("AWS_REGION") or self._environment.get("AWS_DEFAULT_REGION") or "us-east-1",
            virtual_hosted_style_request=not loopback and "." not in self.name,
            checksum_algorithm="SHA256",
            client_options={
                "allow_http": loopback,
                "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
                "timeout": timedelta(seconds=REQUEST_SECONDS),
            },
            retry_config={"max_retries": 0},
        )

    async def _get_native(self, key: str, expected: Expected) -> Body | Failure:
        try:
            answer = await self._store.get_async(key)
            meta = answer.meta
            etag = (meta["e_tag"] or "").strip('"')
            if (refusal := expected.refusal(meta["size"], etag)) is not None:
                return refusal
            data = memoryview(await answer.bytes_async())
        except Exception as error:
            return classify(error)
        return _whole(data, meta["size"], etag)

    def _get_botocore(self, key: str, expected: Expected) -> Body | Failure:
        try:
            answer = self._client().get_object(Bucket=self.name, Key=key)
            size, etag = answer["ContentLength"], answer["ETag"].strip('"')
            with answer["Body"] as stream:
                if (refusal := expected.refusal(size, etag)) is not None:
                    return refusal
                data = stream.read()
        except Exception as error:
            return _classify_botocore(error)
        return _whole(data, size, etag)

    def _put_botocore(self, key: str, body: bytes) -> None:
        try:
            self._client().put_object(Bucket=self.name, Key=key, Body=body, ChecksumAlgorithm="SHA256")
        except Exception as error:
            failure = _classify_botocore(error)
            transient = failure.status in (RowStatus.THROTTLED, RowStatus.DEADLINE)
            raise PutError(f"PUT s3://{self.name}/{key}: {failure.error}", transient=transient) from None

    def _client(self) -> Any:
        """Made at the first odd key: importing botocore costs more than most ranks' whole start."""
        with self._making:
            if self._botocore is None:
                from worker.aws import s3_client

                self._botocore = s3_client(max_attempts=1, connections=FALLBACK_THREADS)
            return self._botocore


def _whole(data: bytes | memoryview, size: int, etag: str) -> Body | Failure:
    """A short body is the network's fault; it must never reach a decoder, which would call the image truncated."""
    if len(data) != size:
        return Failure(RowStatus.THROTTLED, f"body of {len(data)} bytes where {size} were announced")
    return Body(data, size, etag)


def classify(error: Exception) -> Failure:
    """The verdict that an obstore error stands for. HTTP status and S3 code stand in its text only."""
    text = str(error).partition("\n\nDebug source")[0]
    status = _STATUS.search(text)
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if status is None:
        redirect = "incorrectly configured region" in text
        verdict = RowStatus.DENIED if redirect else RowStatus.THROTTLED
        return Failure(verdict, _shortened(text.rpartition(" - ")[2]))
    return verdict_on(int(status[1]), code[1] if code else "", message[1] if message else "")


def _classify_botocore(error: Exception) -> Failure:
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return Failure(RowStatus.THROTTLED, _shortened(f"{type(error).__name__}: {error}"))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    detail = response.get("Error", {})
    return verdict_on(status, str(detail.get("Code", "")), str(detail.get("Message", "")))


def verdict_on(http_status: int, code: str, message: str) -> Failure:
    """The one table from S3's answers to statuses."""
    error = _shortened(f"{code}: {message}" if message else code or f"HTTP {http_status}")
    if code in _NOT_THE_ASSET:
        return Failure(RowStatus.DENIED, error, http_status)
    if http_status == 404:
        return Failure(RowStatus.MISSING, error, http_status)
    if http_status in _THROTTLED:
        return Failure(RowStatus.THROTTLED, error, http_status)
    if http_status in (408, 412) or code == "RequestTimeout":
        return Failure(RowStatus.THROTTLED, error, http_status)
    return Failure(RowStatus.DENIED, error, http_status)  # 403 of every kind, KMS, archived objects, wrong region


def _shortened(text: str) -> str:
    return " ".join(text.split())[:ERROR_CHARACTERS]
