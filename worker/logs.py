"""One JSON object a line on stdout, with the ids of request, shard and attempt on every line.

The standard library's logging, not structlog: a rank starts up to ten interpreters, and each import is paid for in all.
Fields given as `extra=` become fields of the line.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _JsonLine(logging.Formatter):
    def __init__(self, fields: dict[str, object]) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            **self._fields,
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=True)


def configure(**fields: object) -> None:
    """Send all logging to stdout as JSON lines; `fields` (None left out) stand on every line."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_JsonLine({name: value for name, value in fields.items() if value is not None}))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("botocore").setLevel(logging.WARNING)
