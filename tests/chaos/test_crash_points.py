"""SIGKILL at every named crash point, and the output of the crash-free run (I10).

Each scenario arms every point that has not fired yet: a controller dies at the first that it passes, starts again, dies
at the next. The last test looks that each point of the registry has fired. A point that no scenario passes fails it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import get_type_hints

import httpx
import pytest

from controller.ports import Transaction
from deploy.local.batch_site import Queue
from deploy.local.environment import TENANT
from deploy.local.output import Output
from deploy.local.resources import BucketName, QueueName
from deploy.local.s3proxy import Action, Rule
from schema.client import RequestRef
from tests.chaos.firing import methods
from tests.chaos.points import ONLY_READ, READS, controller_points, not_reached, worker_points
from tests.chaos.stack import ChaosSite
from tests.e2e.site import MODEL, PREFIX, Run, assert_same_output, eventually
from tests.e2e.test_controller_kills import MOMENTS

pytestmark = pytest.mark.chaos


def arm(site: ChaosSite, points: list[str]) -> set[str]:
    """Arm those that have not fired yet; what had fired before."""
    fired = site.stack.ledger.fired()
    site.stack.ledger.arm(point for point in points if point not in fired)
    return fired


def submitted(site: ChaosSite, key: str, **fields: object) -> Run:
    """As an upstream service that sends again until it hears: SQS gives up a message after five crashes."""
    run = site.submit(key, **fields)

    def taken() -> bool:
        if run.state != "unknown":
            return True
        site.submit(key, **fields)
        return False

    eventually(taken, f"{key} is taken", pause_seconds=1)
    return run


def persistently(call: Callable[[], httpx.Response]) -> httpx.Response:
    """Ask the API until an answer comes through between two crashes."""

    def answer() -> httpx.Response | None:
        try:
            found = call()
        except httpx.HTTPError:
            return None
        return None if found.status_code >= 500 else found

    return eventually(answer, "an answer of the API", pause_seconds=0.2)


def waiting(site: ChaosSite, *parts: str) -> set[str]:
    """Armed points with one of these words in their names."""
    return {point for point in site.stack.ledger.armed() if any(part in point for part in parts)}


def note(record_property: Callable[[str, object], None], site: ChaosSite, before: set[str]) -> None:
    """For the last line of `make chaos`."""
    record_property("crash_points", sorted(site.stack.ledger.fired() - before))


def test_a_request_from_end_to_end(site: ChaosSite, crash_free: Output, record_property: Callable[..., None]) -> None:
    with site.controllers("one"):
        before = arm(site, controller_points())
        run = submitted(site, "crash-plain")
        assert_same_output(run.finished(), crash_free)
        persistently(lambda: httpx.get(f"{site.stack.api_url('one')}/readyz", timeout=5))
    note(record_property, site, before)


def test_orders_and_a_dry_queue(site: ChaosSite, crash_free: Output, record_property: Callable[..., None]) -> None:
    """The request comes over HTTP, is amended, nonsense is rejected, freezes come and go, its queue is dry."""
    site.batch_fault(fault="refuse_capacity", queue=Queue.G6E)
    payload = {
        "tenant": TENANT,
        "idempotency_key": "crash-orders",
        "source": {"kind": "prefix", "bucket": BucketName.PHOTOS, "prefix": PREFIX},
        "model": MODEL,
        "output": {"uri": f"s3://{BucketName.EMBEDDINGS}/crash-orders"},
        "tolerance": 0.5,
    }
    requests = site.stack.queue_url(QueueName.REQUESTS)
    with site.controllers("one"):
        before = arm(site, controller_points())
        root = f"{site.stack.api_url('one')}/api/v1"
        api = f"{root}/requests"
        run = Run(site, RequestRef(TENANT, "crash-orders", ""))

        def taken() -> bool:
            persistently(lambda: httpx.post(api, json=payload, timeout=5))
            return run.state != "unknown"

        eventually(taken, "the request is taken", pause_seconds=1)

        def said() -> bool:
            """Sent again until every crash that these messages can meet has been met."""
            site.upstream().amend("crash-orders", priority=3)
            site.sqs.send_message(QueueUrl=requests, MessageBody=json.dumps("nonsense"))
            for action in ("freeze", "unfreeze"):
                order = {"reason": "looking at the crashes"}
                persistently(lambda a=action, o=order: httpx.post(f"{root}/{a}", json=o, timeout=5))
            return not waiting(site, "requests.amend", "rejects.send", "outboxes.requests", "queues.put_freeze")

        eventually(said, "every message met its crashes", pause_seconds=1)
        dry = ("store.queues", "intend_stop_queue", "batch.cancel")
        eventually(lambda: not waiting(site, *dry), "the dry queue met its crashes", pause_seconds=0.5)
        site.batch_fault(fault="refuse_capacity", queue=Queue.G6E, clear=True)
        assert_same_output(run.finished(), crash_free)
    note(record_property, site, before)


def test_cancelled_requests(site: ChaosSite, crash_free: Output, record_property: Callable[..., None]) -> None:
    """By orders of an operator; some come twice or too late, and are carried out as refused."""
    site.s3_faults(Rule(action=Action.DELAY, prefix=f"{BucketName.PHOTOS}/{PREFIX}", seconds=2))
    with site.controllers("one"):
        before = arm(site, controller_points())
        for number in range(3):
            run = submitted(site, f"crash-cancel-{number}")
            run.until(MOMENTS["embedding"] if number == 0 else MOMENTS["preparing"])
            url = f"{site.stack.api_url('one')}/api/v1/requests/{run.id}/cancel"

            def ordered(run: Run = run, url: str = url) -> bool:
                body = {"reason": "seen enough of it"}
                with ThreadPoolExecutor(4) as pool:
                    list(pool.map(lambda _: persistently(lambda: httpx.post(url, json=body, timeout=5)), range(4)))
                return run.state in ("cancelling", "cancelled")

            eventually(ordered, "the order is carried out", pause_seconds=0.5)
            eventually(lambda run=run: run.state == "cancelled", "cancelled")
            assert run.live_attempts() == 0
            if not waiting(site, "store.operations", "commit.operations"):
                break
        eventually(lambda: not any(job["live"] for job in site.batch_jobs()), "no job lives")
        site.s3_faults()
        assert_same_output(submitted(site, "crash-after-cancel").finished(), crash_free)
    note(record_property, site, before)


def test_workers(site: ChaosSite, crash_free: Output, record_property: Callable[..., None]) -> None:
    """A preparation that dies once its plan is written is not run again, so each request meets one point that follows.

    What it writes is slow, so that it lives for a heartbeat.
    """
    written = Rule(action=Action.DELAY, prefix=f"{BucketName.CONTROL}/requests/", methods=frozenset({"PUT"}), seconds=1)
    site.s3_faults(written)
    before = arm(site, worker_points())
    with site.controllers("one"):
        for number in range(3):
            assert_same_output(site.submit(f"crash-workers-{number}").finished(), crash_free)
    assert not waiting(site, "worker.")
    note(record_property, site, before)


def test_every_point_has_fired(site: ChaosSite) -> None:
    fired = site.stack.ledger.fired()
    assert {*controller_points(), *worker_points()} - fired == set()
    assert fired.isdisjoint(not_reached())


def test_what_is_called_a_read_is_there() -> None:
    """A renamed method must not stay on the list."""
    aggregates = get_type_hints(Transaction)
    assert set(aggregates) == {*READS, *ONLY_READ}
    for aggregate, reads in READS.items():
        assert reads <= set(methods(aggregates[aggregate])), aggregate
