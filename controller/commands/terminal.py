"""What is printed where: results on stdout, as a table or as JSON that always parses; all talk on stderr.

Without a TTY nothing is asked, coloured, animated or cut to a width.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from controller.commands.exits import CliError, Exit

_FORMAT = "reembed.format"
#: Wide enough that nothing of a table is cut when another program reads it.
_PIPE_WIDTH = 10_000


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


def _remember(context: typer.Context, value: Format) -> Format:
    """Errors are told in the same format, and are told by the root command."""
    context.meta[_FORMAT] = value
    return value


OutputOption = Annotated[
    Format,
    typer.Option(
        "-o", "--output", callback=_remember, help="How to print results on stdout; errors follow it on stderr."
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal.")]


def say(text: str) -> None:
    """Talk, for people."""
    Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(text)


def put_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, ensure_ascii=True)
    sys.stdout.write("\n")


def put_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], output: Format) -> None:
    """A list: JSON with every field, or a table of some. An empty list is `[]`, or a header alone."""
    if output is Format.JSON:
        put_json(list(rows))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_cell(row.get(column))) for column in columns))
    _console().print(table)


def put_record(record: Mapping[str, Any], output: Format, leave_out: Sequence[str] = ()) -> None:
    """One thing, a field a line; nested values as compact JSON. Fields that say nothing are left out of a table."""
    if output is Format.JSON:
        put_json(record)
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in record.items():
        if name not in leave_out and value not in (None, "", [], {}):
            table.add_row(name, Text(_cell(value)))
    _console().print(table)


def confirm(question: str, yes: bool) -> None:
    """Ask on the terminal; without one, and without --yes, nothing is done."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CliError(Exit.USAGE, f"not asked, since there is no terminal: {question}", "add --yes to go ahead")
    try:
        agreed = typer.confirm(question, default=False, err=True)
    except typer.Abort:
        raise typer.Exit(Exit.INTERRUPTED) from None
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


def _console() -> Console:
    tty = sys.stdout.isatty()
    return Console(soft_wrap=False, highlight=False, width=None if tty else _PIPE_WIDTH)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return _moment(value) if isinstance(value, str) else str(value)


def _moment(text: str) -> str:
    """Times in UTC to the second; other text as it is, on one line."""
    if len(text) >= 20 and text[4:5] == "-" and text[10:11] == "T":
        try:
            return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        except ValueError:
            pass
    return text.replace("\n", " ")
