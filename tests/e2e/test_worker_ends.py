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
from tests.e2e.site import PREFIX, SHARD_ASSETS, SHARDS, Site, assert_same_output, eventually

SEGMENTATION_FAULT = 139
LAST = SHARDS - 1
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
    slow = f"{BucketName.PHOTOS}/{PREFIX}{LAST * SHARD_ASSETS:03d}"
    site.s3_faults(Rule(action=Action.DELAY, prefix=slow, seconds=25))  # longer than a worker has after SIGTERM
    for fault in FAULTS:
        site.batch_fault(queue=Queue.G6E, **fault)
    site.stack.start_controller("one")
    run = site.submit("ends")

    def running() -> str | None:
        """The job of the last shard, when all faults have found another."""
        ended = [attempt for attempt in run.attempts() if attempt["outcome"] in ENDS]
        live = [a for a in run.attempts() if a["state"] == "running" and a["shard"] == LAST]
        return live[0]["batch_job_id"] if live and len(ended) >= len(FAULTS) else None

    job_id = eventually(running, "the last shard runs, and the faults are through")
    batch = client("batch", site.stack.batch_endpoint)
    batch.terminate_job(jobId=job_id, reason="somebody in the AWS console")
    batch.close()
    eventually(lambda: Outcome.INTERRUPTED in {a["outcome"] for a in run.attempts()}, "the end of what was terminated")
    site.s3_faults()

    assert_same_output(run.finished(), undisturbed)
    ended = Counter(attempt["outcome"] for attempt in run.attempts())
    assert ended == {**dict.fromkeys(ENDS, 1), Outcome.SUCCEEDED: SHARDS}
