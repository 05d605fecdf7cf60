"""`make coverage`: the share of each module's lines that runs in the running system, unit tests excluded.

Runs `reembed local demo --chaos` in a terminal and the tests that kill, stop and misdirect real processes, with every
process measured: controllers, stand-ins, and workers. A test's own process counts only for what is an operator's
terminal there, the command line and the stack. What a process ran just before it was killed is missing, so the figures
are a lower bound. Fails when a module is below the bar and not among the exceptions.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("schema", "controller", "worker", "deploy")
BAR_PERCENT = 70.0
#: Of these a test's own process counts.
TERMINAL = ("controller/cli.py", "controller/commands/*", "worker/search_cli.py", "deploy/local/*.py")
DEMO = ["-m", "controller.cli", "local", "demo", "--chaos"]
TESTS = (
    "tests/e2e",
    "tests/conformance",
    "tests/integration/test_cli_stack.py",
    "tests/integration/test_cli_commands.py",
    "tests/integration/test_local_cli.py",
    "tests/integration/test_prepare.py",
    "tests/integration/test_worker_faults.py",
    "tests/integration/test_worker_infer.py",
    "tests/integration/test_worker_ranks.py",
)
#: Of the long tests, those that reach what the others do not.
LONG_TESTS = (
    "tests/e2e/test_controller_kills.py::test_killed_while_submitjob_is_under_way",
    "tests/e2e/test_poison.py",
    "tests/e2e/test_sources.py",
    "tests/e2e/test_worker_ends.py",
)

#: Engines and decoders end by SIGKILL when a shard is done, so what they ran is saved while they run.
SAVE_SECONDS = 0.5
MEASURE = """\
import os, sys, threading, time
os.environ["COVERAGE_PROCESS_START"] = {terminal!r} if "pytest" in sys.orig_argv else {settings!r}
import coverage
measured = coverage.process_startup()
del os.environ["COVERAGE_PROCESS_START"]  # coverage's own hook would start children with our settings

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
    "controller/api/freeze.py": "tests/integration/test_freeze.py",
    "controller/api/shards.py": "requeues; tests/integration/test_api_shards.py",
    "controller/commands/database.py": "tests/integration/test_cli_commands.py",
    "controller/commands/freeze.py": "tests/integration/test_freeze.py",
    "controller/commands/messages.py": "offline; tests/unit/test_cli_validation.py",
    "controller/commands/settings.py": "errors of settings; tests/integration/test_cli_exits.py",
    "controller/commands/shard.py": "tests/integration/test_cli_commands.py",
    "controller/commands/validation.py": "offline; tests/unit/test_cli_validation.py",
    "controller/core/invariants.py": "checks for tests, run in their processes: tests/e2e, tests/simulation",
    "controller/core/quotas.py": "quotas are optional; tests/placement and tests/unit/test_placement.py",
    "controller/loops/operations.py": "operators' orders beyond a cancel; tests/integration/test_cli_commands.py",
    "controller/store/errors.py": "a failing Postgres; tests/contract/test_store_postgres.py, tests/chaos",
    "deploy/local/batch/example.py": "an example to run by hand",
    "deploy/local/batch/guardian.py": "runs without site-packages, so unmeasured; tests/conformance/test_running.py",
    "deploy/local/batch/launch.py": "for tests of the stand-in alone",
    "deploy/local/launcher.py": "runs without site-packages, so unmeasured; tests/integration/test_local_processes.py",
    "worker/torch_engine.py": "half of it is for CUDA; tests/integration/test_worker_golden.py",
}


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        os.environ.update(_measuring(Path(directory), data))
        os.chdir(ROOT)
        demo = _in_a_terminal([sys.executable, *DEMO, "--state-dir", f"{directory}/state"])
        tests = _pytest(*TESTS, "-m", "not long")
        long_tests = _pytest(*LONG_TESTS)
        for name, code in (("the demo", demo), ("the tests", tests), ("the long tests", long_tests)):
            if code:
                sys.stderr.write(f"{name} ended with {code}\n")
        return _report(data, Path(directory)) or demo or tests or long_tests


def _pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", "-q", *arguments], check=False).returncode


def _in_a_terminal(command: list[str]) -> int:
    """Exit code of a command that sees a terminal, whatever we see."""
    return os.waitstatus_to_exitcode(pty.spawn(["env", "TERM=xterm", *command], stdin_read=lambda _: b""))


def _measuring(directory: Path, data: Path) -> dict[str, str]:
    """Variables that make every Python process measure itself, those with a cleared environment too."""
    settings, terminal = directory / "coveragerc", directory / "coveragerc-terminal"
    common = f"[run]\nparallel = true\nsigterm = true\npatch = _exit\ndata_file = {data}\n"
    settings.write_text(common + _listed("source", (ROOT / package for package in PACKAGES)))
    terminal.write_text(common + _listed("include", (ROOT / pattern for pattern in TERMINAL)))
    measure = MEASURE.format(settings=str(settings), terminal=str(terminal), seconds=SAVE_SECONDS)
    (directory / "sitecustomize.py").write_text(measure)
    return {"PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"}


def _listed(name: str, paths: Iterable[Path]) -> str:
    return f"{name} =\n" + "".join(f"    {path}\n" for path in paths)


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
