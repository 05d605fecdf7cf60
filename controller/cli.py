"""`reembed`: the command line. Puts the commands together; each noun has its file in `controller.commands`.

Results go to stdout as a table or as JSON (`-o json`), talk and errors to stderr, and the exit code says how it went:
`controller.commands.exits`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from controller import version
from controller.commands import database, freeze, request, serve, shard
from controller.commands.doctor import doctor
from controller.commands.exits import MEANINGS
from controller.commands.extras import Root
from controller.commands.submit import submit

_EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code.value:<4} {text}" for code, text in MEANINGS.items())

app = typer.Typer(
    name="reembed",
    cls=Root,
    help="Re-embed hundreds of millions of assets on AWS Batch: submit requests, watch them, and put failures right.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("submit")(submit)
app.add_typer(request.app, name="request")
app.add_typer(shard.app, name="shard")
app.add_typer(shard.attempts, name="attempt")
app.add_typer(shard.operations, name="operation")
app.add_typer(shard.queues, name="queue")
app.add_typer(database.app, name="db")
app.command("freeze")(freeze.freeze)
app.command("unfreeze")(freeze.unfreeze)
app.command("doctor")(doctor)
app.add_typer(serve.app, name="controller")


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"reembed {version()}\n")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the `reembed` script."""
    app(args=None if arguments is None else list(arguments), prog_name="reembed")
    raise AssertionError("Typer exits by itself")


if __name__ == "__main__":
    main()
