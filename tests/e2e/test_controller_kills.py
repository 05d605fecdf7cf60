"""SIGKILL to the only controller at a chosen moment, a start, and the same output as if nothing had happened (I10)."""

from __future__ import annotations

import pytest

from deploy.local.output import Output
from tests.e2e.site import SHARDS, Site, assert_same_output, eventually

_JOB = "EXISTS (SELECT 1 FROM jobs WHERE request_id = %(id)s AND kind = '{}' AND submitted_at IS NOT NULL)"
_ATTEMPT = "EXISTS (SELECT 1 FROM attempts WHERE request_id = %(id)s AND kind = '{}' AND {} IS NOT NULL)"
_COMMITTED = "(SELECT count(*) FROM shards WHERE request_id = %(id)s AND state = 'succeeded') >= {}"

#: In the order in which a request passes them; each stays true once it was.
MOMENTS = {
    "accepted": "EXISTS (SELECT 1 FROM requests WHERE id = %(id)s)",
    "prepare submitted": _JOB.format("prepare"),
    "preparing": _ATTEMPT.format("prepare", "started_at"),
    "planned": "EXISTS (SELECT 1 FROM shards WHERE request_id = %(id)s)",
    "queued": _ATTEMPT.format("infer", "queued_at"),
    "embedding": _ATTEMPT.format("infer", "started_at"),
    "first commit": _COMMITTED.format(1),
    "half committed": _COMMITTED.format(3),
    "all committed": _COMMITTED.format(SHARDS),
    "indexing": _ATTEMPT.format("index", "started_at"),
}
IN_EVERY_RUN = ("half committed",)


@pytest.mark.parametrize(
    "moment",
    [pytest.param(name, marks=() if name in IN_EVERY_RUN else pytest.mark.long, id=name) for name in MOMENTS],
)
def test_killed_and_started_again(site: Site, undisturbed: Output, moment: str) -> None:
    site.stack.start_controller("one")
    run = site.submit(f"killed-{moment.replace(' ', '-')}")
    run.until(MOMENTS[moment])
    site.stack.kill_controller("one")
    assert run.state not in ("succeeded", "failed"), "the moment had passed"
    site.stack.start_controller("one")
    assert_same_output(run.finished(), undisturbed)


@pytest.mark.long
def test_killed_while_submitjob_is_under_way(site: Site, undisturbed: Output) -> None:
    """Batch has the job, the controller never heard: it is found by its name and adopted, not submitted again."""
    site.stack.start_controller("one")
    run = site.submit("killed-submitting")
    run.until(MOMENTS["preparing"])
    before = site.batch_faults_fired()["slow_answers"]
    site.batch_fault(fault="slow", operation="SubmitJob", count=1, seconds=4)
    eventually(lambda: site.batch_faults_fired()["slow_answers"] > before, "a SubmitJob under way")
    site.stack.kill_controller("one")
    site.stack.start_controller("one")
    assert_same_output(run.finished(), undisturbed)
    assert site.metric("one", "submissions_total", kind="infer", result="adopted") >= 1


@pytest.mark.long
def test_killed_again_and_again(site: Site, undisturbed: Output) -> None:
    """At every moment of one and the same request."""
    run = site.submit("killed-often")
    for condition in MOMENTS.values():
        site.stack.start_controller("one")
        run.until(condition)
        site.stack.kill_controller("one")
    site.stack.start_controller("one")
    assert_same_output(run.finished(), undisturbed)
