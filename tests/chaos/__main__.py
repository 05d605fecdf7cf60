"""`make chaos`: every crash point and outage; the last line is one JSON object.

    {"crash_points": 166, "passed": 166, "seconds": 612.3}

`crash_points` are all of the registry that a run can pass, `passed` those that fired in a scenario which ended in the
output of the crash-free run. Each is listed above that line. The exit code is 0 only if all passed and no test failed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.points import NOT_REACHED, controller_points, worker_points


class Passed:
    """Notes the points of scenarios that passed."""

    def __init__(self) -> None:
        self.points: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            for name, value in report.user_properties:
                if name == "crash_points":
                    self.points.update(map(str, value))  # type: ignore[arg-type]


def main() -> int:
    started, passed = time.monotonic(), Passed()
    # The points come from the ports, so pytest cannot be the first to import what those import.
    imported = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
    arguments = [str(Path(__file__).parent), "-m", "chaos", "--durations=20", "-W", imported, *sys.argv[1:]]
    code = int(pytest.main(arguments, plugins=[passed]))
    every = [*controller_points(), *worker_points()]
    lines = [f"{'passed' if point in passed.points else 'FAILED'}  {point}" for point in every]
    lines += [f"left out  {name}: {reason}" for name, reason in NOT_REACHED.items()]
    done = len(passed.points & set(every))
    seconds = round(time.monotonic() - started, 1)
    lines.append(json.dumps({"crash_points": len(every), "passed": done, "seconds": seconds}))
    sys.stdout.write("\n".join(lines) + "\n")
    return code or int(done < len(every))


if __name__ == "__main__":
    sys.exit(main())
