"""`reembed doctor`: is everything there that the settings name, and what to do about what is not."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import typer
from pydantic import ValidationError

from controller.commands.connection import DEFAULT_URL, TokenFileOption, UrlOption, connect
from controller.commands.exits import CliError, Exit
from controller.commands.extras import needed
from controller.commands.settings import FIX
from controller.commands.terminal import Format, OutputOption, put_rows, say
from controller.settings import Settings, problems

if TYPE_CHECKING:
    from controller.commands.checks import Finding

COLUMNS = ("check", "verdict", "detail", "fix")
HEALTH_SECONDS = 5.0


def doctor(
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """Check everything that the settings name.

    Settings, database, SQS queues, control bucket, Batch queues, job definitions and the API. Reads only. Exit code 0:
    nothing failed (warnings may stand); 1: something did.

    \b
    Examples:
      reembed doctor
      reembed doctor -o json | jq '.[] | select(.verdict == "FAIL")'
    """
    with needed("controller"):
        from controller.commands.checks import Verdict
    findings = [*_configured(), *_api(url, token_file)]
    put_rows([asdict(finding) for finding in findings], COLUMNS, output)
    failed = sum(finding.verdict is Verdict.FAIL for finding in findings)
    if failed:
        say(f"{failed} of {len(findings)} checks failed")
        raise typer.Exit(Exit.FAILED)


def _configured() -> list[Finding]:
    """The settings, and what they name."""
    from controller.commands import checks

    try:
        settings = Settings()  # type: ignore[call-arg]
        settings.policy()
    except (ValidationError, OSError, ValueError) as error:
        return [checks.fail("settings", problem, FIX) for problem in problems(error)]
    read = checks.ok("settings", f"{len(settings.tenants)} tenants, {len(settings.gpu_queues)} GPU queues")

    async def look() -> list[list[Finding]]:
        return await asyncio.gather(checks.database(settings), checks.aws(settings))

    return [read, *(finding for group in asyncio.run(look()) for finding in group)]


def _api(url: str, token_file: Path | None) -> list[Finding]:
    """Health first; then one call that needs the token."""
    from controller.commands import checks

    start = "start it with `reembed controller run`, or say where it is with --url"
    findings = []
    for path in ("livez", "readyz"):
        try:
            answer = httpx.get(f"{url.rstrip('/')}/{path}", timeout=HEALTH_SECONDS)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return [checks.fail("api", f"no answer from {url}: {error}", start)]
        if answer.status_code != 200:
            findings.append(checks.fail(f"api {path}", answer.text[:500], "see the controller's log"))
    try:
        with connect(url, token_file) as api:
            api.get("queues")
    except CliError as error:
        findings.append(checks.fail("api", error.document["detail"], error.document.get("fix", "")))
    return findings or [checks.ok("api", f"{url} is live, ready, and takes our token")]
