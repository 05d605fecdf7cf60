"""Commands of other packages, and what to say when an extra is not installed.

The entry point group `reembed.cli` adds commands: the name is the command's, the object a Typer app (one command, or
a group). They are looked up only when they are asked for or listed. One whose extra is missing is not shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

import typer
import typer.core
import typer.main

from controller.commands.exits import CliError, Exit
from controller.commands.terminal import format_of, report

GROUP = "reembed.cli"


@contextmanager
def needed(extra: str) -> Iterator[None]:
    """Around imports that need an extra."""
    try:
        yield
    except ImportError as error:
        raise CliError(
            Exit.FAILED, f"this command needs {error.name}, which is not installed", f"install reembed[{extra}]"
        ) from error


class Root(typer.core.TyperGroup):
    """The root command: tells errors, and finds commands of other packages."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CliError as error:
            report(error, format_of(ctx))
            raise typer.Exit(error.code) from None

    def list_commands(self, ctx: Any) -> list[str]:
        own = list(super().list_commands(ctx))
        added = sorted(point.name for point in entry_points(group=GROUP))
        return own + [name for name in added if name not in own and self.get_command(ctx, name) is not None]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        for point in entry_points(group=GROUP, name=cmd_name):
            try:
                found = point.load()
            except ImportError:
                return None
            command = typer.main.get_command(found)
            command.name = cmd_name
            return command
        return None
