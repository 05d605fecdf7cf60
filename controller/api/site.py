"""What every route is given: ports, and what the settings say of this deployment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request

from controller.core.admission import Policy
from controller.ports import Clock, Entropy, Store
from controller.settings import GpuQueue, Settings

DEFAULT_ACTOR = "api"

#: Puts a CloudEvent body on the requests queue; raises PortError.
SubmitBody = Callable[[str], Awaitable[None]]


@dataclass(frozen=True)
class Deployment:
    """Configured queues in order of preference, and what admission allows."""

    policy: Policy
    gpu_queues: tuple[GpuQueue, ...]
    prices_usd_per_hour: Mapping[str, float]
    """By queue, and by compute environment where a queue has several."""

    @classmethod
    def of(cls, settings: Settings) -> Deployment:
        return cls(settings.policy(), tuple(settings.gpu_queues), settings.prices_usd_per_hour())


@dataclass(frozen=True, kw_only=True)
class Site:
    store: Store
    clock: Clock
    entropy: Entropy
    submit: SubmitBody
    deployment: Deployment


def _site(request: Request) -> Site:
    return request.app.state.site


OfSite = Annotated[Site, Depends(_site)]
Actor = Annotated[
    str,
    Header(
        alias="X-Actor",
        max_length=64,
        pattern=r"^[\x21-\x7e]+$",
        description="who orders this, for the audit trail; printable ASCII without spaces",
    ),
]
