"""`python -m tests.simulation.planted [--seeds N] [name …]`: does the simulation find each planted bug?

Two lists: `mutations`, and `planted.json`, changes of the product's text by somebody who had not read the simulator.
One bug at a time, seeds until one breaks a promise. Ends with one JSON line; exit code 1 if a bug was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.__main__ import BROKEN
from tests.simulation.mutations import MUTATIONS

ROOT = Path(__file__).parents[2]
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".reembed", ".pytest_cache", ".hypothesis")


@dataclass(frozen=True)
class Change:
    """`old` → `new` in `file`; `promise` is what it breaks."""

    name: str
    promise: str
    file: str
    old: str
    new: str


CHANGES = {row["name"]: Change(**row) for row in json.loads(Path(__file__).with_suffix(".json").read_text())}


def found_by(name: str, seeds: int) -> str | None:
    """The seed that shows the bug and the promise that it broke; None when no seed does."""
    if name in MUTATIONS:
        return _found(ROOT, ["--plant", name], seeds)
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "copy"
        shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
        change = CHANGES[name]
        file = copy / change.file
        text = file.read_text()
        if text.count(change.old) != 1:
            raise SystemExit(f"{name}: {change.file} has its text {text.count(change.old)} times")
        file.write_text(text.replace(change.old, change.new))
        return _found(copy, [], seeds)


def _found(folder: Path, more: Sequence[str], seeds: int) -> str | None:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(seeds), "--until-broken", *more]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    lines = ended.stdout.splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise SystemExit(f"{' '.join(command)} ended with {ended.returncode}: {ended.stderr[-2000:]}")
    if ended.returncode == 0:
        return None
    broken = next(number for number, line in enumerate(lines) if line.startswith(BROKEN))
    return f"{lines[broken - 1].partition(':')[0]}: {lines[broken].strip()[:110]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="bugs at once")
    parser.add_argument("names", nargs="*", help="of planted bugs; default: all")
    arguments = parser.parse_args()
    names = arguments.names or [*MUTATIONS, *CHANGES]
    found = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for name, shown in zip(names, pool.map(lambda name: found_by(name, arguments.seeds), names), strict=True):
            found += shown is not None
            sys.stdout.write(f"{name:60} {shown or 'NOT FOUND'}\n")
            sys.stdout.flush()
    sys.stdout.write(json.dumps({"planted": len(names), "found": found}) + "\n")
    return 0 if found == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
