"""The embedded stack with proxies before SQS, Batch and Postgres, and with processes that can be told to die."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import psutil
import psycopg

from deploy.local.batch_site import BatchTuning
from deploy.local.postgres import Database, Driver
from deploy.local.stack import Stack
from tests.chaos.firing import DIRECTORY, Ledger
from tests.chaos.tcp_proxy import TcpProxy
from tests.e2e.site import SIZES, TUNING, Run, Site

ROOT = Path(__file__).parents[2]
#: A crash is noticed soon, and as many as there are crash points are survived: on AWS they would be years apart.
PACE = {
    "REEMBED_RECONCILE__CHECK_SECONDS": "1",
    "REEMBED_RECONCILE__REPORT_GRACE_SECONDS": "1",
    "REEMBED_RECONCILE__LOOKUP_GRACE_SECONDS": "6",
    "REEMBED_RECONCILE__ORPHAN_SECONDS": "3",
    "REEMBED_RETRIES__BACKOFF_SECONDS": "0.2",
    "REEMBED_RETRIES__BACKOFF_MAX_SECONDS": "1",
    "REEMBED_RETRIES__FAILURES": "60",
    "REEMBED_LOOPS__CLAIM_SECONDS": "3",
    "REEMBED_WORK__HEARTBEAT_SECONDS": "0.2",
}


class ChaosStack(Stack):
    """Everything that speaks to SQS, Batch or Postgres does it through a proxy of the test."""

    def __init__(self, directory: Path, tuning: BatchTuning = TUNING) -> None:
        self.ledger = Ledger(directory / "points")
        chaos = {DIRECTORY: str(self.ledger.directory), "PYTHONPATH": str(ROOT)}
        super().__init__(
            directory,
            tuning=tuning.model_copy(update={"worker_module": "tests.chaos.worker"}),
            settings=SIZES | PACE | chaos,
            worker_settings=chaos,
            controller_module="tests.chaos.controller",
        )
        self.sqs_proxy = TcpProxy(lambda: self.ministack.port, http=True)
        self.batch_proxy = TcpProxy(lambda: self._batch_port, http=True)
        self.database_proxy = TcpProxy(self._database_port, http=False)
        self.proxies = (self.sqs_proxy, self.batch_proxy, self.database_proxy)

    def down(self) -> None:
        super().down()
        for proxy in self.proxies:
            proxy.close()

    def _database_port(self) -> int:
        return urlsplit(self.postgres.url(Database.CONTROL, Driver.PSYCOPG)).port or 0

    @property
    def sqs_endpoint(self) -> str:
        return f"http://127.0.0.1:{self.sqs_proxy.port}"

    @property
    def batch_endpoint(self) -> str:
        return f"http://127.0.0.1:{self.batch_proxy.port}"

    def environment(self) -> dict[str, str]:
        url = self.postgres.url(Database.CONTROL, Driver.ASYNCPG)
        proxied = url.replace(f":{self._database_port()}/", f":{self.database_proxy.port}/")
        return super().environment() | {"REEMBED_DATABASE__URL": proxied}


class ChaosSite(Site):
    """The site of the end-to-end tests on that stack."""

    stack: ChaosStack

    @classmethod
    def on(cls, directory: Path) -> Self:
        return cls(ChaosStack(directory))

    def submit(self, key: str, **fields: Any) -> Run:
        """To any queue: one of them may be dry."""
        return super().submit(key, **{"queues": None} | fields)

    def rows(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """What the control database says; on a new connection if the old one was broken on purpose."""
        try:
            return super().rows(statement, **values)
        except psycopg.OperationalError:
            self._database.close()
            url = self.stack.postgres.url(Database.CONTROL, Driver.PSYCOPG)
            self._database = psycopg.connect(url, autocommit=True)
            return super().rows(statement, **values)

    def containers(self) -> list[psutil.Process]:
        """The main processes of the containers that run."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if "tests.chaos.worker" in (process.info["cmdline"] or []) and _belongs(process, self.stack.directory):
                found.append(process)
        return found

    @contextmanager
    def controllers(self, *names: str) -> Iterator[None]:
        """Running inside the block; stopped after it as a deployment would, killed if that takes too long."""
        for name in names:
            self.stack.start_controller(name)
        try:
            yield
        finally:
            for name in names:
                self.stack.stop_controller(name)


def _belongs(process: psutil.Process, directory: Path) -> bool:
    try:
        return process.environ().get(DIRECTORY, "").startswith(str(directory))
    except psutil.Error:
        return False
