"""The ports of a controller with a crash point on either side of every call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, get_type_hints

from controller.loops.context import Context
from controller.loops.runner import Loop, Outcome
from controller.ports import Store, Transaction
from tests.chaos.firing import methods, pass_by
from tests.chaos.points import NO_LOOP, written

#: The loop whose step runs here; tasks that it starts inherit it.
_LOOP: ContextVar[str] = ContextVar("loop", default=NO_LOOP)


class Calls:
    """Any port: `name.method` is passed before and after each call."""

    def __init__(self, name: str, port: Any, names: list[str]) -> None:
        for method in names:
            setattr(self, method, _passing(f"{name}.{method}", getattr(port, method)))


def _passing(point: str, call: Callable[..., Any]) -> Callable[..., Any]:
    async def passing(*arguments: Any, **named: Any) -> Any:
        pass_by(f"{point}:before")
        answer = await call(*arguments, **named)
        pass_by(f"{point}:after")
        return answer

    return passing


class Noted:
    """One aggregate of a transaction; remembers which of its methods will have written at the commit."""

    def __init__(self, aggregate: str, port: Any, passed: list[str]) -> None:
        self._port = port
        self._aggregate = aggregate
        self._passed = passed
        self._writing = set(written(aggregate))

    def __getattr__(self, name: str) -> Any:
        if name in self._writing:
            self._passed.append(f"store.{self._aggregate}.{name}")
        return getattr(self._port, name)


class CrashingStore:
    """Dies before or after a commit, by what it commits and by the loop that does."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.ping = _passing("store.ping", store.ping)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        passed: list[str] = []
        async with self._store.transaction() as tx:
            noted: Any = _Transaction()
            for aggregate in get_type_hints(Transaction):
                setattr(noted, aggregate, Noted(aggregate, getattr(tx, aggregate), passed))
            yield noted
            passed.append(f"store.commit.{_LOOP.get()}")
            for point in passed:
                pass_by(f"{point}:before")
        for point in passed:
            pass_by(f"{point}:after")

    async def close(self) -> None:
        await self._store.close()  # type: ignore[attr-defined]


class _Transaction:
    pass


class NamedLoop:
    """A loop that says which one it is to everything that it calls."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.name = loop.name

    async def step(self, now: datetime) -> Outcome:
        _LOOP.set(self.name)
        return await self._loop.step(now)


def crashing(context: Context, direct: dict[str, type]) -> Context:
    """The context with every outward port wrapped; `direct` as `points.direct_ports` names them."""
    whole: dict[str, Any] = {"store": CrashingStore(context.store)}
    for name in ("inboxes", "outboxes"):
        group = getattr(context, name)
        wrapped = {}
        for field in fields(group):
            port = getattr(group, field.name)
            path = f"{name}.{field.name}"
            if hasattr(port, "_inbox"):  # its health is asked of the object itself
                port._inbox = Calls(path, port._inbox, methods(direct[path]))
                wrapped[field.name] = port
            else:
                wrapped[field.name] = Calls(path, port, methods(direct[path]))
        whole[name] = type(group)(**wrapped)
    for name, protocol in direct.items():
        if "." not in name:
            whole[name] = Calls(name, getattr(context, name), methods(protocol))
    return replace(context, **whole)
