"""Jobs as subprocesses: start one in its own process group, signal it, wait for it, leave none behind.

Owns every child of the stand-in. When the first process of a group ends the rest of the group is killed, as a
container dies with its first process. The `guardian` covers the case that the stand-in itself is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from deploy.local.batch import guardian as guardian_script

_MARK_NAME = "BATCH_STAND_IN_MARK"


class JobProcess:
    """One container: the process and its group."""

    def __init__(self, process: asyncio.subprocess.Process, sigterm_whole_group: bool) -> None:
        self._process = process
        self._sigterm_whole_group = sigterm_whole_group

    @property
    def group(self) -> int:
        return self._process.pid  # start_new_session made it the leader

    def terminate(self) -> None:
        if self._sigterm_whole_group:
            self._signal_group(signal.SIGTERM)
        else:
            with suppress(ProcessLookupError):
                self._process.terminate()

    def kill(self) -> None:
        self._signal_group(signal.SIGKILL)

    async def wait(self) -> int:
        """Exit code as a container reports it: 128 + n after signal n."""
        code = await self._process.wait()
        self.kill()
        return code if code >= 0 else 128 - code

    def _signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):  # macOS reports EPERM for a group of zombies
            os.killpg(self.group, number)


class Processes:
    def __init__(self, working_directory: Path | None, sigterm_whole_group: bool) -> None:
        self._working_directory = working_directory
        self._sigterm_whole_group = sigterm_whole_group
        self._mark = uuid.uuid4().hex
        self._live: set[JobProcess] = set()
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian_script.__file__, f"{_MARK_NAME}={self._mark}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    async def start(self, argv: Sequence[str], environment: Mapping[str, str], log_path: Path) -> JobProcess:
        """Raises OSError when the executable cannot be started."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            started = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env={**environment, _MARK_NAME: self._mark},
                cwd=self._working_directory,
                start_new_session=True,
            )
        process = JobProcess(started, self._sigterm_whole_group)
        self._live.add(process)
        self._tell_guardian("+", process)
        return process

    async def wait(self, process: JobProcess) -> int:
        code = await process.wait()
        self._live.discard(process)
        self._tell_guardian("-", process)
        return code

    def kill_all(self) -> None:
        for process in self._live:
            process.kill()

    def close(self) -> None:
        """Kill what lives, then let the guardian sweep up and wait for it."""
        self.kill_all()
        if self._guardian.stdin is not None:
            with suppress(BrokenPipeError):
                self._guardian.stdin.close()
        self._guardian.wait(timeout=10)

    def _tell_guardian(self, sign: str, process: JobProcess) -> None:
        if self._guardian.stdin is not None:
            with suppress(BrokenPipeError):  # a dead guardian must not fail the jobs
                self._guardian.stdin.write(f"{sign}{process.group}\n".encode())
                self._guardian.stdin.flush()
