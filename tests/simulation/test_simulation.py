"""The simulation in small: some seeds keep every promise, and the same seed is the same run, in another process too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEPS, FAULTS, KINDS = 400, 10, 5


def simulate(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    return ended.stdout.splitlines()


def test_seeds_keep_every_promise() -> None:
    *lines, last = simulate("--seeds", "2", "--first", "100")
    assert json.loads(last).items() >= {"seeds": 2, "violations": 0}.items()
    for line in lines:
        words = line.split()
        assert int(words[2]) >= STEPS, line
        assert int(words[6]) >= FAULTS, line
        assert int(words[9]) >= KINDS, line


@pytest.mark.long
def test_a_seed_is_the_same_run_in_every_process() -> None:
    one, other = (simulate("--seed", "101", "--log")[:-1] for _ in range(2))
    assert len(one) > STEPS
    assert one == other


@pytest.mark.long
def test_many_seeds_and_those_that_once_failed() -> None:
    assert json.loads(simulate("--seeds", "20", "--once-broken")[-1])["violations"] == 0
