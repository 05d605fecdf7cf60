"""Pages with parts that come from the code: `<!-- generated: NAME -->` to `<!-- end -->`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, parts: Mapping[str, str]) -> str:
    """The page with its generated parts as they must be. KeyError where it names one that is not in `parts`."""
    found = {match[2] for match in _PART.finditer(page)}
    assert found == set(parts), f"the page has the generated parts {sorted(found)}, the code {sorted(parts)}"
    return _PART.sub(lambda match: match[1] + parts[match[2]] + "\n" + match[3], page)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; a bar in a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
