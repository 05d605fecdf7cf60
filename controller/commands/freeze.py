"""`reembed freeze` and `reembed unfreeze`: no submission in any replica, and submissions again."""

from __future__ import annotations

from pathlib import Path

from controller.commands.connection import (
    DEFAULT_URL,
    ActorOption,
    ReasonOption,
    TokenFileOption,
    UrlOption,
    actor_name,
    connect,
)
from controller.commands.terminal import Format, OutputOption, YesOption, confirm, put_record


def freeze(
    reason: ReasonOption,
    yes: YesOption = False,
    actor: ActorOption = None,
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """Stop every submission in every replica.

    What runs goes on, and so do reports and commits; nothing is cancelled.

    \b
    Examples:
      reembed freeze --reason "quota is needed elsewhere" --yes
    """
    confirm("Stop every submission of every request?", yes)
    _put("freeze", reason, actor, output, url, token_file)


def unfreeze(
    reason: ReasonOption,
    actor: ActorOption = None,
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """Submit again after a freeze.

    \b
    Examples:
      reembed unfreeze --reason "quota is back"
    """
    _put("unfreeze", reason, actor, output, url, token_file)


def _put(action: str, reason: str, actor: str | None, output: Format, url: str, token_file: Path | None) -> None:
    with connect(url, token_file) as api:
        put_record(api.post(action, body={"reason": reason}, actor=actor_name(actor)), output)
