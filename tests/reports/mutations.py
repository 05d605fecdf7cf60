"""Each report of docs/field-reports.md with the change of one place that makes its test fail.

`python -m tests.reports.mutations` makes every change in a copy of the repository and runs the test there: it must
fail. Arguments name reports. The table is reports.json; the page is made of it by
`python -m tests.tidy.test_field_reports`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Report:
    """`number` in the page; `source` and `symptom` as reported; `old` → `new` in `file` breaks `test`."""

    number: str
    source: str
    symptom: str
    test: str
    file: str
    old: str
    new: str


REPORTS = tuple(Report(**row) for row in json.loads((Path(__file__).parent / "reports.json").read_text()))


def survives(report: Report, copy: Path) -> bool:
    """Whether the test passes although the change was made; AssertionError when it cannot be made or run."""
    path = copy / report.file
    text = path.read_text()
    assert text.count(report.old) == 1, f"{report.number}: {report.file} has that text {text.count(report.old)} times"
    path.write_text(text.replace(report.old, report.new))
    try:
        command = [sys.executable, "-m", "pytest", "tests/reports", "-q", "-x", "-p", "no:cacheprovider"]
        done = subprocess.run([*command, "-k", report.test], cwd=copy, capture_output=True, text=True, check=False)
    finally:
        path.write_text(text)
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    assert " error" not in done.stdout.splitlines()[-1], done.stdout[-2000:]
    return done.returncode == 0


def main(numbers: list[str]) -> int:
    chosen = [report for report in REPORTS if not numbers or report.number in numbers]
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "copy"
        skip = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".reembed", ".pytest_cache", ".hypothesis")
        shutil.copytree(ROOT, copy, ignore=skip)
        found = []
        for report in chosen:
            passed = survives(report, copy)
            print(f"{report.number:>3} {'PASSES' if passed else 'fails'}  {report.test}", flush=True)  # noqa: T201
            found += [report] if passed else []
    print(f"{len(chosen) - len(found)} of {len(chosen)} changes make their test fail")  # noqa: T201
    return len(found)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
