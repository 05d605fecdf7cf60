"""Answers of SubmitJob that get lost: adopted where Batch can tell, stopped where a second job came of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.batch_site import BatchTuning
from tests.e2e.site import SHARDS, Site, eventually


def test_a_lost_answer_is_found_and_adopted(site: Site) -> None:
    site.stack.start_controller("one")
    run = site.submit("lost-answer")
    run.until("EXISTS (SELECT 1 FROM attempts WHERE request_id = %(id)s AND kind = 'prepare' AND state = 'running')")
    site.batch_fault(fault="lost_response", count=2)
    run.finished()
    assert site.metric("one", "submissions_total", kind="infer", result="ambiguous") == 2
    assert site.metric("one", "submissions_total", kind="infer", result="adopted") == 2
    assert len(run.attempts()) == SHARDS, "a shard was submitted twice"


@pytest.fixture
def forgetful_site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """ListJobs by name lags by the parameter, for longer than the controller waits before it submits anew."""
    tuning = BatchTuning(start_delay_seconds=2, backlog=SHARDS + 1, list_lag_seconds=request.param)
    pace = {"REEMBED_RECONCILE__LOOKUP_GRACE_SECONDS": "1", "REEMBED_RECONCILE__ORPHAN_SECONDS": "1"}
    with Site.build(tmp_path, tuning, **pace) as site:
        yield site


@pytest.mark.long
@pytest.mark.parametrize(
    ("forgetful_site", "waiting"),
    [pytest.param(30, True, id="while it waits"), pytest.param(3000, False, id="when it runs")],
    indirect=["forgetful_site"],
)
def test_a_duplicate_is_found_and_stopped(forgetful_site: Site, waiting: bool) -> None:
    """The controller stops one that waits; one that runs already ends itself, as its assignment was withdrawn.

    The latter has no help: it ends before ListJobs knows it.
    """
    site = forgetful_site
    site.stack.start_controller("one")
    run = site.submit("duplicate")
    run.until("EXISTS (SELECT 1 FROM attempts WHERE request_id = %(id)s AND kind = 'prepare' AND state = 'running')")
    if waiting:
        site.batch_fault(fault="refuse_capacity", queue="g6e", seconds=8, silent=True)
    site.batch_fault(fault="lost_response", count=1)
    run.finished()
    assert site.metric("one", "submissions_total", kind="infer", result="absent") == 1
    [(name,)] = site.rows("SELECT name FROM jobs WHERE batch_job_id IS NULL")

    def ended() -> dict[str, Any] | None:
        [duplicate] = [job for job in site.batch_jobs() if job["name"] == name and job["parent"] is None]
        return duplicate if duplicate["status"] == "FAILED" else None

    duplicate = eventually(ended, "the duplicate failed")
    children = [job for job in site.batch_jobs() if job["parent"] == duplicate["job_id"]] or [duplicate]
    assert site.metric("one", "orphans_stopped_total") == waiting
    if waiting:
        assert all(child["started_ms"] is None for child in children)
    else:
        assert any(child["exit_code"] not in (None, 0) for child in children), "none that ran gave up by itself"
    assert not any(job["live"] for job in site.batch_jobs())
    [(succeeded,)] = site.rows("SELECT count(*) FROM attempts WHERE kind = 'infer' AND outcome = 'succeeded'")
    assert succeeded == SHARDS
