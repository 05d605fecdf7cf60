"""`reembed request`: look, wait, validate, and orders that concern a whole request."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

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
from controller.commands.exits import Exit
from controller.commands.messages import as_event, read_text
from controller.commands.settings import deployment_policy
from controller.commands.terminal import Format, OutputOption, YesOption, confirm, put_record, put_rows, say
from controller.commands.validation import FORBIDDEN, Judgement, judge
from controller.commands.waiting import (
    IntervalOption,
    TimeoutOption,
    finish,
    operation_verdict,
    wait_for_operation,
    wait_for_request,
)
from schema.states import RequestState

app = typer.Typer(help="Requests: look, wait, order, validate.", no_args_is_help=True)

COLUMNS = ("id", "tenant", "model", "state", "assets", "shards", "created_at", "reason")
EVENT_COLUMNS = ("created_at", "type", "id")
AUDIT_COLUMNS = ("at", "actor", "action", "target", "reason", "detail")
FAULT_COLUMNS = ("field", "problem", "fix", "code")

RequestArgument = Annotated[str, typer.Argument(metavar="REQUEST", help="Request id, such as r-0123456789abcdef0123.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until the order was carried out.")]


@app.command("list")
def list_requests(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    state: Annotated[list[RequestState] | None, typer.Option(help="Only in this state; repeat it.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """List requests, newest first.

    \b
    Examples:
      reembed request list --state attention
      reembed request list --tenant search -o json | jq -r '.[].id'
    """
    states = [one.value for one in state] if state else None
    with connect(url, token_file) as api:
        rows = list(api.every("requests", cursor="before", limit=limit, tenant=tenant, state=states))
    put_rows(rows, COLUMNS, output)
    if len(rows) == limit:
        say(f"{limit} shown; --limit shows more")


@app.command("show")
def show_request(
    request: RequestArgument,
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """Show a request with its progress.

    \b
    Examples:
      reembed request show r-0123456789abcdef0123
    """
    with connect(url, token_file) as api:
        put_record(api.get("requests", request), output)


@app.command("events")
def list_events(
    request: RequestArgument,
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """List the status events sent to upstream.

    \b
    Examples:
      reembed request events r-0123456789abcdef0123
    """
    with connect(url, token_file) as api:
        put_rows(api.get("requests", request, "events", limit=500), EVENT_COLUMNS, output)


@app.command("audit")
def list_audit(
    request: RequestArgument,
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """List what operators did to a request.

    Newest first: who, what, why.

    \b
    Examples:
      reembed request audit r-0123456789abcdef0123
    """
    with connect(url, token_file) as api:
        put_rows(api.get("requests", request, "audit", limit=500), AUDIT_COLUMNS, output)


@app.command("wait")
def wait_request(
    request: RequestArgument,
    timeout: TimeoutOption = 0,
    interval: IntervalOption = 2.0,
    through_attention: Annotated[
        bool, typer.Option("--through-attention", help="Keep waiting while an operator is needed.")
    ] = False,
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """Wait until a request is over, with progress on stderr.

    Exit code 0: succeeded; 6: succeeded with accepted gaps; 1: failed, cancelled or in need of an operator;
    3: unknown for a minute (see the reject queue); 7: the time was over first; 130: Ctrl-C, the request goes on.

    \b
    Examples:
      reembed request wait r-0123456789abcdef0123
      reembed request wait r-0123456789abcdef0123 --timeout 3600 -o json
    """
    with connect(url, token_file) as api:
        view = wait_for_request(
            api,
            request,
            timeout_seconds=timeout,
            interval_seconds=interval,
            through_attention=through_attention,
        )
    finish(view, output)


@app.command("validate")
def validate(
    file: Annotated[Path, typer.Argument(help="JSON payload or CloudEvent; - is stdin.")],
    settings: Annotated[
        bool, typer.Option("--settings", help="Check this deployment's tenants, models and queues, too.")
    ] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Check a message offline against the contract.

    No network, no database, nothing is sent. Names everything that is wrong, each with what to change. FILE holds a
    whole CloudEvent, or only the payload of a request.submit. Exit code 0: valid; 2: not valid; 4: valid, but not
    allowed by this deployment (--settings).

    \b
    Examples:
      reembed request validate message.json
      jq .detail event.json | reembed request validate - -o json
    """
    policy = deployment_policy() if settings else None
    found = judge(as_event(read_text(file)), policy, datetime.now(UTC))
    if output is Format.JSON or not found.faults:
        put_record(found.document, output)
    else:
        put_rows(found.document["faults"], FAULT_COLUMNS, output)
    for name in found.ignored:
        say(f"warning: {name} is in no contract and will be ignored")
    raise typer.Exit(_verdict(found))


def _verdict(found: Judgement) -> Exit:
    if not found.faults:
        return Exit.OK
    return Exit.FORBIDDEN if all(fault.code in FORBIDDEN for fault in found.faults) else Exit.USAGE


@app.command("cancel")
def cancel(
    request: RequestArgument,
    reason: ReasonOption,
    yes: YesOption = False,
    wait: WaitOption = False,
    actor: ActorOption = None,
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """Stop a request and what runs of it.

    \b
    Examples:
      reembed request cancel r-0123456789abcdef0123 --reason "wrong model" --wait
    """
    question = f"Cancel request {request} and stop its running work?"
    _order("cancel", question, request, reason, yes, wait, actor, output, url, token_file)


@app.command("accept-failures")
def accept_failures(
    request: RequestArgument,
    reason: ReasonOption,
    yes: YesOption = False,
    wait: WaitOption = False,
    actor: ActorOption = None,
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """Finish a request in attention with gaps.

    Its manifest lists them.

    \b
    Examples:
      reembed request accept-failures r-0123456789abcdef0123 --reason "2 broken files, known"
    """
    question = f"Finish request {request} without its failed shards?"
    _order("accept-failures", question, request, reason, yes, wait, actor, output, url, token_file)


@app.command("fail")
def fail(
    request: RequestArgument,
    reason: ReasonOption,
    yes: YesOption = False,
    wait: WaitOption = False,
    actor: ActorOption = None,
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """Give up a request in attention; a requeue can reopen it.

    \b
    Examples:
      reembed request fail r-0123456789abcdef0123 --reason "source was deleted"
    """
    _order("fail", f"Give up request {request}?", request, reason, yes, wait, actor, output, url, token_file)


@app.command("resume")
def resume(
    request: RequestArgument,
    reason: ReasonOption,
    wait: WaitOption = False,
    actor: ActorOption = None,
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """Go on with a paused request; its cost limit is lifted.

    \b
    Examples:
      reembed request resume r-0123456789abcdef0123 --reason "budget agreed"
    """
    _order("resume", "", request, reason, True, wait, actor, output, url, token_file)


def _order(
    action: str,
    question: str,
    request: str,
    reason: str,
    yes: bool,
    wait: bool,
    actor: str | None,
    output: Format,
    url: str,
    token_file: Path | None,
) -> None:
    confirm(question, yes)
    with connect(url, token_file) as api:
        operation = api.post("requests", request, action, body={"reason": reason}, actor=actor_name(actor))
        if wait:
            operation = wait_for_operation(api, operation)
    put_record(operation, output)
    code = operation_verdict(operation)
    if code is not Exit.OK:
        say(f"operation {operation['id']}: {operation['state']}")
    raise typer.Exit(code)
