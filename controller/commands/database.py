"""`reembed db`: migrations of the control database. Needs only REEMBED_DATABASE__URL."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Annotated, TypeVar

import typer

from controller.commands.exits import CliError, Exit
from controller.commands.extras import needed
from controller.commands.settings import database_url
from controller.commands.terminal import Format, OutputOption, put_record, say

T = TypeVar("T")

app = typer.Typer(help="Migrations of the control database.", no_args_is_help=True)


@app.command("upgrade")
def upgrade(
    revision: Annotated[str, typer.Argument(help="Where to; the newest by default.")] = "head",
    output: OutputOption = Format.TABLE,
) -> None:
    """Migrate the database up.

    Does nothing where it is up to date. Several may run at once.

    \b
    Examples:
      REEMBED_DATABASE__URL=postgresql://user:password@host/reembed reembed db upgrade
    """
    migrations, url = _migrations(), database_url()
    before = _run(migrations.current, url)
    _run(migrations.upgrade, url, revision)
    after = _run(migrations.current, url)
    put_record({"before": before, "revision": after, "changed": before != after}, output)


@app.command("current")
def current(output: OutputOption = Format.TABLE) -> None:
    """Show the database's revision.

    And the newest one that this version knows; exit code 1 unless they are the same.

    \b
    Examples:
      reembed db current -o json
    """
    migrations, url = _migrations(), database_url()
    found, head = _run(migrations.current, url), migrations.head()
    put_record({"revision": found, "head": head, "up_to_date": found == head}, output)
    if found != head:
        say("run `reembed db upgrade`")
        raise typer.Exit(Exit.FAILED)


def _migrations() -> ModuleType:
    with needed("controller"):
        from schema.migrations import run
    return run


def _run(work: Callable[..., T], *arguments: str) -> T:
    """SQLAlchemy, asyncpg and Alembic have no error in common, and all say enough in one line."""
    try:
        return work(*arguments)
    except Exception as error:
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        fix = "check REEMBED_DATABASE__URL and that Postgres takes connections"
        raise CliError(Exit.FAILED, f"database: {detail}", fix) from error
