"""A freeze: one row, seen by every replica before each call of SubmitJob, audited, undone."""

from __future__ import annotations

from controller.aws.clients import ClientOptions
from controller.aws.rates import LONGEST_WAIT_SECONDS
from controller.core.records import SUBMISSIONS, Freeze
from controller.ports import Store
from schema.states import RequestState
from tests.builders import NOW, request, shard
from tests.integration.api_site import Queue, application, client
from tests.placement.loops import Site
from tests.store_rows import fill

BODY = {"reason": "quota is needed elsewhere"}


async def test_it_is_on_record_with_its_audit(store: Store) -> None:
    async with client(application(store, Queue())) as http:
        assert (await http.get("/api/v1/freeze")).json()["frozen"] is False
        frozen = (await http.post("/api/v1/freeze", json=BODY, headers={"X-Actor": "ann"})).json()
        assert (frozen["frozen"], frozen["actor"], frozen["reason"]) == (True, "ann", BODY["reason"])
        assert (await http.get("/api/v1/freeze")).json() == frozen
        assert (await http.post("/api/v1/unfreeze", json=BODY)).json()["frozen"] is False
        assert (await http.post("/api/v1/freeze", json={"reason": "no"})).status_code == 422
    async with store.transaction() as tx:
        assert {line["action"] for line in await tx.operations.audit_of(SUBMISSIONS, 9)} == {"freeze", "unfreeze"}


async def test_nothing_is_submitted_while_it_holds(store: Store) -> None:
    await fill(store, request(state=RequestState.RUNNING, shards=3), shard(0), shard(1), shard(2))
    site = Site(store)
    await site.dispatch()
    assert len(site.submitted) == 1
    await fill(store, shard(3), shard(4))
    async with store.transaction() as tx:
        await tx.queues.put_freeze(Freeze(frozen=True, actor="ann", reason="quota", changed_at=NOW))
    await site.dispatch()
    assert len(site.submitted) == 1
    async with store.transaction() as tx:
        assert len(await tx.shards.due(site.now(), 9)) == 2, "nothing was even assigned"
        await tx.queues.put_freeze(Freeze(frozen=False, actor="ann", reason="quota", changed_at=NOW))
    await site.dispatch()
    assert len(site.submitted) == 2


async def test_it_holds_for_jobs_that_are_written_already(store: Store) -> None:
    """The replica has decided, and its call is next: the row is read after that."""
    await fill(store, request(state=RequestState.RUNNING, shards=1), shard(0))
    site = Site(store)

    async def freeze() -> None:
        async with store.transaction() as tx:
            await tx.queues.put_freeze(Freeze(frozen=True, actor="ann", reason="quota", changed_at=NOW))

    site.before_submit = freeze
    await site.dispatch()
    assert site.submitted == []
    async with store.transaction() as tx:
        await tx.queues.put_freeze(Freeze(frozen=False, actor="ann", reason="quota", changed_at=NOW))
    site.before_submit = None
    await site.dispatch()
    assert len(site.submitted) == 1


def test_a_call_that_passed_the_look_is_made_within_ten_seconds() -> None:
    """The row is read just before each call; then there is only the wait for the rate and for a connection."""
    assert LONGEST_WAIT_SECONDS + ClientOptions().connect_timeout_seconds <= 10
