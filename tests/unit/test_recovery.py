"""A request survives the database as an object on S3, found by the names of its jobs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from controller.core.jobs import job_name
from controller.core.recovery import asked, remembered, request_of
from schema.plan import AskedRequest
from schema.states import JobKind, RequestState
from tests.builders import NOW, request

REQUEST, JOB = "r-0123456789abcdef0123", "j-fedcba9876543210fedc"


@pytest.mark.parametrize("kind", JobKind)
def test_a_job_name_names_its_request(kind: JobKind) -> None:
    assert request_of(job_name(REQUEST, kind, JOB)) == REQUEST


@pytest.mark.parametrize("name", ["reembed-r-1-infer-j-1", f"somebody-{REQUEST}-infer-{JOB}", f"reembed-{REQUEST}"])
def test_other_names_name_none(name: str) -> None:
    assert request_of(name) is None


def test_it_comes_back_as_it_was_asked() -> None:
    before = request(state=RequestState.RUNNING, priority=7, deadline=NOW + timedelta(days=1))
    later = NOW + timedelta(hours=1)
    after = remembered(AskedRequest.model_validate_json(asked(before).to_bytes()), later)
    assert (after.state, after.updated_at) == (RequestState.ACCEPTED, later)
    for name in ("id", "tenant", "idempotency_key", "body_digest", "body", "created_at", "priority", "deadline"):
        assert getattr(after, name) == getattr(before, name), name
