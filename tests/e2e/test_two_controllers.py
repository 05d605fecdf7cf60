"""Two controllers on one database: they share the work of a request, and either finishes it alone."""

from __future__ import annotations

import pytest

from deploy.local.output import Output
from tests.e2e.site import Run, Site, assert_same_output, eventually
from tests.e2e.test_controller_kills import MOMENTS

NAMES = ("left", "right")


def leader(site: Site) -> str:
    found = eventually(lambda: site.rows("SELECT holder FROM leases WHERE until > now()"), "a leader")
    return found[0][0]


def start_both(site: Site, key: str) -> Run:
    for name in NAMES:
        site.stack.start_controller(name)
    return site.submit(key)


@pytest.mark.long
def test_both_work_on_a_request(site: Site, undisturbed: Output) -> None:
    run = start_both(site, "together")
    assert_same_output(run.finished(), undisturbed)
    for name in NAMES:
        reports, events = (site.metric(name, f"{kind}_total") for kind in ("reports_received", "batch_events"))
        assert reports > 0, f"{name} took no report"
        assert events > 0, f"{name} took no Batch event"


@pytest.mark.long
@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_either_finishes_alone(site: Site, undisturbed: Output, victim: str) -> None:
    run = start_both(site, f"without-the-{victim}")
    run.until(MOMENTS["first commit"])
    leading = leader(site)
    [following] = set(NAMES) - {leading}
    killed, left = (leading, following) if victim == "leader" else (following, leading)
    site.stack.kill_controller(killed)
    assert_same_output(run.finished(), undisturbed)
    assert leader(site) == left
