"""Things that stop and come back: processes for half a minute, Postgres, its connections. The output stays the same."""

from __future__ import annotations

import os
import signal
import threading

import psutil
import pytest

from deploy.local.output import Output
from deploy.local.resources import BucketName
from deploy.local.s3proxy import Action, Rule
from tests.chaos.stack import ChaosSite
from tests.e2e.site import PREFIX, assert_same_output, eventually
from tests.e2e.test_controller_kills import MOMENTS
from tests.e2e.test_two_controllers import NAMES, leader

pytestmark = pytest.mark.chaos
STOPPED_SECONDS = 30.0
#: Everybody else's connections to the control database.
_TERMINATE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


def test_the_leader_and_a_container_stand_still(site: ChaosSite, crash_free: Output) -> None:
    """For half a minute; the other controller leads meanwhile, and who wakes up writes nothing that is stale."""
    site.s3_faults(Rule(action=Action.DELAY, prefix=f"{BucketName.PHOTOS}/{PREFIX}", seconds=1))
    with site.controllers(*NAMES):
        run = site.submit("stand-still")
        run.until(MOMENTS["embedding"])
        asleep = leader(site)
        container = eventually(site.containers, "a container")[0]
        stopped = [psutil.Process(site.stack.controllers[asleep].pid)]
        stopped += stopped[0].children()
        stopped += [container, *container.children(recursive=True)]
        for process in stopped:
            os.kill(process.pid, signal.SIGSTOP)
        try:
            eventually(lambda: leader(site) != asleep, "another leader")
            threading.Event().wait(STOPPED_SECONDS)
        finally:
            for process in stopped:
                os.kill(process.pid, signal.SIGCONT)
        assert_same_output(run.finished(), crash_free)


def test_postgres_crashes(site: ChaosSite, crash_free: Output) -> None:
    with site.controllers("one"):
        run = site.submit("postgres-crashes")
        for moment in ("preparing", "embedding", "half committed"):
            run.until(MOMENTS[moment])
            site.stack.postgres.stop(immediate=True)
            site.stack.postgres.start()
        assert_same_output(run.finished(), crash_free)


def test_backends_are_terminated(site: ChaosSite, crash_free: Output) -> None:
    with site.controllers("one"):
        run = site.submit("backends-terminated")
        terminated = 0
        for condition in MOMENTS.values():
            run.until(condition)
            terminated += len(site.rows(_TERMINATE))
        assert terminated >= len(MOMENTS)
        assert_same_output(run.finished(), crash_free)
