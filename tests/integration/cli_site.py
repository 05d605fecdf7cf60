"""The command line against a served API: real HTTP, real store, real Postgres. What the tests of the CLI share."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import uvicorn
from typer.testing import CliRunner

from controller.cli import app
from controller.commands.exits import Exit
from controller.store import PostgresStore
from tests.integration.api_site import Queue, application
from tests.store_rows import fill

START_SECONDS = 30
#: As a shell starts it.
COMMAND = [sys.executable, "-m", "controller.cli"]
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: Exit
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def reembed(*arguments: object, typed: str | None = None, **environment: str | None) -> Ran:
    """Run a command in this process, without a terminal. An environment variable that is None is taken away."""
    clean = {name: None for name in os.environ if name.startswith("REEMBED_")} | environment
    result = CliRunner().invoke(app, [str(one) for one in arguments], input=typed, env=clean, prog_name="reembed")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(Exit(result.exit_code), result.stdout, result.stderr)


def environment(**changes: str) -> dict[str, str]:
    """Of a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("REEMBED_")}
    return {**inherited, "PYTHONPATH": str(ROOT), **changes}


@dataclass
class CliSite:
    """A served API and its store. `queue` is where submits go."""

    port: int
    database_url: str
    queue: Queue = field(default_factory=Queue)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def reembed(self, *arguments: object, typed: str | None = None, **changes: str | None) -> Ran:
        defaults: Mapping[str, str | None] = {"REEMBED_API_URL": self.url, "REEMBED_ACTOR": "ada"}
        return reembed(*arguments, typed=typed, **{**defaults, **changes})

    def put(self, *records: Any) -> None:
        async def write(store: PostgresStore) -> None:
            await fill(store, *records)

        self.with_store(write)

    def with_store(self, work: Any) -> Any:
        """Run `work(store)` to its end."""

        async def run() -> Any:
            store = PostgresStore.connect(self.database_url, pool_size=1)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())

    def execute(self, statement: str) -> None:
        """SQL of the test's own."""
        with psycopg.connect(self.database_url.replace("+asyncpg", ""), autocommit=True) as connection:
            connection.execute(statement.encode())

    def pending(self) -> list[Any]:
        """Orders that nobody has carried out."""

        async def read(store: PostgresStore) -> list[Any]:
            async with store.transaction() as tx:
                return list(await tx.operations.pending(100))

        return self.with_store(read)


@contextmanager
def served(database_url: str, *, token: str | None = None, port: int = 0) -> Iterator[CliSite]:
    """A site until the end of the block; no loop of a controller runs."""
    listener = socket.create_server(("127.0.0.1", port))
    site = CliSite(listener.getsockname()[1], database_url)
    started = threading.Event()
    servers: list[uvicorn.Server] = []

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started.set()

    async def serve() -> None:
        store = PostgresStore.connect(database_url, pool_size=3)
        try:
            api = application(store, site.queue, token=token)
            servers.append(Server(uvicorn.Config(api, lifespan="off", log_config=None)))
            await servers[0].serve(sockets=[listener])
        finally:
            await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(START_SECONDS)
        yield site
    finally:
        if servers:
            servers[0].should_exit = True
        thread.join(START_SECONDS)
        assert not thread.is_alive()
