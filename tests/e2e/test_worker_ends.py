"""Every first attempt of a request ends in another way; each is told apart, and the output is as ever."""

from __future__ import annotations

from collections import Counter

import pytest

from deploy.local.batch_site import Queue
from deploy.local.output import Output
from deploy.local.resources import BucketName, client
from deploy.local.s3proxy import Action, Rule
from schema.exit_codes import ExitCode
from schema.states import Outcome
from tests.e2e.site import PREFIX, SHARDS, Site, assert_same_output, eventually

SEGMENTATION_FAULT = 139
FAULTS = (
    {"fault": "pull_failure"},
    {"fault": "oom"},
    {"fault": "exit", "code": SEGMENTATION_FAULT},
    {"fault": "exit", "code": int(ExitCode.HOST_SICK)},
)
#: The image that cannot be pulled is not found: no retry of AWS would help, and an operator may have to.
ENDS = {Outcome.CONFIG_ERROR, Outcome.OUT_OF_MEMORY, Outcome.CRASHED, Outcome.HOST_SICK, Outcome.INTERRUPTED}


@pytest.mark.long
def test_each_end_by_its_name(site: Site, undisturbed: Output) -> None:
    site.s3_faults(Rule(action=Action.DELAY, prefix=f"{BucketName.PHOTOS}/{PREFIX}", seconds=4))
    for fault in FAULTS:
        site.batch_fault(queue=Queue.G6E, **fault)
    site.stack.start_controller("one")
    run = site.submit("ends")

    def running() -> str | None:
        """A job that no fault waits for, as they hit the first that run, with chunks left to do."""
        ended = [attempt for attempt in run.attempts() if attempt["state"] == "ended"]
        fresh = [a for a in run.attempts() if a["state"] == "running" and not a["figures"]["chunks_done"]]
        return fresh[0]["batch_job_id"] if fresh and len(ended) >= len(FAULTS) else None

    job_id = eventually(running, "a job that no fault has hit")
    batch = client("batch", site.stack.batch_endpoint)
    batch.terminate_job(jobId=job_id, reason="somebody in the AWS console")
    batch.close()

    assert_same_output(run.finished(), undisturbed)
    ended = Counter(attempt["outcome"] for attempt in run.attempts())
    assert ended == {**dict.fromkeys(ENDS, 1), Outcome.SUCCEEDED: SHARDS}
