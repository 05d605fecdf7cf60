"""ListJobs: which jobs, in which order, on which page. The rules of aws-facts 1.8.

A token carries the sequence number of the last job shown, so a page is stable under new submissions. Filtered
listings lag: a job that is too young is not found by name yet, which is why absence proves nothing.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from deploy.local.batch.errors import ClientError
from deploy.local.batch.model import Job, Kind, Status
from deploy.local.batch.registry import Registry
from deploy.local.batch.validation import refuse_unless

MAX_PAGE = 1000
MAX_FILTERED_PAGE = 100
_Test = Callable[[Job], bool]


def list_jobs(request: Mapping[str, Any], registry: Registry, visible_before_ms: int) -> tuple[list[Job], str | None]:
    """One page and the token for the next. `visible_before_ms` is now minus the lag."""
    places = [request.get(name) for name in ("jobQueue", "arrayJobId", "multiNodeJobId")]
    refuse_unless(
        sum(place is not None for place in places) == 1,
        "Exactly one of jobQueue, arrayJobId and multiNodeJobId must be specified",
    )
    if "jobQueue" in request:
        jobs, filtered = _of_queue(request, registry, visible_before_ms)
        descending = True
    else:
        jobs, filtered = _of_parent(request, registry), False
        descending = False
    max_page = MAX_FILTERED_PAGE if filtered else MAX_PAGE
    page_size = request.get("maxResults", max_page)
    refuse_unless(page_size >= 1, "maxResults must be at least 1")
    page_size = min(page_size, max_page)
    if (after := _decode(request.get("nextToken"))) is not None:
        jobs = (job for job in jobs if (job.sequence < after if descending else job.sequence > after))
    page = list(islice(jobs, page_size + 1))
    if len(page) <= page_size:
        return page, None
    return page[:page_size], _encode(page[page_size - 1].sequence)


def _of_queue(request: Mapping[str, Any], registry: Registry, visible_before_ms: int) -> tuple[Iterable[Job], bool]:
    queue = registry.queue(request["jobQueue"])
    if queue is None:
        raise ClientError(f"JobQueue {request['jobQueue']} not found.")
    jobs = (job for job in registry.top_level() if job.spec.queue is queue)
    filters = request.get("filters", ())
    if not filters:
        return _with_status(jobs, request), False
    refuse_unless(len(filters) == 1, "Only one filter can be used at a time")
    name, values = filters[0].get("name"), filters[0].get("values", [])
    refuse_unless(values, f"Filter {name} needs values")
    matches = _test(name, values)
    jobs = (job for job in jobs if job.created_ms <= visible_before_ms and matches(job))
    if name == "SHARE_IDENTIFIER" and "jobStatus" in request:
        return _with_status(jobs, request), True
    return jobs, True


def _of_parent(request: Mapping[str, Any], registry: Registry) -> Iterable[Job]:
    """Children or nodes by index. Filters do not apply to them, so they change nothing."""
    job_id = request.get("arrayJobId") or request["multiNodeJobId"]
    kind = Kind.ARRAY if "arrayJobId" in request else Kind.MULTI_NODE
    parent = registry.job(job_id)
    if parent is None or parent.kind is not kind:
        raise ClientError(f"Job {job_id} does not exist or has another type")
    return _with_status(parent.members, request)


def _with_status(jobs: Iterable[Job], request: Mapping[str, Any]) -> Iterable[Job]:
    wanted = request.get("jobStatus", Status.RUNNING.value)
    refuse_unless(wanted in set(Status), f"Invalid jobStatus {wanted}")
    return (job for job in jobs if job.status.value == wanted)


def _test(name: str | None, values: list[str]) -> _Test:
    match name:
        case "JOB_NAME":
            return lambda job: any(_glob(value.lower(), job.spec.name.lower()) for value in values)
        case "JOB_DEFINITION":
            return lambda job: any(_is_definition(value, job) for value in values)
        case "BEFORE_CREATED_AT":
            before_ms = _milliseconds(values[0])
            return lambda job: job.created_ms < before_ms
        case "AFTER_CREATED_AT":
            after_ms = _milliseconds(values[0])
            return lambda job: job.created_ms > after_ms
        case "SHARE_IDENTIFIER":
            return lambda job: job.spec.share_identifier in values
    raise ClientError(f"Invalid filter {name}")


def _is_definition(value: str, job: Job) -> bool:
    definition = job.spec.definition
    if value.startswith("arn:"):
        return value == definition.arn
    return _glob(value, definition.name)


def _glob(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


def _milliseconds(value: str) -> int:
    refuse_unless(value.isdigit(), f"Not a time in milliseconds: {value!r}")
    return int(value)


def _encode(sequence: int) -> str:
    return base64.urlsafe_b64encode(str(sequence).encode()).decode()


def _decode(token: str | None) -> int | None:
    if token is None:
        return None
    try:
        return int(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, binascii.Error):
        raise ClientError("Invalid nextToken") from None
