"""Dockerfile.controller, as far as it can be held without Docker, and what .dockerignore lets through."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.dockerfile import ROOT, Dockerfile, check_imports, run

DOCKERFILE = Dockerfile("Dockerfile.controller")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return DOCKERFILE.copy_packages(tmp_path)


def test_controller_and_command_line_start_from_what_is_copied(image: Path) -> None:
    check_imports(image, "controller.main", "controller.cli", "controller.api.site", "schema.migrations.run")


def test_the_command_is_exec_form_and_says_what_it_lacks(image: Path) -> None:
    (command,) = DOCKERFILE.arguments("CMD")
    python, *arguments = json.loads(command)
    assert python == "python"
    done = run(image, *arguments)
    assert done.returncode == 2, done.stderr
    assert "database: Field required" in done.stdout + done.stderr


def test_what_is_read_at_run_time_is_copied(image: Path) -> None:
    done = run(image, "-c", "from schema.migrations import run; print(run.head())")
    assert done.stdout.strip(), done.stderr
    assert (image / "controller/api/page.html").is_file()


def test_the_build_has_what_the_distribution_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    copied = {name.rstrip("/") for name, _ in DOCKERFILE.copied()}
    assert {project["readme"], "LICENSE", "pyproject.toml"} <= copied
    assert "'.[controller]'" in DOCKERFILE.arguments("RUN")[1]


def test_it_does_not_run_as_root() -> None:
    DOCKERFILE.check_user()


def test_everything_it_installs_is_locked() -> None:
    DOCKERFILE.check_locked("controller")


def test_dockerignore_lets_through_what_is_copied_and_no_more() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    let_through = {line.removeprefix("!") for line in rules if line.startswith("!")}
    images = [DOCKERFILE, Dockerfile("Dockerfile.worker")]
    assert let_through == {name.rstrip("/") for image in images for name, _ in image.copied()}
