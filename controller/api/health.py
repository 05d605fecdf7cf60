"""Health: /livez says whether the loops turn, /readyz whether this replica can work. Neither needs a token.

/livez asks nothing of the outside: a database that is away must not get every replica restarted. It fails when a
loop has not finished a step for too long, and names it. /readyz asks the database for its revision and whether each
inbox has answered at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse

from controller.ports import Delivery, Inbox, PortError, Store

OK = "ok"


class Health(Protocol):
    """What the health endpoints ask of the process."""

    @property
    def limit_seconds(self) -> float:
        """A loop that is silent for longer has stopped."""
        ...

    def loops(self) -> Mapping[str, float]:
        """Seconds since each loop's last heartbeat."""
        ...

    async def ready(self) -> Mapping[str, str]:
        """Check → `ok`, or what is wrong."""
        ...


class WatchedInbox:
    """An inbox that remembers that it answered once."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self.answered = False

    async def receive(self, limit: int, wait_seconds: float) -> Sequence[Delivery]:
        deliveries = await self._inbox.receive(limit, wait_seconds)
        self.answered = True
        return deliveries

    async def delete(self, deliveries: Sequence[Delivery]) -> None:
        await self._inbox.delete(deliveries)


@dataclass
class ReplicaHealth:
    """`Health` of one replica. `revision` is what this code needs of the database at least."""

    store: Store
    revision: str
    silence_seconds: Callable[[], Mapping[str, float]]
    limit_seconds: float
    inboxes: Mapping[str, WatchedInbox] = field(default_factory=dict[str, WatchedInbox])

    def loops(self) -> Mapping[str, float]:
        return self.silence_seconds()

    async def ready(self) -> Mapping[str, str]:
        checks = {"database": await self._database()}
        for name, inbox in self.inboxes.items():
            checks[f"inbox_{name}"] = OK if inbox.answered else "no answer yet"
        return checks

    async def _database(self) -> str:
        try:
            found = await self.store.ping()
        except PortError as error:
            return f"unreachable: {error}"
        # Revisions are numbered, and a newer one only adds: during an upgrade the old release works on it.
        if found >= self.revision:
            return OK
        return f"at revision {found}, this code expects {self.revision}: run `reembed db upgrade`"


router = APIRouter(tags=["health"])


def _health(request: Request) -> Health:
    return request.app.state.health


@router.get("/livez", summary="Whether every loop turns; 503 names the silent ones")
async def livez(health: Annotated[Health, Depends(_health)]) -> JSONResponse:
    loops = health.loops()
    silent = sorted(name for name, seconds in loops.items() if seconds > health.limit_seconds)
    body = {
        "status": "loop_stalled" if silent else OK,
        "silent": silent,
        "loops": {name: round(seconds, 3) for name, seconds in loops.items()},
    }
    return JSONResponse(body, status_code=503 if silent else 200)


@router.get("/readyz", summary="Whether database and queues answer; 503 says what does not")
async def readyz(health: Annotated[Health, Depends(_health)]) -> JSONResponse:
    checks = dict(await health.ready())
    ready = all(result == OK for result in checks.values())
    return JSONResponse({"status": OK if ready else "not_ready", "checks": checks}, status_code=200 if ready else 503)
