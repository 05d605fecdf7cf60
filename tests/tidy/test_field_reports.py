"""docs/field-reports.md is made of the reports' table. `python -m tests.tidy.test_field_reports` writes it anew."""

from __future__ import annotations

import re
from pathlib import Path

from tests.generated import filled, table
from tests.reports.mutations import REPORTS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "field-reports.md"
TESTS = ROOT / "tests" / "reports"


def code(text: str) -> str:
    """As one line of Markdown."""
    return "`" + " ⏎ ".join(line.strip() for line in text.strip().splitlines()) + "`"


def parts() -> dict[str, str]:
    rows = [
        (r.number, r.source, r.symptom, f"`{r.test}`", f"`{r.file}`: {code(r.old)} → {code(r.new)}") for r in REPORTS
    ]
    return {"reports": table(("#", "report", "what went wrong", "test", "the change that makes it fail"), rows)}


def written() -> set[str]:
    found = [re.findall(r"^async def (test_\w+)", path.read_text(), re.MULTILINE) for path in TESTS.glob("test_*.py")]
    return {name for names in found for name in names}


def test_the_page_is_what_the_table_says() -> None:
    page = PAGE.read_text()
    assert page == filled(page, parts()), "run python -m tests.tidy.test_field_reports"


def test_every_report_has_a_row_and_every_row_its_test() -> None:
    assert {str(number) for number in range(1, 39)} <= {report.number for report in REPORTS}
    assert {report.test for report in REPORTS} <= written()
    numbered = {name for name in written() if re.match(r"test_\d\d_", name)}
    assert {int(name[5:7]) for name in numbered} == set(range(1, 39))


def test_every_change_can_be_made() -> None:
    wrong = [r.number for r in REPORTS if (ROOT / r.file).read_text().count(r.old) != 1 or r.old == r.new]
    assert wrong == []


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(), parts()))
