"""What outlives the database: a request as an object on S3, and the request that a Batch job's name speaks of.

After a restore to an earlier time the jobs of the forgotten time are still in Batch. Their names lead to the requests
that the database no longer has; plan and commit markers say what of each is done.
"""

from __future__ import annotations

import re
from datetime import datetime

from controller.core.records import Request
from schema.plan import AskedRequest
from schema.states import RequestState

#: As `controller.core.jobs.job_name` makes them.
_NAME = re.compile(r"reembed-(r-[0-9a-f]{20})-[a-z]+-j-[0-9a-f]{20}")


def request_of(job_name: str) -> str | None:
    """The request id in the name of a job of ours."""
    match = _NAME.fullmatch(job_name)
    return None if match is None else match[1]


def asked(request: Request) -> AskedRequest:
    return AskedRequest(
        request_id=request.id,
        tenant=request.tenant,
        idempotency_key=request.idempotency_key,
        body_digest=request.body_digest,
        body=dict(request.body),
        created_at=request.created_at,
        priority=request.priority,
        deadline=request.deadline,
    )


def remembered(document: AskedRequest, now: datetime) -> Request:
    """The request from its beginning: its plan and its commits are found on the way."""
    return Request(
        id=document.request_id,
        tenant=document.tenant,
        idempotency_key=document.idempotency_key,
        body_digest=document.body_digest,
        body=document.body,
        state=RequestState.ACCEPTED,
        created_at=document.created_at,
        updated_at=now,
        priority=document.priority,
        deadline=document.deadline,
    )
