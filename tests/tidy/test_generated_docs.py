"""docs/architecture.md shows what the code says. `python -m tests.tidy.test_generated_docs` writes it anew."""

from __future__ import annotations

import re
from pathlib import Path

from schema.states import MOVES, OUTCOME_RULES, Budget, diagram

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
CAP = {Budget.FREE: "–", Budget.FAILURES: "`retries.failures`", Budget.OWN_CAP: ""}


def outcomes() -> str:
    lines = ["| outcome | runs again by itself | cap | failure budget |", "| --- | --- | --- | --- |"]
    for outcome, rule in OUTCOME_RULES.items():
        cap = CAP[rule.budget] if rule.cap is None else str(rule.cap)
        counted = "yes" if rule.budget is Budget.FAILURES else "no"
        lines.append(f"| `{outcome}` | {'yes' if rule.retry else 'no'} | {cap} | {counted} |")
    return "\n".join(lines)


def generated(page: str) -> str:
    """The page with every generated part as the code has it today."""
    parts = {f"diagram: {name}": f"```mermaid\n{diagram(name)}\n```" for name in MOVES} | {"outcomes": outcomes()}
    for mark, text in parts.items():
        page, found = re.subn(rf"(<!-- {mark} -->\n).*?(<!-- end -->)", rf"\g<1>{text}\n\g<2>", page, flags=re.DOTALL)
        assert found == 1, f"docs/architecture.md has no part {mark!r}"
    return page


def test_architecture_shows_the_state_tables() -> None:
    page = PAGE.read_text()
    assert page == generated(page), "run python -m tests.tidy.test_generated_docs"


if __name__ == "__main__":
    PAGE.write_text(generated(PAGE.read_text()))
