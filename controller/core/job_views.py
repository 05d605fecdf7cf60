"""Batch's job documents → `JobView`. Pure; one reader for DescribeJobs, ListJobs and the detail of an event.

The three documents are nearly one shape with different holes: a summary names no queue, an event writes ARNs, a job
that never started has no container, a reclaimed one no exit code. So everything but id and status is optional here,
and a field of an unexpected type counts as absent. Nothing raises for its input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from controller.core.facts import JobView

_MAX_EPOCH_MILLISECONDS = 253_402_300_799_000  # the last second of the year 9999, where datetime ends
_MAX_CODE = 2**31

Document = Mapping[str, Any]


def job_view(detail: Document, *, queue: str = "") -> JobView | None:
    """A view of one job document, or None when it does not even name a job and its status.

    `queue` is used where the document names none.
    """
    job_id, status = text(detail.get("jobId")), text(detail.get("status"))
    if not job_id or not status:
        return None
    array = _mapping(detail.get("arrayProperties"))
    exit_code, container_reason = _container_end(detail)
    return JobView(
        batch_job_id=job_id,
        name=text(detail.get("jobName")) or "",
        queue=queue_name(text(detail.get("jobQueue")) or queue),
        status=status,
        status_reason=_status_reason(detail),
        container_reason=container_reason,
        exit_code=exit_code,
        created_at=_moment(detail.get("createdAt")),
        started_at=_moment(detail.get("startedAt")),
        stopped_at=_moment(detail.get("stoppedAt")),
        is_cancelled=detail.get("isCancelled") is True,
        array_size=_integer(array.get("size")),
        status_summary=_counts(array.get("statusSummary")),
    )


def queue_name(name_or_arn: str) -> str:
    """`arn:aws:batch:<region>:<account>:job-queue/<name>` → `<name>`; a bare name stays."""
    return name_or_arn.rpartition("/")[2] if name_or_arn.startswith("arn:") else name_or_arn


def text(value: object) -> str | None:
    """A string that Postgres and UTF-8 can hold: JSON escapes can spell NUL and lone surrogates."""
    if not isinstance(value, str):
        return None
    return value.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def _container_end(detail: Document) -> tuple[int | None, str | None]:
    """Exit code and container reason of the last attempt; of the job itself while Batch lists no attempt."""
    attempts = _sequence(detail.get("attempts"))
    last = _mapping(attempts[-1]) if attempts else detail
    container = _main_container(last)
    return _integer(container.get("exitCode")), text(container.get("reason"))


def _main_container(run: Document) -> Document:
    """The one container, or the first of several that ended badly, or the first of several."""
    single = _mapping(run.get("container"))
    if single:
        return single
    tasks = _sequence(run.get("taskProperties")) or _sequence(_mapping(run.get("ecsProperties")).get("taskProperties"))
    containers = [_mapping(item) for task in tasks for item in _sequence(_mapping(task).get("containers"))]
    failed = [container for container in containers if container.get("exitCode")]
    return (failed or containers or [_mapping(None)])[0]


def _status_reason(detail: Document) -> str | None:
    own = text(detail.get("statusReason"))
    attempts = _sequence(detail.get("attempts"))
    return own or (text(_mapping(attempts[-1]).get("statusReason")) if attempts else None)


def _moment(value: object) -> datetime | None:
    """Epoch milliseconds → UTC; zero is Batch's way to say not yet."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MAX_EPOCH_MILLISECONDS:
        return None
    seconds, milliseconds = divmod(value, 1000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=milliseconds * 1000)


def _integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not -_MAX_CODE <= value < _MAX_CODE:
        return None
    return value


def _counts(value: object) -> Mapping[str, int]:
    counted = {status: _integer(count) for status, count in _mapping(value).items()}
    return {status: count for status, count in counted.items() if count is not None}


def _mapping(value: object) -> Document:
    return cast("Document", value) if isinstance(value, Mapping) else {}


def _sequence(value: object) -> Sequence[object]:
    return cast("Sequence[object]", value) if isinstance(value, list) else ()
