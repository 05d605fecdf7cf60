"""Start and stop the stand-in as a process of its own, from Python.

    with running(config, log_dir) as batch:                        # blocking
        client = boto3.client("batch", endpoint_url=batch.url, …)
    async with running_async(config, log_dir) as batch:            # the same, off the event loop
        batch.arm(Reclaim(queue="g6e"))                            # blocking, milliseconds

Raises RuntimeError with the process's own words when it does not come up.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.local.batch.config import StandInConfig
from deploy.local.batch.fault_requests import FaultRequest

_STOP_REAL_SECONDS = 15.0
_CALL_REAL_SECONDS = 10.0
STAND_IN_LOG = "stand-in.log"


@dataclass(frozen=True, slots=True)
class StandIn:
    """A running stand-in."""

    url: str
    process: subprocess.Popen[bytes]
    log_dir: Path

    def arm(self, fault: FaultRequest) -> None:
        self._call("/_faults", fault.model_dump_json(exclude_none=True).encode())

    def fired(self) -> dict[str, int]:
        """Counters of the faults that really happened."""
        counters: dict[str, int] = self._call("/_faults")
        return counters

    def jobs(self) -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = self._call("/_jobs")["jobs"]
        return jobs

    def stop(self) -> None:
        """SIGTERM; the stand-in kills its jobs. SIGKILL if it lingers: its guardian still kills them."""
        self.process.terminate()
        try:
            self.process.wait(_STOP_REAL_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _call(self, path: str, body: bytes | None = None) -> Any:
        with urllib.request.urlopen(self.url + path, data=body, timeout=_CALL_REAL_SECONDS) as answer:
            return json.load(answer)


def start(config: StandInConfig, log_dir: Path, port: int = 0) -> StandIn:
    """Returns once it serves. Its own log is `stand-in.log` in the log directory."""
    log_dir.mkdir(parents=True, exist_ok=True)
    log_path = log_dir / STAND_IN_LOG
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file, log_path.open("ab") as log:
        file.write(config.model_dump_json())
        file.flush()
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "deploy.local.batch",
                f"--port={port}",
                f"--config={file.name}",
                f"--log-dir={log_dir}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C in the terminal is for whoever started us
        )
        assert process.stdout is not None, "stdout is a pipe"
        url = process.stdout.readline().decode().strip()  # empty when it died
    if not url:
        process.wait()
        process.stdout.close()
        raise RuntimeError(f"the Batch stand-in did not start:\n{log_path.read_text()[-2000:]}")
    return StandIn(url, process, log_dir)


@contextmanager
def running(config: StandInConfig, log_dir: Path, port: int = 0) -> Iterator[StandIn]:
    stand_in = start(config, log_dir, port)
    try:
        yield stand_in
    finally:
        stand_in.stop()


@asynccontextmanager
async def running_async(config: StandInConfig, log_dir: Path, port: int = 0) -> AsyncIterator[StandIn]:
    stand_in = await asyncio.to_thread(start, config, log_dir, port)
    try:
        yield stand_in
    finally:
        await asyncio.to_thread(stand_in.stop)
