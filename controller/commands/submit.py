"""`reembed submit`: send a request, and wait for it if wanted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from controller.commands.connection import DEFAULT_URL, TokenFileOption, UrlOption, connect
from controller.commands.exits import CliError, Exit
from controller.commands.messages import from_flags, payload_of, read_text
from controller.commands.terminal import Format, OutputOption, put_record
from controller.commands.waiting import IntervalOption, TimeoutOption, finish, wait_for_request


def submit(
    file: Annotated[
        Path | None, typer.Argument(help="JSON payload or CloudEvent of request.submit; - is stdin.", metavar="FILE")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Who asks.")] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key: your own name for the request.")] = None,
    source: Annotated[
        str | None, typer.Option(help="s3://bucket/prefix/, or a manifest s3://bucket/file.parquet or .csv.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="name@version.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="s3://bucket/prefix for the Parquet output.")] = None,
    index: Annotated[str | None, typer.Option(help="Search alias to switch when it is done.")] = None,
    priority: Annotated[int | None, typer.Option(help="-100 to 100; higher goes first.")] = None,
    deadline: Annotated[str | None, typer.Option(help="RFC 3339 time with an offset; orders work.")] = None,
    max_cost_usd: Annotated[float | None, typer.Option(help="Pause when the forecast exceeds this.")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Share of bad assets a shard may have, 0 to 1; default 0.05.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Type of the stored vectors: float16 (default) or float32.")] = None,
    mode: Annotated[str | None, typer.Option(help="array (default) or multi_node.")] = None,
    queue: Annotated[list[str] | None, typer.Option(help="GPU queue, preferred first; repeat it.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="name=value, returned in status events; repeat it.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what submitting would say.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Then wait as `request wait` does.")] = False,
    timeout: TimeoutOption = 0,
    interval: IntervalOption = 2.0,
    output: OutputOption = Format.TABLE,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
) -> None:
    """Submit a request; sending it twice is safe.

    From a FILE or from flags. The message goes through the same queue as everybody's. What admission would refuse is
    refused here at once, with the field and what to change. With --wait the exit code is that of `request wait`.

    \b
    Examples:
      reembed submit request.json --wait
      reembed submit --tenant search --key stock-2026-12 --source s3://stock/images/ --model clip-l@3 \\
          --to s3://embeddings/search/stock --index photos
      reembed submit request.json --dry-run -o json
    """
    flags: dict[str, Any] = {
        "tenant": tenant,
        "key": key,
        "source": source,
        "model": model,
        "output": to,
        "dtype": dtype,
        "labels": label or None,
        "index": index,
        "priority": priority,
        "deadline": deadline,
        "max_cost_usd": max_cost_usd,
        "tolerance": tolerance,
        "mode": mode,
        "queues": queue or None,
    }
    body = from_flags(**flags) if file is None else _from_file(file, flags)
    with connect(url, token_file) as api:
        answer = api.post("requests", *(["validate"] if dry_run else []), body=body)
        if dry_run or not wait:
            put_record(answer, output)
            return
        view = wait_for_request(
            api,
            answer["request_id"],
            timeout_seconds=timeout,
            interval_seconds=interval,
            through_attention=False,
        )
    finish(view, output)


def _from_file(file: Path, flags: Mapping[str, Any]) -> str:
    if any(value is not None for value in flags.values()):
        raise CliError(Exit.USAGE, "a FILE and flags of the message", "change the file, or give flags alone")
    return payload_of(read_text(file))
