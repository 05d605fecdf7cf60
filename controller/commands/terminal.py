"""What is printed where: results on stdout, as a table or as JSON that always parses; all talk on stderr.

Without a terminal nothing is asked or animated. Tables are plain text and never cut; keys, labels and reasons may come
from strangers, so what is not printable is escaped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.cells import cell_len

from controller.commands.exits import CliError, Exit

_FORMAT = "reembed.format"
_GAP = "  "


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


def remember(context: typer.Context, value: Format) -> Format:
    """Errors are told in the same format, and are told by the root command."""
    context.meta[_FORMAT] = value
    return value


OutputOption = Annotated[
    Format,
    typer.Option(
        "-o", "--output", callback=remember, help="How to print results on stdout; errors follow it on stderr."
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal.")]


def say(text: str) -> None:
    """Talk, for people."""
    sys.stderr.write("\n".join(map(_printable, text.splitlines())) + "\n")
    sys.stderr.flush()


def put_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, ensure_ascii=True)
    sys.stdout.write("\n")


def put_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], output: Format) -> None:
    """A list: JSON with every field, or a table of some. An empty list is `[]`, or a header alone."""
    if output is Format.JSON:
        put_json(list(rows))
        return
    _put_table([columns, *([_cell(row.get(column)) for column in columns] for row in rows)])


def put_record(record: Mapping[str, Any], output: Format, leave_out: Sequence[str] = ()) -> None:
    """One thing, a field a line. Fields that say nothing are left out of a table."""
    if output is Format.JSON:
        put_json(record)
        return
    told = {name: value for name, value in record.items() if name not in leave_out and value not in (None, "")}
    _put_table([(name, _cell(value)) for name, value in told.items() if value not in ([], (), {})])


def confirm(question: str, yes: bool) -> None:
    """Ask on the terminal; without one, and without --yes, nothing is done."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CliError(Exit.USAGE, f"not asked, since there is no terminal: {question}", "add --yes to go ahead")
    try:
        agreed = typer.confirm(question, default=False, err=True)
    except typer.Abort:  # Ctrl-C or the end of the input
        raise CliError(Exit.INTERRUPTED, "nothing was done") from None
    if not agreed:
        raise CliError(Exit.FAILED, "nothing was done")


def report(error: CliError, output: Format) -> None:
    """On stderr, in the format that was asked for."""
    if output is Format.JSON:
        json.dump({**error.document, "exit_code": int(error.code)}, sys.stderr, indent=2, ensure_ascii=True)
        sys.stderr.write("\n")
        return
    document = error.document
    where = f" ({document['field']})" if document.get("field") else ""
    say(f"error: {document['detail']}{where}")
    if document.get("fix"):
        say(f"  fix: {document['fix']}")


def format_of(context: typer.Context) -> Format:
    return context.meta.get(_FORMAT, Format.TABLE)


def _put_table(lines: Iterable[Sequence[str]]) -> None:
    table = [[_printable(cell) for cell in line] for line in lines]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    for line in table:
        padded = [cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)]
        sys.stdout.write(_GAP.join(padded).rstrip() + "\n")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return _pairs(value)
    if isinstance(value, list | tuple):
        return ", ".join(_cell(one) for one in value) if all(map(_plain, value)) else json.dumps(value)
    return _moment(value) if isinstance(value, str) else str(value)


def _pairs(value: dict[str, Any]) -> str:
    """`name value, name value` where that can be read; null says nothing and is left out."""
    if not all(map(_plain, value.values())):
        return json.dumps(value, ensure_ascii=False)
    return ", ".join(f"{name} {_cell(one)}" for name, one in value.items() if one is not None)


def _plain(value: Any) -> bool:
    return not isinstance(value, dict | list | tuple)


def _moment(text: str) -> str:
    """Times in UTC to the second; other text as it is."""
    if len(text) >= 20 and text[4:5] == "-" and text[10:11] == "T":
        try:
            return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        except ValueError:
            pass
    return text


def _printable(text: str) -> str:
    """On one line, and without what would command a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
