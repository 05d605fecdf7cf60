"""Subprocesses that cannot be forgotten: started apart, logged to a file, stopped in order, dead with us.

Owns starting and ending one process (`Process`) and waiting until a service answers (`wait_until`,
`start_on_free_port`). It knows nothing of what the processes do, and never restarts one by itself: tests
kill things on purpose.

Every child leads its own session, so that Ctrl-C in a terminal reaches only us and we stop the children in
our order. Each also carries a parent-death signal (see `launcher.py`): if we are killed without a chance to
clean up, the kernel does it. The kernel means the *thread* that started the child, so one thread that lives
as long as we do starts them all.

Fails with `ServiceFailedError`, which quotes the end of the log, when a service ends or stays silent.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from deploy.local.launcher import AS_WE_ARE

LAUNCHER = Path(__file__).with_name("launcher.py")
POLL_SECONDS = 0.02
PORT_ATTEMPTS = 5
_STARTER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="process-starter")


class ServiceFailedError(RuntimeError):
    """A service ended, or did not answer in time. The message quotes the end of its log."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago; whoever binds it may still find it taken."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts_connections(port: int) -> bool:
    """Whether something listens on this port of 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Process:
    """One subprocess, which can be started, stopped, killed and started again under the same name."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log_path: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        identity: str = AS_WE_ARE,
        stop_signal: signal.Signals = signal.SIGTERM,
        death_signal: signal.Signals = signal.SIGKILL,
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._argv = list(argv)
        self._env = dict(os.environ if env is None else env)
        self._cwd = cwd
        self._identity = identity
        self._stop_signal = stop_signal
        self._death_signal = death_signal
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the latest start."""
        if self._child is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """How the latest start ended (negative: the signal), or None while it runs."""
        return None if self._child is None else self._child.poll()

    @property
    def running(self) -> bool:
        """Started and not ended."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start it; the log file is appended to."""
        if self.running:
            raise RuntimeError(f"{self.name} already runs as process {self.pid}")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._child = _STARTER.submit(self._spawn).result()

    def _spawn(self) -> subprocess.Popen[bytes]:
        launcher = [sys.executable, "-I", "-S", str(LAUNCHER)]
        bonds = [str(os.getpid()), str(int(self._death_signal)), self._identity]
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                [*launcher, *bonds, *self._argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=self._cwd,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone; harmless once it has ended."""
        if self._child is not None:
            self._child.send_signal(number)

    def stop(self, grace_seconds: float = 10) -> int | None:
        """Ask it to stop, kill it after the grace, and sweep what is left of its process group."""
        if self._child is None:
            return None
        if self.running:
            self.signal(self._stop_signal)
            if not self._ended_within(grace_seconds):
                self.signal(signal.SIGKILL)
        return self._sweep()

    def kill(self) -> int | None:
        """SIGKILL, as a crash would be; what it started in its own group dies too."""
        if self._child is None:
            return None
        self.signal(signal.SIGKILL)
        return self._sweep()

    def wait(self, timeout_seconds: float) -> int:
        """Wait for it to end by itself."""
        if self._child is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._child.wait(timeout_seconds)

    def log_tail(self, lines: int = 25) -> str:
        """The last lines of its log."""
        if not self.log_path.exists():
            return "(no log)"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _ended_within(self, seconds: float) -> bool:
        """Wait for the end without collecting the exit code: the id must stay ours until the sweep."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._child is None or self._child.returncode is not None:
                return True
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if os.waitid(os.P_PID, self._child.pid, options) is not None:
                return True
            time.sleep(POLL_SECONDS)
        return False

    def _sweep(self) -> int | None:
        """Kill the rest of the group while the leader, not yet collected, keeps the group's id from reuse."""
        if self._child is None:
            return None
        if self._child.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)
        return self._child.wait()


def wait_until(condition: Callable[[], bool], process: Process, timeout_seconds: float) -> None:
    """Poll until `condition` holds; give up at once when the process ends."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if not process.running:
            raise ServiceFailedError(
                f"{process.name} ended with {process.exit_code}; its log ends:\n{process.log_tail()}"
            )
        if time.monotonic() > deadline:
            raise ServiceFailedError(
                f"{process.name} not ready after {timeout_seconds:g} s; its log ends:\n{process.log_tail()}"
            )
        time.sleep(POLL_SECONDS)


def start_on_free_port(
    build: Callable[[int], Process],
    ready: Callable[[int], bool] = accepts_connections,
    *,
    timeout_seconds: float = 60,
) -> tuple[Process, int]:
    """Start what `build(port)` makes on a free port, again on another if the port was lost in between."""
    for attempts_left in reversed(range(PORT_ATTEMPTS)):
        port = free_port()
        process = build(port)
        process.start()
        try:
            wait_until(lambda port=port: ready(port), process, timeout_seconds)
        except ServiceFailedError as failure:
            process.stop(grace_seconds=2)
            if attempts_left and "in use" in str(failure):
                continue
            raise
        except BaseException:
            process.kill()
            raise
        return process, port
    raise AssertionError("unreachable: the last attempt returns or raises")
