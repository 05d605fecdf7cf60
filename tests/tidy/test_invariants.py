"""Each invariant has one name: it stands in docs/architecture.md, in the code that holds it and in the tests."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
#: `I7` in text, `i7_` in the name of a function.
_TAG = re.compile(r"\bI(\d+)\b|\bi(\d+)_|_i(\d+)_")


def tags(text: str) -> set[str]:
    return {f"I{next(filter(None, match))}" for match in _TAG.findall(text)}


def tags_of(*folders: str) -> set[str]:
    paths = [
        path for folder in folders for path in (ROOT / folder).rglob("*.py") if path.parent != Path(__file__).parent
    ]
    return set().union(*(tags(path.read_text()) for path in paths))


def documented() -> set[str]:
    return set(re.findall(r"^\| (I\d+) \|", PAGE.read_text(), re.MULTILINE))


def test_the_page_counts_them_through() -> None:
    assert documented() == {f"I{number}" for number in range(1, len(documented()) + 1)}
    assert tags((ROOT / "controller" / "core" / "invariants.py").read_text()) <= documented()


def test_each_stands_in_the_code_and_the_code_names_no_other() -> None:
    assert tags_of("controller", "schema", "worker") == documented()


def test_each_stands_in_a_test_and_the_tests_name_no_other() -> None:
    assert tags_of("tests") == documented()
