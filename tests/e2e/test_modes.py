"""The three shapes of a Batch job: arrays and a lone job in one request, and multi-node jobs."""

from __future__ import annotations

from collections import Counter

from deploy.local.batch_site import Queue
from deploy.local.output import Output
from tests.e2e.site import SHARDS, Site, assert_same_output

SHAPES = "SELECT size, multi_node, queue FROM jobs WHERE request_id = %(id)s AND kind = 'infer'"


def shapes(site: Site, request_id: str) -> Counter[tuple[int, bool, str]]:
    return Counter(site.rows(SHAPES, id=request_id))


def test_arrays_and_a_lone_job(site: Site, undisturbed: Output) -> None:
    made = shapes(site, undisturbed.manifest.request_id)
    assert made == {(2, False, Queue.G6E): 2, (1, False, Queue.G6E): 1}


def test_multi_node_jobs(site: Site, undisturbed: Output) -> None:
    site.stack.start_controller("one")
    run = site.submit("nodes", mode="multi_node", queues=[Queue.ONDEMAND])
    assert_same_output(run.finished(), undisturbed)
    made = shapes(site, run.id)
    assert {queue for _, _, queue in made} == {Queue.ONDEMAND}
    assert all(multi_node == (size > 1) for size, multi_node, _ in made), "a shard left over runs alone"
    assert sum(size * count for (size, _, _), count in made.items()) == SHARDS
    assert max(size for size, _, _ in made) > 1
