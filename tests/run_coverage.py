"""`make coverage`: the share of each module's lines that runs in the running system, unit tests excluded.

Runs `reembed local demo --chaos`, the end-to-end tests of `make test`, kills included, and the command line beside the
system, with every process of theirs measured: controllers, stand-ins, and the workers that Batch starts. Processes that
are killed report nothing, so the figures are a lower bound. Fails when a module is below the bar and not among the
exceptions.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("schema", "controller", "worker", "deploy")
BAR_PERCENT = 70.0

#: Module → why its lines need not run in the system.
EXCEPTIONS: dict[str, str] = {}


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        environment = _measured(Path(directory), data)
        failed = 0
        for command in (
            ["-m", "controller.cli", "local", "demo", "--chaos", "--state-dir", f"{directory}/state"],
            ["-m", "pytest", "tests/e2e", "tests/integration/test_cli_stack.py", "-q", "-m", "not long"],
        ):
            ended = subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=False)
            if ended.returncode:
                sys.stderr.write(f"{' '.join(command)} ended with {ended.returncode}\n")
                failed = 1
        return max(failed, _report(data, Path(directory)))


def _measured(directory: Path, data: Path) -> dict[str, str]:
    """An environment in which every Python process measures itself, those with a cleared environment too."""
    settings = directory / "coveragerc"
    sources = "\n    ".join(str(ROOT / package) for package in PACKAGES)
    settings.write_text(f"[run]\nparallel = true\nsigterm = true\ndata_file = {data}\nsource =\n    {sources}\n")
    (directory / "sitecustomize.py").write_text(
        f"import os\nos.environ['COVERAGE_PROCESS_START'] = {str(settings)!r}\n"
        "import coverage\ncoverage.process_startup()\n"
    )
    return {**os.environ, "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"}


def _report(data: Path, directory: Path) -> int:
    measured = coverage.Coverage(config_file=str(directory / "coveragerc"))
    measured.combine([str(data.parent)])
    below = 0
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            _, statements, _, missing, _ = measured.analysis2(str(path))
            if not statements:
                continue
            share = 100 * (1 - len(missing) / len(statements))
            name = str(path.relative_to(ROOT))
            reason = EXCEPTIONS.get(name, "")
            low = share < BAR_PERCENT
            below += low and not reason
            remark = f"  exception: {reason}" if low and reason else "  BELOW THE BAR" if low else ""
            sys.stdout.write(f"{share:6.1f} %  {name}{remark}\n")
    sys.stdout.write(f"{below} modules below {BAR_PERCENT:g} %\n")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
