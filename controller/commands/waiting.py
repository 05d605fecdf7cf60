"""Waiting for a request or an operation to end, with progress on stderr: a bar on a terminal, lines elsewhere.

A controller that is away for a while does not end a wait; the clock does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from controller.commands.connection import Api
from controller.commands.exits import CliError, Exit, Unanswered
from controller.commands.terminal import Format, put_record, say
from schema.states import REQUEST_TERMINAL, RequestState

#: A request is known once intake has read its message; one that was refused never is.
UNKNOWN_SECONDS = 60.0
#: How long no answer at all is borne.
SILENCE_SECONDS = 120.0
OPERATION_SECONDS = 120.0
#: Between lines of progress where there is no terminal.
LINE_SECONDS = 10.0

TimeoutOption = Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait at most; 0 waits for ever.")]
IntervalOption = Annotated[float, typer.Option("--interval", min=0.05, help="Seconds between looks.")]

Show = Callable[[dict[str, Any]], None]


def wait_for_request(
    api: Api, request_id: str, *, timeout_seconds: float, interval_seconds: float, through_attention: bool
) -> dict[str, Any]:
    """The request's last view: over, or in attention unless that is waited through. CliError TIMEOUT otherwise."""
    try:
        say(f"waiting for request {request_id}; Ctrl-C leaves it running")
        with _progress() as show:
            for view in _views(api, request_id, timeout_seconds, interval_seconds):
                show(view)
                state = RequestState(view["state"])
                if state in REQUEST_TERMINAL or (state is RequestState.ATTENTION and not through_attention):
                    return view
    except KeyboardInterrupt:
        fix = f"`reembed request wait {request_id}` waits again, `reembed request cancel {request_id}` stops it"
        raise CliError(Exit.INTERRUPTED, f"no longer waiting; request {request_id} goes on", fix) from None
    raise AssertionError("the polling ends with an error or an answer")


def verdict(view: dict[str, Any]) -> Exit:
    """Of a request that was waited for: accepted gaps are a partial success, attention and failure none."""
    if view["state"] != RequestState.SUCCEEDED:
        return Exit.FAILED
    return Exit.PARTIAL if view["progress"]["shards_done"] < view["shards"] else Exit.OK


def finish(view: dict[str, Any], output: Format) -> NoReturn:
    """Print the request that was waited for, and exit by its state."""
    put_record(view, output, leave_out=("body",))
    code = verdict(view)
    if view["state"] == RequestState.ATTENTION:
        say(f"it needs an operator: {view['reason']}; see `reembed shard list {view['id']} --state failed`")
    raise typer.Exit(code)


def wait_for_operation(api: Api, operation: dict[str, Any], interval_seconds: float = 0.5) -> dict[str, Any]:
    """The operation once it was carried out."""
    deadline = time.monotonic() + OPERATION_SECONDS
    while operation["state"] == "pending":
        if time.monotonic() >= deadline:
            fix = f"see `reembed operation show {operation['id']}`; does a controller lead?"
            raise CliError(Exit.TIMEOUT, f"operation {operation['id']} is still pending", fix)
        time.sleep(interval_seconds)
        operation = api.get("operations", operation["id"])
    return operation


def operation_verdict(operation: dict[str, Any]) -> Exit:
    if operation["state"] == "pending":
        return Exit.OK
    if operation["state"] == "refused" or not operation["moved"]:
        return Exit.CONFLICT
    return Exit.PARTIAL if operation["skipped"] else Exit.OK


def _views(api: Api, request_id: str, timeout_seconds: float, interval_seconds: float) -> Iterator[dict[str, Any]]:
    """Polls. Once there was an answer, none at all is borne for a while."""
    began = time.monotonic()
    heard: float | None = None
    silent = False
    while True:
        try:
            view = api.get("requests", request_id)
            heard, silent = time.monotonic(), False
            yield view
        except Unanswered as error:
            if heard is None or time.monotonic() - heard >= SILENCE_SECONDS:
                raise
            if not silent:
                say(f"{error}; still trying")
            silent = True
        except CliError as error:
            # Asked for just after it was sent, it may not be a row yet.
            if error.code is not Exit.NOT_FOUND:
                raise
            if time.monotonic() - began >= UNKNOWN_SECONDS:
                fix = "check the id; a message that was refused is on the reject queue, with its reason"
                raise CliError(Exit.NOT_FOUND, f"there is no request {request_id}", fix) from error
        if timeout_seconds and time.monotonic() - began >= timeout_seconds:
            fix = "wait again, or look with `reembed request show`; the request goes on"
            raise CliError(Exit.TIMEOUT, f"request {request_id} was not over after {timeout_seconds:g} s", fix)
        time.sleep(interval_seconds)


@contextmanager
def _progress() -> Iterator[Show]:
    if not sys.stderr.isatty():
        yield _lines()
        return
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("waiting", total=None, figures="")

        def show(view: dict[str, Any]) -> None:
            of = view["progress"]
            total = of["assets"] or None
            progress.update(task, description=_state(view), total=total, completed=of["done"], figures=_figures(view))

        yield show


def _lines() -> Show:
    """A line a state, and now and then one of progress in it: logs are kept."""
    told, state, due = "", "", 0.0

    def show(view: dict[str, Any]) -> None:
        nonlocal told, state, due
        line, now = f"{view['id']} {_state(view)}: {_figures(view)}", time.monotonic()
        if line != told and (_state(view) != state or now >= due):
            told, state, due = line, _state(view), now + LINE_SECONDS
            say(line)

    return show


def _state(view: dict[str, Any]) -> str:
    return view["state"] + (" (paused)" if view["paused"] else "")


def _figures(view: dict[str, Any]) -> str:
    of = view["progress"]
    parts = [f"{of['done']}/{of['assets']} assets", f"{of['bad']} bad", f"{of['shards_done']}/{of['shards']} shards"]
    if of["eta_seconds"] is not None:
        parts.append(f"about {_duration(of['eta_seconds'])} left")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
