"""Settings for the commands that need some: all of them, or only where the database is."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_settings import SettingsConfigDict

from controller.commands.exits import CliError, Exit
from controller.core.admission import Policy
from controller.settings import Database, FileFirst, Settings, problems

FIX = "set the REEMBED_* variables, or name a JSON or TOML file in REEMBED_CONFIG"


class _DatabaseOnly(FileFirst):
    """For `reembed db`, which runs before anything else is configured."""

    model_config = SettingsConfigDict(env_prefix="REEMBED_", env_nested_delimiter="__", frozen=True, extra="ignore")

    database: Database


def database_url() -> str:
    try:
        return _DatabaseOnly().database.url.get_secret_value()  # type: ignore[call-arg]
    except (ValidationError, OSError, ValueError) as error:
        fix = "set REEMBED_DATABASE__URL, or name a JSON or TOML file in REEMBED_CONFIG"
        raise CliError(Exit.USAGE, "settings: " + "; ".join(problems(error)), fix) from None


def deployment_policy() -> Policy:
    """What admission would check; says so when an allow-list itself is wrong."""
    try:
        return Settings().policy()  # type: ignore[call-arg]
    except (ValidationError, OSError, ValueError) as error:
        raise CliError(Exit.USAGE, "settings: " + "; ".join(problems(error)), FIX) from None
