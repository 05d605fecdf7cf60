"""`reembed local up` and `down`, as two terminals would use them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

COMMAND = [sys.executable, "-c", "from deploy.local.cli import app; app()"]
DEADLINE_SECONDS = 60
Up = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """Runs `up` in a terminal of its own and waits until it says so."""
    running: list[subprocess.Popen[str]] = []

    def run() -> subprocess.Popen[str]:
        argv = [*COMMAND, "up", "--controllers", "0", "--state-dir", str(tmp_path)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        running.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "The stack is up" in line, line + process.stdout.read()
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()


def down(directory: Path) -> subprocess.CompletedProcess[str]:
    argv = [*COMMAND, "down", "--state-dir", str(directory)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)


def named_after(directory: Path) -> list[psutil.Process]:
    """Living processes with `directory` on their command line."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if str(directory) in " ".join(process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_everything_in_order(number: signal.Signals, up: Up, tmp_path: Path) -> None:
    process = up()
    process.send_signal(number)
    assert process.wait(DEADLINE_SECONDS) == 0
    assert not named_after(tmp_path)


def test_another_terminal_finds_its_environment_and_stops_it(up: Up, tmp_path: Path) -> None:
    process = up()
    argv = ["sh", "-c", f". {tmp_path}/env.sh && echo $AWS_ENDPOINT_URL_SQS $REEMBED_GPU_QUEUES"]
    sourced = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert sourced.startswith("http://127.0.0.1:")
    assert '"name": "g6e"' in sourced
    assert (tmp_path / "env.sh").stat().st_mode & 0o077 == 0
    argv = [*COMMAND, "up", "--controllers", "0", "--state-dir", str(tmp_path)]
    second = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    assert second.returncode == 3
    assert f"in use by process {process.pid}" in second.stderr

    assert down(tmp_path).returncode == 0
    assert process.wait(DEADLINE_SECONDS) == 0
    assert not named_after(tmp_path)
    assert down(tmp_path).returncode == 3
