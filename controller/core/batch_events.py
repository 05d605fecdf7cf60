"""Messages of the queue that EventBridge fills with Batch's events → facts. Pure, and never raises.

It reads the two kinds that matter here, `Batch Job State Change` (parents and children alike) and `Batch Job Queue
Blocked`; anything else, and anything broken, is None, for the loop to delete and count. An event is a hint and no more:
events come late, twice, out of order or not at all, so whoever acts on a view must not let an older status undo a
terminal one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, cast

from controller.core.facts import JobView, QueueBlocked
from controller.core.job_views import Document, job_view, queue_name, text

SOURCE = "aws.batch"


class DetailType(StrEnum):
    """The `detail-type`s that are read."""

    JOB_STATE_CHANGE = "Batch Job State Change"
    JOB_QUEUE_BLOCKED = "Batch Job Queue Blocked"


def parse_event(body: str) -> JobView | QueueBlocked | None:
    """The fact in one SQS message body; None for a foreign, unknown or unreadable one."""
    envelope = _object(body)
    if envelope.get("source") != SOURCE:
        return None
    detail = envelope.get("detail")
    if not isinstance(detail, dict):
        return None
    document = cast("Document", detail)
    match envelope.get("detail-type"):
        case DetailType.JOB_STATE_CHANGE:
            return job_view(document)
        case DetailType.JOB_QUEUE_BLOCKED:
            return _queue_blocked(document)
        case _:
            return None


def _queue_blocked(detail: Document) -> QueueBlocked | None:
    queue, reason = text(detail.get("jobQueue")), text(detail.get("statusReason"))
    if not queue or not reason:
        return None
    return QueueBlocked(queue=queue_name(queue), reason=reason)


def _object(body: str) -> Mapping[str, Any]:
    try:
        parsed: object = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return cast("Mapping[str, Any]", parsed) if isinstance(parsed, dict) else {}
