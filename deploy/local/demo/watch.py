"""Live progress of one request, read from the REST API as any user of it could.

On a terminal a bar and a table; elsewhere a line whenever something has changed, at most one in five seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

LINE_SECONDS = 5.0
STATES = ("pending", "assigned", "running", "committed", "failed")


class ProgressView:
    """Shows what `update` is given."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("assets"),
            TaskProgressColumn(),
            TimeElapsedColumn(),
        )
        self._task = self._bar.add_task("waiting", total=None)
        self._live: Live | None = None
        self._line, self._line_at = "", 0.0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """A live display inside the block where there is a terminal."""
        if not self._console.is_terminal:
            yield
            return
        with Live(self._bar, console=self._console, refresh_per_second=8) as self._live:
            yield

    def update(self, request: dict[str, Any], queues: list[dict[str, Any]]) -> None:
        """`request` and `queues` as the API shows them."""
        progress = request["progress"]
        done = progress["done"]
        self._bar.update(self._task, description=request["state"], completed=done, total=progress["assets"] or None)
        if self._live is not None:
            self._live.update(Group(self._bar, _shards(request), _queues(queues)))
            return
        states = ", ".join(f"{count} {state}" for state, count in request["shard_states"].items() if count)
        line = f"{request['state']}: {done}/{progress['assets'] or '?'} assets; shards: {states or 'not planned yet'}"
        if line != self._line and time.monotonic() - self._line_at >= LINE_SECONDS:
            self._line, self._line_at = line, time.monotonic()
            self._console.print(line, highlight=False)


def _shards(request: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for state in request["shard_states"]:
        table.add_column(state, justify="right")
    table.add_row(*(str(count) for count in request["shard_states"].values()))
    ended = ", ".join(f"{count} {outcome}" for outcome, count in request["outcomes"].items())
    table.title = f"shards; attempts ended: {ended or 'none yet'}"
    table.title_justify = "left"
    return table


def _queues(queues: list[dict[str, Any]]) -> Table:
    table = Table("queue", "circuit", "queued", "running", "why blocked", box=None, pad_edge=False)
    for queue in queues:
        waiting = queue["submitting"] + queue["queued"]
        table.add_row(
            queue["name"], queue["circuit"], str(waiting), str(queue["running"]), queue["blocked_reason"] or ""
        )
    return table
