"""`make demo`: what it prints is true, faults change nothing in the output, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from deploy.local.demo.run import Demo, Options
from deploy.local.output import Output, read_output
from deploy.local.postgres import Database, Driver
from deploy.local.resources import client
from deploy.local.stack import Stack
from tests.e2e.site import assert_same_output, eventually

FIGURES = {
    "assets", "ok", "bad", "shards", "attempts", "fallbacks", "reclaimed", "refused", "throttled", "chunks_reused",
    "recall_at_5", "recall_chance", "recall_random_weights", "seconds",
}  # fmt: skip


@dataclass(frozen=True)
class Ran:
    figures: dict[str, Any]
    output: Output
    shapes: list[tuple[int, int]]


def run_demo(directory: Path, *, chaos: bool) -> Ran:
    """A whole demo in this process; it raises when one of its own checks fails."""
    import psycopg

    printed, seen = io.StringIO(), []

    def look(stack: Stack) -> None:
        with psycopg.connect(stack.postgres.url(Database.CONTROL, Driver.PSYCOPG)) as database:
            [(manifest_uri,)] = database.execute("SELECT manifest_uri FROM requests").fetchall()
            shapes = database.execute("SELECT size, count(*) FROM jobs WHERE kind = 'infer' GROUP BY size").fetchall()
        with closing(client("s3", stack.s3_endpoint)) as s3:
            seen.append((read_output(s3, manifest_uri), shapes))

    options = Options(directory, chaos=chaos)
    Demo(options, Console(file=printed), Console(file=io.StringIO()), threading.Event()).run(look)
    [(output, shapes)] = seen
    return Ran(json.loads(printed.getvalue().splitlines()[-1]), output, shapes)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_demo(tmp_path_factory.mktemp("plain"), chaos=False)


@pytest.mark.long
def test_the_figures(plain: Ran) -> None:
    figures = plain.figures
    assert set(figures) == FIGURES
    assert figures["ok"] + figures["bad"] == figures["assets"] >= 300
    assert figures["shards"] >= 8
    assert min(sum(shard == number for shard, _ in plain.output.chunks) for number in range(figures["shards"])) >= 4
    assert sorted(plain.shapes) == [(1, 1), (4, 2)], "two arrays and a lone job"
    assert figures["recall_at_5"] >= 0.9
    assert figures["recall_at_5"] > figures["recall_random_weights"] > figures["recall_chance"]


@pytest.mark.long
def test_faults_change_nothing_in_the_output(plain: Ran, tmp_path: Path) -> None:
    chaos = run_demo(tmp_path, chaos=True)
    for name in ("reclaimed", "refused", "throttled", "fallbacks", "chunks_reused"):
        assert chaos.figures[name] >= 1, name
    assert_same_output(chaos.output, plain.output)


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from deploy.local.cli import app; app()", "demo", "--state-dir", str(tmp_path)]
    demo = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert demo.stderr is not None
    try:
        said = []
        for line in demo.stderr:
            said.append(line)
            if "Sent request" in line:
                break
        eventually(lambda: list((tmp_path / "logs" / "jobs").rglob("*")), "a container")
        family = psutil.Process(demo.pid).children(recursive=True)
        assert len(family) > 5, said
        os.kill(demo.pid, signal.SIGINT)
        demo.stderr.read()
        assert demo.wait(60) == 130
    finally:
        demo.kill()
        demo.wait()
        demo.stderr.close()
    assert not [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]
