"""The process supervisor: what it starts can be stopped, killed and awaited, and never outlives it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from deploy.local.processes import Process, ServiceFailedError, start_on_free_port, wait_until

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
IGNORE_SIGTERM = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
PARENT_OF_TWO = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); {SLEEP}"
DEADLINE_SECONDS = 30

Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a Python one-liner and waits until it has said `up`."""
    started: list[Process] = []

    def run(program: str) -> Process:
        log_path = tmp_path / f"{len(started)}.log"
        process = Process("program", [sys.executable, "-c", program], log_path=log_path)
        started.append(process)
        process.start()
        wait_until(lambda: "up" in process.log_tail(), process, DEADLINE_SECONDS)
        return process

    yield run
    for process in started:
        process.kill()


def gone(pid: int) -> bool:
    """Ended, whether or not init has collected it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_stop_asks_with_sigterm(start: Start) -> None:
    process = start(SLEEP)
    assert process.running
    assert process.stop() == -signal.SIGTERM
    assert not process.running
    assert process.stop() == -signal.SIGTERM


def test_stop_kills_what_does_not_obey(start: Start) -> None:
    assert start(IGNORE_SIGTERM).stop(grace_seconds=0.2) == -signal.SIGKILL


def test_stop_sweeps_the_process_group(start: Start) -> None:
    process = start(PARENT_OF_TWO)
    [child] = psutil.Process(process.pid).children()
    process.stop()
    assert eventually(lambda: gone(child.pid))


def test_a_killed_process_starts_again_under_its_name(start: Start) -> None:
    process = start(SLEEP)
    first = process.pid
    assert process.kill() == -signal.SIGKILL
    process.start()
    assert process.running
    assert process.pid != first


def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    supervisor = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from pathlib import Path; from deploy.local.processes import Process; import sys, time\n"
            f"child = Process('child', [sys.executable, '-c', {IGNORE_SIGTERM!r}], log_path=Path('child.log'))\n"
            "child.start(); print(child.pid, flush=True); time.sleep(600)",
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    assert supervisor.stdout is not None
    with supervisor:
        child = int(supervisor.stdout.readline())
        assert eventually(lambda: "up" in (tmp_path / "child.log").read_text())
        assert not gone(child)
        supervisor.kill()
    assert eventually(lambda: gone(child))


def test_a_child_outlives_the_thread_that_asked_for_it(start: Start) -> None:
    started: list[Process] = []
    thread = threading.Thread(target=lambda: started.append(start(SLEEP)))
    thread.start()
    thread.join()
    [process] = started
    again = start(SLEEP)  # by now the kernel has told children of the dead thread
    assert process.running
    assert again.running


def test_a_program_that_ends_early_is_reported_with_its_log(tmp_path: Path) -> None:
    program = "print('the reason why'); raise SystemExit(3)"
    process = Process("failing", [sys.executable, "-c", program], log_path=tmp_path / "log")
    process.start()
    with pytest.raises(ServiceFailedError, match=r"(?s)failing ended with 3.*the reason why"):
        wait_until(lambda: False, process, DEADLINE_SECONDS)


def test_a_program_that_never_answers_is_given_up(start: Start) -> None:
    with pytest.raises(ServiceFailedError, match="not ready"):
        wait_until(lambda: False, start(SLEEP), timeout_seconds=0.05)


def test_a_port_lost_in_between_is_replaced(tmp_path: Path) -> None:
    ports: list[int] = []

    with socket.create_server(("127.0.0.1", 0)) as occupied:

        def server(port: int) -> Process:
            ports.append(port)
            bind_to = occupied.getsockname()[1] if len(ports) == 1 else port
            program = f"import socket; s = socket.create_server(('127.0.0.1', {bind_to})); {SLEEP}"
            return Process("server", [sys.executable, "-c", program], log_path=tmp_path / f"{port}.log")

        process, port = start_on_free_port(server)
    assert len(ports) == 2
    assert port == ports[1]
    process.stop()
