"""`python -m tests.simulation.planted [--seeds N] [name …]`: does the simulation find each planted bug?

Applies one at a time and runs seeds until one breaks a promise. Ends with one JSON line; exit code 1 if one was missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.postgres import postgres_server
from tests.simulation.__main__ import fixed_hashes
from tests.simulation.database import Server
from tests.simulation.mutations import MUTATIONS, planted
from tests.simulation.run import Result, Simulation
from tests.simulation.scheduler import run


async def find(url: str, name: str, seeds: range) -> Result | None:
    """The first seed that shows the bug."""
    server = Server(url)
    await server.open()
    try:
        with planted(name):
            for seed in seeds:
                result = await Simulation(seed, server).run()
                if result.violations:
                    return result
        return None
    finally:
        await server.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("names", nargs="*", help="of planted bugs; default: all")
    arguments = parser.parse_args()
    fixed_hashes("tests.simulation.planted")
    names = arguments.names or list(MUTATIONS)
    found = 0
    with tempfile.TemporaryDirectory() as folder, postgres_server(Path(folder)) as postgres, postgres.database() as url:
        for name in names:
            result = run(find(url, name, range(1, arguments.seeds + 1)))
            found += result is not None
            said = f"seed {result.seed}: {result.violations[0][:110]}" if result else "NOT FOUND"
            sys.stdout.write(f"{name:45} {said}\n")
            sys.stdout.flush()
    sys.stdout.write(json.dumps({"planted": len(names), "found": found}) + "\n")
    return 0 if found == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
