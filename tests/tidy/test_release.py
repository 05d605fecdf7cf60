"""The wheels under tests/releases: what has been released stays as it was."""

from __future__ import annotations

import tomllib
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[2]
MIGRATIONS = "schema/migrations/versions/"
CONTRACTS = "schema/contracts/"


def wheels() -> list[Path]:
    found = sorted((ROOT / "tests" / "releases").glob("reembed-*.whl"))
    assert found, "no wheel under tests/releases"
    return found


def test_a_released_migration_is_never_edited() -> None:
    for wheel in wheels():
        with ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.startswith(MIGRATIONS) and not n.endswith("__init__.py")]
            assert names, f"{wheel.name} has no migration"
            for name in names:
                assert archive.read(name) == (ROOT / name).read_bytes(), f"{name} was released in {wheel.name}"


def test_a_wheel_holds_what_is_read_at_run_time() -> None:
    for wheel in wheels():
        with ZipFile(wheel) as archive:
            names = set(archive.namelist())
        assert {"controller/api/page.html", f"{CONTRACTS}asyncapi.json", "deploy/local/launcher.py"} <= names


def test_the_version_has_a_wheel() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"reembed-{version}-" in "".join(wheel.name for wheel in wheels())
