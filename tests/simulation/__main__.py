"""`python -m tests.simulation [--seeds N | --seed S …] [--log]`: run seeds, print what broke and how to see it again.

Ends with one JSON line. Exit code 1 when a promise was broken. One process a CPU; the same seed always does the same,
which needs a fixed PYTHONHASHSEED: the program sets it for its processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.postgres import postgres_server
from tests.simulation.database import Server
from tests.simulation.run import Result, Simulation


async def play(url: str, seeds: list[int], report: object = None) -> list[Result]:
    server = Server(url)
    await server.open()
    try:
        found = []
        for seed in seeds:
            result = await Simulation(seed, server).run()
            found.append(result)
            if callable(report):
                report(result)
        return found
    finally:
        await server.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, action="append", help="this one; may be repeated")
    parser.add_argument("--log", action="store_true", help="print every step")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    seeds = arguments.seed or list(range(arguments.first, arguments.first + arguments.seeds))

    def report(result: Result) -> None:
        if arguments.log:
            print("\n".join(result.log))  # noqa: T201
        print(  # noqa: T201
            f"seed {result.seed}: {result.steps} steps, {result.seconds:.0f} s, "
            f"{sum(result.faults.values())} faults of {len(result.faults)} kinds"
            + "".join(f"\n  {text}" for text in result.violations),
            flush=True,
        )

    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as directory,
        postgres_server(Path(directory)) as postgres,
        postgres.database() as url,
    ):
        results = asyncio.run(play(url, seeds, report))
    seconds = time.monotonic() - began
    broken = [result for result in results if result.violations]
    for result in broken:
        print(f"again: python -m tests.simulation --seed {result.seed} --log")  # noqa: T201
    steps = sum(result.steps for result in results)
    print(json.dumps({"seeds": len(results), "violations": len(broken), "steps_per_s": round(steps / seconds)}))  # noqa: T201
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
