"""A container that dies in mid-shard is replaced, and what it had finished is kept."""

from __future__ import annotations

import pytest

from deploy.local.output import Output
from deploy.local.resources import BucketName
from deploy.local.s3proxy import Action, Rule
from schema.states import Outcome
from tests.e2e.site import CHUNK_ASSETS, PREFIX, SHARD_ASSETS, Site, assert_same_output, eventually

SHARD = 3
#: Of the shard's last chunk: while it is read, the others get done.
SLOW_KEY = f"{PREFIX}{(SHARD + 1) * SHARD_ASSETS - 1:03d}.jpg"


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        pytest.param("reclaim", Outcome.SPOT_RECLAIMED, id="reclaimed"),
        pytest.param("oom", Outcome.OUT_OF_MEMORY, id="out of memory", marks=pytest.mark.long),
    ],
)
def test_killed_in_mid_shard(site: Site, undisturbed: Output, fault: str, outcome: Outcome) -> None:
    site.s3_faults(Rule(action=Action.DELAY, prefix=f"{BucketName.PHOTOS}/{SLOW_KEY}", seconds=18, at_most=1))
    site.stack.start_controller("one")
    run = site.submit(f"worker-{fault}")

    def of_shard() -> dict[str, str]:
        return {key: tag for key, tag in run.chunk_objects().items() if f"/chunks/{SHARD:07d}/" in key}

    before = eventually(of_shard, "a finished chunk")
    [victim] = [a for a in run.attempts() if a["shard"] == SHARD]
    site.batch_fault(fault=fault, job_id=victim["batch_job_id"])
    output = run.finished()

    assert_same_output(output, undisturbed)
    first, second = (a for a in run.attempts() if a["shard"] == SHARD)
    assert (first["id"], first["outcome"]) == (victim["id"], outcome)
    assert second["outcome"] == Outcome.SUCCEEDED
    assert 0 < second["figures"]["chunks_reused"] < SHARD_ASSETS / CHUNK_ASSETS
    committed = {digest for (shard, _), digest in output.chunks.items() if shard == SHARD}
    for key, tag in before.items():
        assert key.rpartition("/")[2].removesuffix(".parquet") in committed, f"{key} was not reused"
        assert run.chunk_objects()[key] == tag, f"{key} is not the object that it was"
