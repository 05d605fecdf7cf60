"""`reembed controller`: run one replica."""

from __future__ import annotations

import typer

from controller.commands.extras import needed

app = typer.Typer(help="The controller itself.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """The controller itself."""


@app.command("run")
def run() -> None:
    """Run one replica until SIGTERM or Ctrl-C.

    Loops, API, health and metrics. Any number may share a database. Logs go to stdout. Exit code 0: stopped as asked;
    1: it could not start; 2: the settings are wrong.

    \b
    Examples:
      REEMBED_CONFIG=/etc/reembed.toml reembed controller run
    """
    with needed("controller"):
        from controller import main
    main.main()
