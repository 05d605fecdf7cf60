"""Opens the SDK's clients, each with the retries and time-outs that its calls can bear.

    sqs           SDK retries: a message sent twice or received for nothing does no harm
    batch_submit  none, and a short time-out: SubmitJob has no client token, so every repeat is a second job
    batch_query   none: the rate budget and the loops retry
    s3            SDK retries: get, head and put are idempotent
    s3_once       none: a create-only put that is repeated runs into its own first success

Endpoints, credentials and region come from where every AWS SDK finds them (AWS_ENDPOINT_URL_SQS, profiles, instance
roles), unless given. A client that cannot be made (no region) fails with botocore's own error at start.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession, get_session

# An SDK client is made at run time from a service model, so it has no static type of its own.
SdkClient = Any


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """What may differ between deployments. A None or a missing endpoint leaves the choice to the SDK."""

    region: str | None = None
    endpoint_urls: Mapping[str, str] = field(default_factory=dict[str, str])
    """By service: sqs, batch, s3."""
    connections: int = 50
    """Per client. The loops of one replica share them."""
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 30.0
    """Above SQS's longest poll of 20 s."""
    batch_read_timeout_seconds: float = 15.0
    """Below the look-up grace, which counts from a call that may still be under way."""
    sdk_attempts: int = 4
    """Of an idempotent call, with the SDK's own backoff."""


class Clients:
    """An async context manager; the clients are open inside it."""

    sqs: SdkClient
    batch_submit: SdkClient
    batch_query: SdkClient
    s3: SdkClient
    s3_once: SdkClient

    def __init__(self, options: ClientOptions | None = None, session: AioSession | None = None) -> None:
        self._options = options or ClientOptions()
        self._session: AioSession = session or get_session()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        options = self._options
        batch_seconds = options.batch_read_timeout_seconds
        async with AsyncExitStack() as opening:
            self.sqs = await self._open(opening, "sqs", attempts=options.sdk_attempts)
            self.batch_submit = await self._open(opening, "batch", attempts=1, read_seconds=batch_seconds)
            self.batch_query = await self._open(opening, "batch", attempts=1, read_seconds=batch_seconds)
            addressing = {"addressing_style": await self._s3_addressing()}
            self.s3 = await self._open(opening, "s3", attempts=options.sdk_attempts, s3=addressing)
            self.s3_once = await self._open(opening, "s3", attempts=1, s3=addressing)
            self._stack = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _open(
        self,
        stack: AsyncExitStack,
        service: str,
        *,
        attempts: int,
        read_seconds: float | None = None,
        s3: Mapping[str, str] | None = None,
    ) -> SdkClient:
        config = AioConfig(
            retries={"mode": "standard", "total_max_attempts": attempts},
            connect_timeout=self._options.connect_timeout_seconds,
            read_timeout=read_seconds or self._options.read_timeout_seconds,
            max_pool_connections=self._options.connections,
            s3=dict(s3) if s3 else None,
            user_agent_extra="reembed-controller",
        )
        creating = self._session.create_client(
            service,
            region_name=self._options.region,
            endpoint_url=self._options.endpoint_urls.get(service),
            config=config,
        )
        return await stack.enter_async_context(creating)

    async def _s3_addressing(self) -> str:
        """Ask the SDK where S3 is: only a client that it made knows every source of an endpoint."""
        async with AsyncExitStack() as stack:
            probe = await self._open(stack, "s3", attempts=1)
            return "path" if is_local_endpoint(probe.meta.endpoint_url) else "auto"


def is_local_endpoint(url: str) -> bool:
    """Whether no bucket name can stand before the host: an address, or this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
