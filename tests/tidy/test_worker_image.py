"""Dockerfile.worker, as far as it can be held without Docker: what it copies runs, what it installs is locked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schema.exit_codes import ExitCode
from tests.dockerfile import Dockerfile, check_imports, run
from worker.main import JOBS

DOCKERFILE = Dockerfile("Dockerfile.worker")
PROCESSES = ("worker.main", "worker.rank", "worker.engine", "worker.torch_engine", "worker.decode")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return DOCKERFILE.copy_packages(tmp_path)


def test_every_process_of_the_worker_starts_from_what_is_copied(image: Path) -> None:
    check_imports(image, *PROCESSES, *JOBS.values(), "worker.models.efficientnet_lite0")


def test_the_entry_point_is_exec_form_and_says_what_it_lacks(image: Path) -> None:
    (entry_point,) = DOCKERFILE.arguments("ENTRYPOINT")
    python, *command = json.loads(entry_point)
    assert python == "python"
    done = run(image, *command)
    assert done.returncode == ExitCode.CONFIG_ERROR, done.stderr
    assert "REEMBED_ASSIGNMENT is not set" in done.stdout


def test_it_does_not_run_as_root() -> None:
    DOCKERFILE.check_user()


def test_everything_it_installs_is_locked() -> None:
    DOCKERFILE.check_locked("worker")
