"""A worker that dies at armed crash points: the product's entry point with its ways out wrapped.

`python -m tests.chaos.worker` runs in containers of the chaos tests instead of `worker.main`. A point in a rank kills
the whole container, as a lost host would.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tests.chaos.firing import index_operations, pass_by
from worker import channel, main
from worker.reporting import Reporter

#: The object of a key: what the kind of job in the point's name writes there.
_OBJECTS = {
    "prepare.shard": re.compile(r"/plan/.*\.shard$"),
    "prepare.plan": re.compile(r"/plan\.json$"),
    "infer.marker": re.compile(r"/commits/"),
    "index.failures": re.compile(r"/failures\.parquet$"),
    "index.manifest": re.compile(r"/manifest\.json$"),
}
_s3_client, _sqs_client, _start, _run_job = main.s3_client, main.sqs_client, channel.start, main.run_job
_kind = "unknown"


def watch(client: Any, operation: str, name_of: Callable[[dict[str, Any]], str | None]) -> Any:
    """Pass the point that `name_of` gives for the parameters of a call, before and after it."""

    def before(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        context["point"] = name_of(params)
        if context["point"]:
            pass_by(f"worker.{context['point']}:before")

    def after(context: dict[str, Any], **_: Any) -> None:
        if context.get("point"):
            pass_by(f"worker.{context['point']}:after")

    client.meta.events.register(f"before-parameter-build.{operation}", before)
    client.meta.events.register(f"after-call.{operation}", after)
    return client


def _object_of(params: dict[str, Any]) -> str | None:
    return next((name for name, pattern in _OBJECTS.items() if pattern.search(params["Key"])), None)


def _assignment_of(params: dict[str, Any]) -> str | None:
    return "assignment" if params["Key"].startswith("assignments/") else None


def _report_of(params: dict[str, Any]) -> str | None:
    return f"{_kind}.report_{json.loads(params['MessageBody'])['data']['kind']}"


def s3_client() -> Any:
    return watch(watch(_s3_client(), "s3.PutObject", _object_of), "s3.GetObject", _assignment_of)


def sqs_client() -> Any:
    return watch(_sqs_client(), "sqs.SendMessage", _report_of)


class KindlyReporter(Reporter):
    """Tells the points which kind of job reports."""

    def __init__(self, sqs: Any, assignment: Any, entry: Any, batch: Any) -> None:
        global _kind
        _kind = assignment.kind
        super().__init__(sqs, assignment, entry, batch)


def run_job(assignment: Any, entry: Any, context: Any) -> Any:
    if assignment.kind == "index":
        wrap_index()
    return _run_job(assignment, entry, context)


def wrap_index() -> None:
    from worker.index.pgvector import PgvectorWriter

    for name in index_operations():
        setattr(PgvectorWriter, name, _passing(f"worker.index.{name}", getattr(PgvectorWriter, name)))


def _passing(point: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def passing(*arguments: Any, **named: Any) -> Any:
        pass_by(f"{point}:before")
        answer = call(*arguments, **named)
        pass_by(f"{point}:after")
        return answer

    return passing


def start(module: str, descriptors: Any = ()) -> Any:
    return _start("tests.chaos.rank" if module == "worker.rank" else module, descriptors)


def run() -> None:
    main.s3_client, main.sqs_client, main.run_job = s3_client, sqs_client, run_job
    main.Reporter = KindlyReporter  # type: ignore[misc]
    channel.start = start
    main.main()


if __name__ == "__main__":
    run()
