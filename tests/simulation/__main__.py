"""`python -m tests.simulation [--seeds N | --seed S …] [--log]`: run seeds, print what broke and how to see it again.

Ends with one JSON line. Exit code 1 when a promise was broken. The same seed always does the same, in any process: the
program fixes PYTHONHASHSEED for itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from tests.postgres import postgres_server
from tests.simulation.coverage import Covered, dumped, loaded, table
from tests.simulation.database import Server
from tests.simulation.mutations import MUTATIONS, planted
from tests.simulation.run import Result, Simulation
from tests.simulation.scheduler import run

COVERED, BROKEN = "covered ", "  "
#: Seeds that once broke a promise; always run.
ONCE_BROKEN = (3, 4, 5, 17)


async def play(
    url: str, seeds: list[int], report: Callable[[Result], None], *, until_broken: bool = False
) -> list[Result]:
    server = Server(url)
    await server.open()
    try:
        found = []
        for seed in seeds:
            found.append(await Simulation(seed, server).run())
            report(found[-1])
            if until_broken and found[-1].violations:
                break
        return found
    finally:
        await server.close()


def fixed_hashes(module: str) -> None:
    """Start anew unless sets of strings iterate in the same order in every process."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, action="append", help="this one; may be repeated")
    parser.add_argument("--once-broken", action="store_true", help="the seeds that once broke a promise, too")
    parser.add_argument("--steps", type=int, default=400, help="a seed that takes fewer is no test")
    parser.add_argument("--until-broken", action="store_true", help="in one process, up to the first broken promise")
    parser.add_argument("--plant", choices=sorted(MUTATIONS), help="a bug to look for")
    parser.add_argument("--log", action="store_true", help="print every step")
    parser.add_argument("--table", choices=("text", "raw"), help="which change of state came soon after which fault")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    arguments = parser.parse_args()
    fixed_hashes("tests.simulation")
    seeds = arguments.seed or list(range(arguments.first, arguments.first + arguments.seeds))
    if arguments.once_broken:
        seeds = list(dict.fromkeys([*ONCE_BROKEN, *seeds]))
    jobs = 1 if arguments.until_broken or arguments.plant else min(arguments.jobs, len(seeds))
    began = time.monotonic()
    covered: Covered = Counter()
    ended = _in_processes(seeds, jobs, arguments.steps, covered) if jobs > 1 else _here(seeds, arguments, covered)
    if arguments.table == "raw":
        say(COVERED + dumped(covered))
    elif arguments.table == "text":
        say("\n".join(table(covered)))
    steps = ended.pop("steps")
    say(json.dumps({**ended, "steps_per_s": round(steps / (time.monotonic() - began))}))
    return 1 if ended["violations"] else 0


def _here(seeds: list[int], arguments: argparse.Namespace, covered: Covered) -> dict[str, int]:
    def report(result: Result) -> None:
        covered.update(result.covered)
        if arguments.log:
            say("\n".join(result.log))
        kinds, faults = len(result.faults), sum(result.faults.values())
        say(f"seed {result.seed}: {result.steps} steps, {result.seconds:.0f} s, {faults} faults of {kinds} kinds")
        if not result.violations and result.steps < arguments.steps:
            result.violations.append(f"only {result.steps} steps")
        for text in result.violations:
            say(f"{BROKEN}{text}")
        if result.violations:
            say(f"  again: python -m tests.simulation --seed {result.seed} --log")

    with (
        tempfile.TemporaryDirectory() as folder,
        postgres_server(Path(folder)) as postgres,
        postgres.database() as url,
        planted(arguments.plant) if arguments.plant else nullcontext(),
    ):
        results = run(play(url, seeds, report, until_broken=arguments.until_broken))
    broken = sum(1 for result in results if result.violations)
    return {"seeds": len(results), "violations": broken, "steps": sum(result.steps for result in results)}


def _in_processes(seeds: list[int], jobs: int, steps: int, covered: Covered) -> dict[str, int]:
    """Every process takes each `jobs`-th seed, and prints as it goes."""
    total = {"seeds": 0, "violations": 0, "steps": 0}

    def one(mine: list[int]) -> None:
        chosen = [flag for seed in mine for flag in ("--seed", str(seed))] + ["--steps", str(steps), "--table", "raw"]
        began = time.monotonic()
        command = [sys.executable, "-m", "tests.simulation", "--jobs", "1", *chosen]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            last = ""
            for line in process.stdout:
                if line.startswith(COVERED):
                    covered.update(loaded(line.removeprefix(COVERED)))
                elif not line.startswith("{"):
                    say(line.rstrip())
                last = line
        if not last.startswith("{"):
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
        ended = json.loads(last)
        total["seeds"] += ended["seeds"]
        total["violations"] += ended["violations"]
        total["steps"] += round(ended["steps_per_s"] * (time.monotonic() - began))

    threads = [threading.Thread(target=one, args=(seeds[number::jobs],)) for number in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if total["seeds"] != len(seeds):
        raise SystemExit("a process of the simulation ended early")
    return total


if __name__ == "__main__":
    sys.exit(main())
