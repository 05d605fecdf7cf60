"""Dockerfile.worker, as far as it can be held without Docker: what it copies runs, what it installs is locked."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from schema.exit_codes import ExitCode
from worker.main import JOBS

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "Dockerfile.worker").read_text().replace("\\\n", "").splitlines()
OURS = {"schema", "worker", "controller", "deploy", "tests"}
PROCESSES = ("worker.main", "worker.rank", "worker.engine", "worker.torch_engine", "worker.decode")


def arguments(instruction: str) -> list[str]:
    return [line.removeprefix(instruction).strip() for line in LINES if line.startswith(f"{instruction} ")]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A folder with what the image has of ours, and nothing else."""
    for sources in arguments("COPY"):
        *names, target = sources.split()
        for name in names:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, tmp_path / target, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def run(image: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(image), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *command], cwd=image, env=environment, capture_output=True, text=True)


def test_every_process_of_the_worker_starts_from_what_is_copied(image: Path) -> None:
    modules = sorted({*PROCESSES, *JOBS.values(), "worker.models.efficientnet_lite0"})
    listed = "[print(name, module.__file__) for name, module in sys.modules.items() if getattr(module, '__file__', '')]"
    done = run(image, "-c", f"import sys, {', '.join(modules)}; {listed}")
    assert done.returncode == 0, done.stderr
    loaded = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert loaded["worker.main"] == str(image / "worker/main.py")
    # An editable installation has the whole repository on the path; the image has not.
    ours = {name: path for name, path in loaded.items() if name.partition(".")[0] in OURS}
    assert {name: path for name, path in ours.items() if image not in Path(path).parents} == {}


def test_the_entry_point_is_exec_form_and_says_what_it_lacks(image: Path) -> None:
    (entry_point,) = arguments("ENTRYPOINT")
    python, *command = json.loads(entry_point)
    assert python == "python"
    done = run(image, *command)
    assert done.returncode == ExitCode.CONFIG_ERROR, done.stderr
    assert "REEMBED_ASSIGNMENT is not set" in done.stdout


def test_it_does_not_run_as_root() -> None:
    assert [int(user) for user in arguments("USER")] == [10001]
    assert LINES.index("USER 10001") > max(number for number, line in enumerate(LINES) if line.startswith("RUN"))


def test_everything_it_installs_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["worker"]]
    locked = {line.partition("==")[0].lower() for line in (ROOT / "requirements.lock").read_text().splitlines()}
    names = {re.split(r"[\[=<>~! ]", requirement)[0].lower() for requirement in wanted}
    assert names <= locked
    (install,) = [line for line in arguments("RUN") if "pip install" in line]
    assert "--constraint requirements.lock" in install
    printed = re.search(r'python -c "(.*?)" > wanted.txt', install)
    assert printed is not None
    done = subprocess.run(
        [sys.executable, "-c", printed[1]], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert done.split("\n")[:-1] == wanted
