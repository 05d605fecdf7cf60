"""Commands of other packages, and what to say when an extra is not installed.

The entry point group `reembed.cli` adds commands: the name is the command's, the object a Typer app (one command, or
a group). They are looked up only when they are asked for or listed. One whose extra is missing is not listed, and says
what to install when it is called. They import nothing of ours: what they share with our own commands is `Host`, in
`context.obj`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import typer
import typer.core
import typer.main

from controller.commands import terminal
from controller.commands.connection import Api, connect
from controller.commands.exits import CliError, Exit, Unanswered
from controller.commands.terminal import Format, format_of, report, say

GROUP = "reembed.cli"
#: The extra that a top-level package of this distribution needs.
_EXTRAS = {"worker": "worker", "deploy": "local"}


@contextmanager
def needed(extra: str) -> Iterator[None]:
    """Around imports that need an extra."""
    try:
        yield
    except ImportError as error:
        raise _missing(error, extra) from error


def _missing(error: ImportError, extra: str) -> CliError:
    fix = f"pip install 'reembed[{extra}]'"
    return CliError(Exit.FAILED, f"this command needs {error.name}, which is not installed", fix)


class Host:
    """What a command of another package finds in `context.obj`: our API client, printing and errors."""

    needed = staticmethod(needed)
    Unanswered = Unanswered

    def __init__(self, context: typer.Context) -> None:
        self._context = context

    def begin(self, output: str) -> None:
        """Print results and errors in this format, `table` or `json`, from now on."""
        terminal.remember(self._context, Format(output))

    def api(self, url: str, token_file: Path | None) -> Api:
        """A context manager with `get(*path_segments)`."""
        return connect(url, token_file)

    def rows(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """A list on stdout."""
        terminal.put_rows(rows, columns, format_of(self._context))

    def error(self, code: int, detail: str, fix: str = "") -> Exception:
        """To be raised: ends the command with one of the documented exit codes."""
        return CliError(Exit(code), detail, fix)


class Root(typer.core.TyperGroup):
    """The root command: tells errors, and finds commands of other packages."""

    def invoke(self, ctx: Any) -> Any:
        ctx.obj = Host(ctx)
        try:
            return super().invoke(ctx)
        except CliError as error:
            report(error, format_of(ctx))
            raise typer.Exit(error.code) from None
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(Exit.INTERRUPTED) from None

    def list_commands(self, ctx: Any) -> list[str]:
        own = list(super().list_commands(ctx))
        points = entry_points(group=GROUP)
        return own + sorted(point.name for point in points if point.name not in own and _loads(point))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        for point in entry_points(group=GROUP, name=cmd_name):
            app = _load(point)
            app.rich_markup_mode = None  # help texts look like ours
            command = typer.main.get_command(app)
            command.name = cmd_name
            return command
        return None


def _load(point: EntryPoint) -> typer.Typer:
    try:
        return point.load()
    except ImportError as error:
        raise _missing(error, _EXTRAS.get(point.module.partition(".")[0], point.name)) from error


def _loads(point: EntryPoint) -> bool:
    try:
        _load(point)
    except CliError:
        return False
    return True
