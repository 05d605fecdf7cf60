"""What a TCP proxy does to the connections: answers lost, requests repeated, everything reset."""

from __future__ import annotations

import pytest

from deploy.local.output import Output
from tests.chaos.stack import ChaosSite
from tests.e2e.site import SHARDS, assert_same_output
from tests.e2e.test_controller_kills import MOMENTS

pytestmark = pytest.mark.chaos


def test_answers_of_submitjob_are_lost(site: ChaosSite, crash_free: Output) -> None:
    """Found by name and adopted: no shard runs twice."""
    proxy = site.stack.batch_proxy
    with site.controllers("one"):
        run = site.submit("answers-lost")
        run.until(MOMENTS["preparing"])
        before = proxy.lost
        proxy.lose_answers(b"POST /v1/submitjob", 2)
        output = run.finished()
        assert proxy.lost == before + 2
        assert site.metric("one", "submissions_total", result="adopted") >= 2
        assert len(run.attempts()) == SHARDS
        assert_same_output(output, crash_free)


def test_connections_are_reset(site: ChaosSite, crash_free: Output) -> None:
    """Those to SQS, Batch and Postgres, all at once, again and again."""
    with site.controllers("one"):
        run = site.submit("connections-reset")
        for condition in MOMENTS.values():
            run.until(condition)
            for proxy in site.stack.proxies:
                proxy.reset()
        assert all(proxy.resets for proxy in site.stack.proxies)
        assert_same_output(run.finished(), crash_free)


def test_every_message_comes_twice(site: ChaosSite, crash_free: Output) -> None:
    """Requests, reports, Batch events and status events: each SendMessage is carried out twice."""
    proxy = site.stack.sqs_proxy
    with site.controllers("one"):
        proxy.repeat = b"AmazonSQS.SendMessage"
        try:
            run = site.submit("messages-twice")
            output = run.finished()
        finally:
            proxy.repeat = None
        assert proxy.repeated > 4 * SHARDS
        assert site.metric("one", "reports_received_total", result="stale") > 0
        assert len(run.attempts()) == SHARDS
        assert_same_output(output, crash_free)
