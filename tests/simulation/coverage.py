"""Which change of state came soon after which fault: the table that tells what the seeds have not tried yet.

A cell is a kind of fault and a legal move of `schema.states`.
"""

from __future__ import annotations

import json
from collections import Counter

from schema.states import MOVES

#: (fault, what, before, after) → how often that change came within `run.COVERED_SECONDS` of that fault
Covered = Counter[tuple[str, str, str, str]]

ALL_MOVES = tuple(
    (what, before.value, after.value) for what, table in MOVES.items() for before in table for after in table[before]
)


def dumped(covered: Covered) -> str:
    return json.dumps([[*cell, count] for cell, count in sorted(covered.items())])


def loaded(text: str) -> Covered:
    return Counter({(fault, what, before, after): count for fault, what, before, after, count in json.loads(text)})


def table(covered: Covered) -> list[str]:
    """A line for each move: after how many kinds of fault it was seen, and after which ones it was not."""
    kinds = sorted({fault for fault, *_ in covered})
    lines = [f"{'change of state':33} soon after so many of {len(kinds)} kinds of fault; not after"]
    for what, before, after in ALL_MOVES:
        missing = [kind for kind in kinds if not covered[kind, what, before, after]]
        seen = len(kinds) - len(missing)
        lines.append(f"{what:8}{before:>11} → {after:11}{seen:3}  {', '.join(missing) if seen else 'any'}".rstrip())
    return lines
