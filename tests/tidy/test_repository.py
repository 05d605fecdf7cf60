"""Rules of the repository: names that are ours alone, files that can be read, links that lead somewhere."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("schema", "controller", "worker", "deploy")
LINES = 400
#: Files that are longer, and why.
LONG = {"controller/ports.py": "every port in one place: what the loops need is read, and faked, as a whole"}
_OPEN_ENDS = re.compile(r"\b(" + "TO" + "DO|FIX" + "ME|XX" + r"X)\b")
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def sources() -> list[Path]:
    return [path for folder in (*PACKAGES, "tests") for path in sorted((ROOT / folder).rglob("*.py"))]


def pages() -> list[Path]:
    folders = [folder for folder in (*PACKAGES, "tests", "docs") if (ROOT / folder).is_dir()]
    return [*sorted(ROOT.glob("*.md")), *(page for folder in folders for page in sorted((ROOT / folder).rglob("*.md")))]


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[str]:
    """Those that stay within the repository."""
    for target in _LINK.findall(_FENCE.sub("", page.read_text())):
        if not re.match(r"[a-z]+:", target):
            yield target


def leads_somewhere(page: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    there = (page.parent / name).resolve() if name else page
    if not there.exists() or not there.is_relative_to(ROOT):
        return False
    return not anchor or (there.suffix == ".md" and anchor in anchors(there))


def strangers(installed: Mapping[str, Sequence[str]]) -> set[str]:
    """Other distributions that bring a top-level package of our name."""
    return {name for package in PACKAGES for name in installed.get(package, ())} - {"reembed"}


def test_nothing_installed_takes_our_names() -> None:
    assert strangers({"schema": ["schema"], "worker": ["reembed"]}) == {"schema"}
    assert strangers(packages_distributions()) == set()
    found = {name: Path(importlib.import_module(name).__file__ or "").parent for name in PACKAGES}
    assert found == {name: ROOT / name for name in PACKAGES}


def test_a_file_can_be_read_in_one_go() -> None:
    long = {str(path.relative_to(ROOT)) for path in sources() if len(path.read_text().splitlines()) >= LINES}
    assert long == set(LONG)


def test_nothing_is_left_open() -> None:
    files = [*sources(), *pages(), *ROOT.glob("Dockerfile.*"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    assert [str(path.relative_to(ROOT)) for path in files if _OPEN_ENDS.search(path.read_text())] == []


def test_links_lead_somewhere() -> None:
    found = [(page, target) for page in pages() for target in links(page)]
    assert len(found) > 20
    broken = [f"{page.relative_to(ROOT)}: {target}" for page, target in found if not leads_somewhere(page, target)]
    assert broken == []


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^- \[(\d{4})\]\(([^)]+)\) (.+)$", (folder / "README.md").read_text(), re.MULTILINE)
    written = [(path.name[:4], path.name, path.read_text().splitlines()[0]) for path in sorted(folder.glob("0*.md"))]
    assert [(number, name, f"# {int(number)}. {title}") for number, name, title in listed] == written
