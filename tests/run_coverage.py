"""`make coverage`: the share of each module's lines that runs in the running system, unit tests excluded.

Runs `reembed local demo --chaos`, the end-to-end tests of `make test`, kills included, and the command line beside the
system, with every process of theirs measured: controllers, stand-ins, and the workers that Batch starts. What a process
ran just before it was killed is missing, so the figures are a lower bound. Fails when a module is below the bar and not
among the exceptions.
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

#: Engines and decoders end by SIGKILL when a shard is done, so what they ran is saved while they run.
SAVE_SECONDS = 0.5
MEASURE = """\
import os, threading, time
os.environ["COVERAGE_PROCESS_START"] = {settings!r}
import coverage
measured = coverage.process_startup()

def save():
    while True:
        time.sleep({seconds})
        measured.save()

if measured is not None:
    threading.Thread(target=save, daemon=True).start()
"""

#: Module → why its lines need not run in the system.
EXCEPTIONS: dict[str, str] = {
    "schema/export.py": "writes the committed contracts; tests/unit/test_messages.py",
    "controller/api/auth.py": "refusals; the demo has no token: tests/integration/test_api_access.py",
    "controller/api/shards.py": "requeues; tests/integration/test_api_shards.py",
    "controller/commands/database.py": "tests/integration/test_cli_commands.py",
    "controller/commands/messages.py": "offline; tests/unit/test_cli_validation.py",
    "controller/commands/settings.py": "errors of settings; tests/integration/test_cli_exits.py",
    "controller/commands/shard.py": "tests/integration/test_cli_commands.py",
    "controller/commands/validation.py": "offline; tests/unit/test_cli_validation.py",
    "controller/loops/operations.py": "operators' orders beyond a cancel; tests/integration/test_cli_commands.py",
    "deploy/local/batch/example.py": "an example to run by hand",
    "deploy/local/batch/launch.py": "for tests of the stand-in alone",
}


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
    settings.write_text(
        f"[run]\nparallel = true\nsigterm = true\npatch = _exit\ndata_file = {data}\nsource =\n    {sources}\n"
    )
    (directory / "sitecustomize.py").write_text(MEASURE.format(settings=str(settings), seconds=SAVE_SECONDS))
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
