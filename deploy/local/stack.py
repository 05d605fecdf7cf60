"""The whole system on one machine: Postgres, SQS and S3, the Batch stand-in, and controllers, on loopback.

Owns the order of starting and stopping, the addresses, and one state directory. It holds no policy and is never
imported by product code, which sees only the variables of `Stack.environment`.

    with Stack(Path(".reembed")) as stack:
        stack.start_controller("one")
        run(..., env=os.environ | stack.environment())

Each `up` begins empty: SQS and S3 live in memory, and databases that outlived them would speak of objects
that are gone. Two stacks cannot share a state directory: the second `up` fails with `AlreadyUpError`. A supervisor
that was killed leaves no process (see `processes`), and the next `up` recovers its Postgres.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import httpx

from deploy.local.batch_site import BatchTuning, stand_in_config
from deploy.local.environment import Addresses, inherited, stack_environment, worker_environment
from deploy.local.ministack import Ministack
from deploy.local.postgres import Database, Driver, PostgresCluster
from deploy.local.processes import Process, free_port, start_on_free_port, wait_until
from deploy.local.resources import QueueName, create_buckets, create_queues

DEFAULT_STATE_DIRECTORY = Path(".reembed")
CONTROLLER_GRACE_SECONDS = 25  # a step in hand may take 20
BATCH_GRACE_SECONDS = 15


class AlreadyUpError(RuntimeError):
    """Another supervisor holds the state directory."""


class Stack:
    """The embedded stack; a context manager that is up inside its block and leaves no process after it."""

    def __init__(
        self,
        state_directory: Path = DEFAULT_STATE_DIRECTORY,
        *,
        tuning: BatchTuning | None = None,
        settings: Mapping[str, str] | None = None,
        worker_settings: Mapping[str, str] | None = None,
        controller_module: str = "controller.main",
    ) -> None:
        """`settings` and `worker_settings` are further environment variables and win over ours."""
        self.directory = state_directory.resolve()
        self.logs = self.directory / "logs"
        self.tuning = tuning or BatchTuning()
        self.postgres = PostgresCluster(self.directory / "postgres", log_path=self.logs / "postgres.log")
        self.ministack = Ministack(self.directory / "ministack", log_path=self.logs / "ministack.log")
        self.controllers: dict[str, Process] = {}
        self._controller_module = controller_module
        self._settings = dict(settings or {})
        self._worker_settings = dict(worker_settings or {})
        self._queue_urls: dict[QueueName, str] = {}
        self._s3_port = self._batch_port = 0
        self._api_ports: dict[str, int] = {}
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        return self.up()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self) -> Self:
        """Start everything but the controllers."""
        self.logs.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        try:
            self._start_services()
            self._migrate()
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> None:
        """Stop everything, in the opposite order; harmless when nothing runs."""
        self._cleanup.close()
        self.controllers.clear()

    # -- addresses -----------------------------------------------------------------------------------

    @property
    def s3_endpoint(self) -> str:
        """S3 behind the fault-injecting proxy; its control is at `/_faults`."""
        return f"http://127.0.0.1:{self._s3_port}"

    @property
    def sqs_endpoint(self) -> str:
        """SQS."""
        return self.ministack.endpoint

    @property
    def batch_endpoint(self) -> str:
        """The Batch stand-in."""
        return f"http://127.0.0.1:{self._batch_port}"

    def queue_url(self, queue: QueueName) -> str:
        """URL of one SQS queue."""
        return self._queue_urls[queue]

    def api_url(self, controller: str) -> str:
        """Base URL of a controller that was started: REST, console, health and metrics."""
        return f"http://127.0.0.1:{self._api_ports[controller]}"

    def environment(self) -> dict[str, str]:
        """What controllers, the CLI and upstream clients read."""
        addresses = Addresses(
            s3_endpoint=self.s3_endpoint,
            sqs_endpoint=self.sqs_endpoint,
            batch_endpoint=self.batch_endpoint,
            control_database_url=self.postgres.url(Database.CONTROL, Driver.ASYNCPG),
            index_database_url=self.postgres.url(Database.INDEX, Driver.PSYCOPG),
            queue_urls=self._queue_urls,
        )
        return stack_environment(addresses, self.tuning.backlog) | self._settings

    # -- controllers ---------------------------------------------------------------------------------

    def start_controller(self, name: str = "one", *, until: str = "/readyz", **settings: str) -> str:
        """Start, or start again at the same address, the controller of this name; its base URL when `until` is OK."""
        port = self._api_ports.setdefault(name, free_port())
        own = {"REEMBED_REPLICA": name, "REEMBED_API__PORT": str(port)}
        process = Process(
            f"controller-{name}",
            [sys.executable, "-m", self._controller_module],
            log_path=self.logs / f"controller-{name}.log",
            env={**inherited(), **self.environment(), **own, **settings},
        )
        if name not in self.controllers:
            self._cleanup.callback(self.stop_controller, name)
        elif self.controllers[name].running:
            raise RuntimeError(f"controller {name} already runs")
        self.controllers[name] = process
        process.start()
        wait_until(lambda: _answers(self.api_url(name) + until), process, timeout_seconds=60)
        return self.api_url(name)

    def stop_controller(self, name: str = "one") -> int | None:
        """SIGTERM, as a deployment would; its exit code."""
        return self.controllers[name].stop(CONTROLLER_GRACE_SECONDS)

    def kill_controller(self, name: str = "one") -> None:
        """SIGKILL, as a lost host would."""
        self.controllers[name].kill()

    # -- starting ------------------------------------------------------------------------------------

    def _take_lock(self) -> None:
        """Hold the state directory until we end, however we end; its text is the holder's process id."""
        lock = (self.directory / "lock").open("a+")
        if not _lock_now(lock):
            lock.seek(0)
            holder = lock.read().strip()
            lock.close()
            raise AlreadyUpError(f"{self.directory} is in use by process {holder}")
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        self._cleanup.callback(lock.close)

    def _start_services(self) -> None:
        """Postgres and ministack at once: each takes about a second."""
        self._cleanup.callback(self.postgres.stop)
        self._cleanup.callback(self.ministack.stop)
        with ThreadPoolExecutor() as pool:
            database = pool.submit(self.postgres.start, empty=True)
            self.ministack.start()
            self._start_s3_proxy()
            create_buckets(self.s3_endpoint)
            self._queue_urls = create_queues(self.sqs_endpoint)
            database.result()
        self._start_batch()

    def _start_s3_proxy(self) -> None:
        def proxy(port: int) -> Process:
            arguments = ["--port", str(port), "--target", self.ministack.endpoint]
            argv = [sys.executable, "-m", "deploy.local.s3proxy", *arguments]
            return Process("s3proxy", argv, log_path=self.logs / "s3proxy.log", env=inherited())

        process, self._s3_port = start_on_free_port(proxy)
        self._cleanup.callback(process.stop, grace_seconds=2)

    def _start_batch(self) -> None:
        workplace = self.directory / "batch"
        workplace.mkdir(exist_ok=True)
        config = stand_in_config(
            self.tuning,
            events_queue_url=self.queue_url(QueueName.BATCH_EVENTS),
            sqs_endpoint=self.sqs_endpoint,
            worker_environment=worker_environment(self.s3_endpoint, self.sqs_endpoint) | self._worker_settings,
            index_database_url=self.postgres.url(Database.INDEX, Driver.PSYCOPG),
            working_directory=workplace,
        )
        config_file = workplace / "config.json"
        config_file.touch(mode=0o600)  # it holds the index database's password
        config_file.write_text(config.model_dump_json(indent=1))

        def stand_in(port: int) -> Process:
            files = ["--config", str(config_file), "--log-dir", str(self.logs / "jobs")]
            argv = [sys.executable, "-m", "deploy.local.batch", "--port", str(port), *files]
            return Process("batch", argv, log_path=self.logs / "batch.log", env=inherited())

        process, self._batch_port = start_on_free_port(stand_in)
        self._cleanup.callback(process.stop, BATCH_GRACE_SECONDS)

    def _migrate(self) -> None:
        """In a thread of its own: the caller may have an event loop, and migrations want theirs."""
        from schema.migrations.run import upgrade

        with ThreadPoolExecutor(max_workers=1) as pool:
            pool.submit(upgrade, self.postgres.url(Database.CONTROL, Driver.ASYNCPG)).result()


def stop_supervisor(state_directory: Path, timeout_seconds: float = 60) -> bool:
    """Ask whoever holds the state directory to stop, and wait until it let go; False when nobody does."""
    try:
        lock = (state_directory / "lock").open("r+")
    except FileNotFoundError:
        return False
    with lock:
        if _lock_now(lock):
            return False
        os.kill(int(lock.read()), signal.SIGTERM)
        deadline = time.monotonic() + timeout_seconds
        while not _lock_now(lock):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{state_directory} is still in use {timeout_seconds:g} s after SIGTERM")
            time.sleep(0.05)
        return True


def _lock_now(lock: IO[str]) -> bool:
    """Take the lock if nobody has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False
