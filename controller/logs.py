"""Structured logs on stdout: one JSON object a line, or coloured text where a person watches (a TTY).

Ids of request, shard and attempt that are bound with `bound(...)` stand on every line of the task that bound them.
Lines of libraries (uvicorn, botocore) go through the same pipe. Fields named like a secret, and passwords inside
URLs, are blanked before anything is rendered, whoever logged them.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog

BLANK = "***"
_SECRET_FIELD = re.compile(r"(^|_)(token|tokens|secret|secrets|password|authorization|credentials|cookie)$", re.I)
_URL_PASSWORD = re.compile(r"(?P<before>[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+@", re.I)
_BEARER = re.compile(r"\b(?P<before>bearer\s+)\S+", re.I)
_DEPTH = 6


def configure(level: str = "info", *, json: bool | None = None) -> None:
    """Send everything to stdout. `json` None: text on a TTY, JSON anywhere else."""
    as_json = not sys.stdout.isatty() if json is None else json
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(as_json)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
    for name in ("botocore", "aiobotocore", "urllib3", "httpx", "asyncio", "alembic"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))


@contextmanager
def bound(**ids: object) -> Iterator[None]:
    """Put ids (request_id, shard, attempt_id; None is left out) on every line logged inside."""
    with structlog.contextvars.bound_contextvars(**{name: value for name, value in ids.items() if value is not None}):
        yield


def _rendering(as_json: bool) -> list[structlog.typing.Processor]:
    if not as_json:
        return [redact, structlog.dev.ConsoleRenderer()]
    return [
        structlog.processors.dict_tracebacks,
        redact,
        structlog.processors.JSONRenderer(default=str, ensure_ascii=True),
    ]


def redact(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Blank secrets by the name of their field, and passwords in URLs wherever they stand."""
    for name, value in event.items():
        event[name] = BLANK if _SECRET_FIELD.search(str(name)) and value is not None else _clean(value, _DEPTH)
    return event


def _clean(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _BEARER.sub(rf"\g<before>{BLANK}", _URL_PASSWORD.sub(rf"\g<before>{BLANK}@", value))
    if depth and isinstance(value, dict):
        return {
            name: BLANK if _SECRET_FIELD.search(str(name)) and inner is not None else _clean(inner, depth - 1)
            for name, inner in value.items()
        }
    if depth and isinstance(value, list | tuple):
        return [_clean(inner, depth - 1) for inner in value]
    return value
