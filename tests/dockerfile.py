"""A Dockerfile, as far as it can be held without Docker: what it copies, and that what it installs is locked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = {"schema", "worker", "controller", "deploy", "tests"}
_LISTED = "[print(name, module.__file__) for name, module in sys.modules.items() if getattr(module, '__file__', '')]"


class Dockerfile:
    """One of the Dockerfiles at the top of the repository."""

    def __init__(self, name: str) -> None:
        self.lines = (ROOT / name).read_text().replace("\\\n", "").splitlines()

    def arguments(self, instruction: str) -> list[str]:
        """Of each such instruction, in order."""
        return [line.removeprefix(instruction).strip() for line in self.lines if line.startswith(f"{instruction} ")]

    def copied(self) -> list[tuple[str, str]]:
        """Source and target of everything that is copied."""
        parts = [sources.split() for sources in self.arguments("COPY")]
        return [(name, target) for *names, target in parts for name in names]

    def copy_packages(self, folder: Path) -> Path:
        """What the image has of ours, and nothing else."""
        for name, target in self.copied():
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
        return folder

    def check_user(self) -> None:
        """Not root, once everything is installed."""
        assert [int(user) for user in self.arguments("USER")] == [10001]
        assert self.lines.index("USER 10001") > max(n for n, line in enumerate(self.lines) if line.startswith("RUN"))

    def check_locked(self, extra: str) -> None:
        """A layer of its own installs the packages of an extra, in the versions of the lock."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        wanted = [*project["dependencies"], *project["optional-dependencies"][extra]]
        locked = {line.partition("==")[0].lower() for line in (ROOT / "requirements.lock").read_text().splitlines()}
        assert {re.split(r"[\[=<>~! ]", requirement)[0].lower() for requirement in wanted} <= locked
        installs = [line for line in self.arguments("RUN") if "pip install" in line]
        assert all("--constraint requirements.lock" in line for line in installs)
        printed = re.search(r'python -c "(.*?)" > wanted.txt', installs[0])
        assert printed is not None
        command = [sys.executable, "-c", printed[1]]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.split("\n")[:-1] == wanted
        first = next(number for number, line in enumerate(self.lines) if "pip install" in line)
        copied_before = [line for line in self.lines[:first] if line.startswith("COPY")]
        assert copied_before == ["COPY pyproject.toml requirements.lock ./"], "code in the layer of the packages"


def run(image: Path, *command: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Python, in a folder with the packages of an image."""
    bare = {"PATH": os.environ["PATH"], "PYTHONPATH": str(image), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=image, env=bare | (environment or {}), capture_output=True, text=True
    )


def check_imports(image: Path, *modules: str) -> None:
    """Modules load, and load nothing of ours from beside the image."""
    done = run(image, "-c", f"import sys, {', '.join(sorted(modules))}; {_LISTED}")
    assert done.returncode == 0, done.stderr
    loaded = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    # An editable installation has the whole repository on the path; the image has not.
    ours = {name: path for name, path in loaded.items() if name.partition(".")[0] in OURS}
    assert set(modules) <= set(ours)
    assert {name: path for name, path in ours.items() if image not in Path(path).parents} == {}
