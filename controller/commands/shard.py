"""`reembed shard`, `attempt`, `operation` and `queue`: what failed, why, and run it again."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from controller.commands.connection import (
    DEFAULT_URL,
    ActorOption,
    ReasonOption,
    TokenFileOption,
    UrlOption,
    actor_name,
    connect,
)
from controller.commands.exits import CliError, Exit
from controller.commands.request import RequestArgument, WaitOption
from controller.commands.terminal import Format, OutputOption, YesOption, confirm, put_json, put_record, put_rows, say
from controller.commands.waiting import operation_verdict, wait_for_operation
from schema.states import Outcome, ShardState

app = typer.Typer(help="Shards of a request: list, show, requeue.", no_args_is_help=True)
attempts = typer.Typer(help="Attempts: show one, explain its end.", no_args_is_help=True)
operations = typer.Typer(help="Orders of operators.", no_args_is_help=True)
queues = typer.Typer(help="GPU queues.", no_args_is_help=True)

COLUMNS = ("shard", "state", "last_outcome", "last_queue", "generation", "assets", "ok", "bad", "reason")
ATTEMPT_COLUMNS = ("id", "generation", "queue", "state", "outcome", "started_at", "ended_at", "reason")
FACT_COLUMNS = ("at", "source", "fact")
QUEUE_COLUMNS = ("name", "circuit", "running", "queued", "submitting", "max_live", "blocked_reason", "retry_at")

AttemptArgument = Annotated[str, typer.Argument(metavar="ATTEMPT", help="Attempt id, such as a-0123456789abcdef0123.")]


@app.command("list")
def list_shards(
    request: RequestArgument,
    state: Annotated[list[ShardState] | None, typer.Option(help="Only in this state; repeat it.")] = None,
    outcome: Annotated[Outcome | None, typer.Option(help="Only where the last attempt ended so.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    every: Annotated[bool, typer.Option("--all", help="All of them, however many.")] = False,
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """List shards by number.

    \b
    Examples:
      reembed shard list r-0123456789abcdef0123 --state failed
      reembed shard list r-0123456789abcdef0123 --outcome crashed --all -o json
    """
    query: dict[str, Any] = {
        "state": [one.value for one in state] if state else None,
        "outcome": outcome.value if outcome else None,
    }
    with connect(url, token_file) as api:
        bound = None if every else limit
        rows = list(api.every("requests", request, "shards", cursor="after", limit=bound, **query))
    put_rows(rows, COLUMNS, output)
    if not every and len(rows) == limit:
        say(f"{limit} shown; --all or a higher --limit shows more")


@app.command("show")
def show_shard(
    request: RequestArgument,
    shard: Annotated[int, typer.Argument(min=0, help="Number of the shard.")],
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """Show a shard and every attempt at it.

    \b
    Examples:
      reembed shard show r-0123456789abcdef0123 17
    """
    with connect(url, token_file) as api:
        view = api.get("requests", request, "shards", shard)
    put_record(view, output, leave_out=("attempts",))
    if output is Format.TABLE:
        put_rows(view["attempts"], ATTEMPT_COLUMNS, output)


@app.command("requeue")
def requeue(
    request: RequestArgument,
    reason: ReasonOption,
    shard: Annotated[list[int] | None, typer.Option(min=0, help="This shard; repeat it.")] = None,
    outcome: Annotated[Outcome | None, typer.Option(help="Failed shards whose last attempt ended so.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Every failed shard.")] = False,
    queue: Annotated[str | None, typer.Option(help="Put this queue first in the request's order from now on.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what matches.")] = False,
    yes: YesOption = False,
    wait: WaitOption = False,
    actor: ActorOption = None,
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """Run failed shards again.

    With fresh budgets; finished chunks are kept. Counts what matches and asks first. Choose with exactly one of
    --shard, --outcome and --failed. With --wait, exit code 6 says that some shards had moved on and were skipped.

    \b
    Examples:
      reembed shard requeue r-0123456789abcdef0123 --failed --reason "images were repaired" --dry-run
      reembed shard requeue r-0123456789abcdef0123 --outcome spot_reclaimed --queue on-demand --reason "spot is dry" -y
    """
    body: dict[str, Any] = {"selector": _selector(shard, outcome, failed), "reason": reason, "queue": queue}
    path = ("requests", request, "shards", "requeue")
    with connect(url, token_file) as api:
        if dry_run or not yes:
            preview = api.post(*path, body={**body, "dry_run": True})["preview"]
            if dry_run:
                put_record(preview, output)
                return
            confirm(_question(preview, request, queue), yes)
        operation = api.post(*path, body=body, actor=actor_name(actor))["operation"]
        if wait:
            operation = wait_for_operation(api, operation)
    put_record(operation, output)
    code = operation_verdict(operation)
    if code is Exit.PARTIAL:
        say(f"{operation['moved']} requeued, {operation['skipped']} skipped: they had moved on")
    raise typer.Exit(code)


def _selector(shard: list[int] | None, outcome: Outcome | None, failed: bool) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    if shard:
        chosen["shards"] = shard
    if outcome is not None:
        chosen["outcome"] = outcome.value
    if failed:
        chosen["state"] = ShardState.FAILED.value
    if len(chosen) != 1:
        raise CliError(Exit.USAGE, "which shards?", "give exactly one of --shard, --outcome and --failed")
    return chosen


def _question(preview: dict[str, Any], request: str, queue: str | None) -> str:
    on = f", {queue} first" if queue else ""
    if preview["prepares_again"]:
        return f"Nothing of request {request} was planned. Run its preparation again{on}?"
    count = f"{preview['eligible']}" if preview["exact"] else f"at least {preview['eligible']}"
    skipped = ", ".join(f"{number} {state}" for state, number in preview["skipped"].items())
    apart = f" (skipped: {skipped})" if skipped else ""
    return f"Requeue {count} failed shards of request {request}{on}{apart}?"


@attempts.command("show")
def show_attempt(
    attempt: AttemptArgument,
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """Show all that is on record of an attempt.

    \b
    Examples:
      reembed attempt show a-0123456789abcdef0123
    """
    with connect(url, token_file) as api:
        put_record(api.get("attempts", attempt), output)


@attempts.command("explain")
def explain_attempt(
    attempt: AttemptArgument,
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """Explain how an attempt came to its end.

    The chain of facts and reasons, in order.

    \b
    Examples:
      reembed attempt explain a-0123456789abcdef0123
    """
    with connect(url, token_file) as api:
        explanation = api.get("attempts", attempt, "explain")
    if output is Format.JSON:
        put_json(explanation)
    else:
        put_rows(explanation["facts"], FACT_COLUMNS, output)


@operations.command("show")
def show_operation(
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="Operation id, as an order printed it.")],
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """Show an order and how far it has come.

    \b
    Examples:
      reembed operation show o-0123456789abcdef0123 -o json
    """
    with connect(url, token_file) as api:
        put_record(api.get("operations", operation), output)


@queues.command("list")
def list_queues(
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """List GPU queues with circuit and load.

    In order of preference.

    \b
    Examples:
      reembed queue list
    """
    with connect(url, token_file) as api:
        put_rows(api.get("queues"), QUEUE_COLUMNS, output)
