"""Attempts in the real store: I2, tokens and sequence numbers, look-ups, claims, intents, loads."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from controller.core.changes import AttemptChange
from controller.core.records import Attempt, QueueLoad, QueueState, Waiting
from controller.core.transitions import missed, queued, stop_wanted
from controller.store import PostgresStore
from schema.plan import Figures
from schema.states import AttemptState, JobKind, Outcome, StopIntent
from tests.builders import NOW, ago, attempt, job, request, shard
from tests.postgres import until_one_waits_for_a_lock
from tests.store_rows import fill

LATER = NOW + timedelta(seconds=60)
ENDED: dict[str, Any] = {"state": AttemptState.ENDED, "outcome": Outcome.CRASHED, "ended_at": NOW}


async def fill_with(store: PostgresStore, *attempts: Attempt, **job_changes: Any) -> None:
    """One request with nine shards and one job for all."""
    await fill(store, request(), *(shard(number) for number in range(9)), job(size=9, **job_changes), *attempts)


async def read(store: PostgresStore, attempt_id: str = "a-0") -> Attempt:
    async with store.transaction() as tx:
        found = await tx.attempts.get(attempt_id)
    assert found is not None
    return found


def ids(attempts: Any) -> list[str]:
    return [found.id for found in attempts]


async def test_an_attempt_comes_back_as_it_was(store: PostgresStore) -> None:
    full = attempt(
        0,
        generation=2,
        state=AttemptState.ENDED,
        outcome=Outcome.OUT_OF_MEMORY,
        reason="why",
        stop_intent=StopIntent.SUPERSEDE,
        stop_requested_at=NOW,
        queued_at=NOW,
        ended_at=LATER,
        misses=2,
        batch_job_id="b:0",
        batch_status="FAILED",
        batch_status_reason="r",
        container_reason="OutOfMemoryError",
        batch_exit_code=137,
        batch_ended_at=NOW,
        worker_exit_code=-9,
        worker_error="e",
        worker_ended_at=NOW,
        last_seq=9,
        open_chunks=(1, 2),
        poison=(3,),
        figures=Figures(assets=7, wall_seconds=1.5, gpu_utilisation=0.9),
        instance_type="g6e.xlarge",
        compute_environment="ce",
    )
    prepare = attempt(1, kind=JobKind.PREPARE, shard=None)
    await fill_with(store, full, prepare)
    assert await read(store) == full
    assert await read(store, "a-1") == prepare
    async with store.transaction() as tx:
        assert await tx.attempts.get("a-9") is None
        await tx.attempts.insert_many([])


async def test_i2_a_shard_has_at_most_one_live_attempt(store: PostgresStore) -> None:
    await fill_with(store, attempt(0), attempt(1, **ENDED), attempt(2, shard=1))
    with pytest.raises(IntegrityError, match="attempts_one_live"):
        await fill(store, attempt(3, shard=0))
    with pytest.raises(IntegrityError, match="attempts_one_live"):
        await fill(store, attempt(3, shard=1, state=AttemptState.SUBMITTING))


async def test_i2_does_not_bind_jobs_without_a_shard(store: PostgresStore) -> None:
    await fill_with(store, *(attempt(number, kind=JobKind.INDEX, shard=None) for number in range(3)))
    async with store.transaction() as tx:
        assert ids(await tx.attempts.of_kind("r-1", JobKind.INDEX)) == ["a-0", "a-1", "a-2"]


async def test_a_change_needs_the_state_and_the_token(store: PostgresStore) -> None:
    before = attempt(0, state=AttemptState.SUBMITTING)
    await fill_with(store, before)
    change = queued(before, LATER)
    async with store.transaction() as tx:
        assert not await tx.attempts.apply(replace(change, token="another"))
        assert not await tx.attempts.apply(replace(change, id="a-9"))
        assert await tx.attempts.apply(change)
        assert not await tx.attempts.apply(change)
    times = {"queued_at": LATER, "last_contact_at": LATER, "next_check_at": LATER}
    assert await read(store) == replace(before, state=AttemptState.QUEUED, **times)


def report(seq: int, **values: Any) -> AttemptChange:
    running = frozenset({AttemptState.RUNNING})
    return AttemptChange(id="a-0", token="t-0", expected=running, seq=seq, values={"last_seq": seq, **values})


async def test_an_older_report_changes_nothing(store: PostgresStore) -> None:
    await fill_with(store, attempt(0))
    async with store.transaction() as tx:
        assert await tx.attempts.apply(report(0, worker_error="0"))
        assert await tx.attempts.apply(report(3, figures=Figures(assets=3), open_chunks=(4,), poison=()))
        assert not await tx.attempts.apply(report(3, worker_error="3"))
        assert not await tx.attempts.apply(report(2, worker_error="2"))
    after = attempt(0, last_seq=3, worker_error="0", figures=Figures(assets=3), open_chunks=(4,))
    assert await read(store) == after


async def test_of_two_reports_at_once_the_second_waits_and_is_measured_anew(
    store: PostgresStore, database_url: str
) -> None:
    await fill_with(store, attempt(0))
    async with store.transaction() as one:
        assert await one.attempts.apply(report(5))
        second = asyncio.create_task(_apply(store, report(4)))
        await until_one_waits_for_a_lock(database_url, second)
    assert not await second
    assert (await read(store)).last_seq == 5


async def _apply(store: PostgresStore, change: AttemptChange) -> bool:
    async with store.transaction() as tx:
        return await tx.attempts.apply(change)


async def test_a_locked_read_sees_what_the_other_transaction_wrote(store: PostgresStore, database_url: str) -> None:
    """Sums over what an attempt was and becomes are added once, whoever comes second."""
    await fill_with(store, attempt(0))

    async def read_locked() -> int:
        async with store.transaction() as tx:
            found = await tx.attempts.get("a-0", lock=True)
            assert found is not None
            return found.last_seq

    async with store.transaction() as one:
        await one.attempts.get("a-0", lock=True)
        second = asyncio.create_task(read_locked())
        await until_one_waits_for_a_lock(database_url, second)
        await one.attempts.apply(report(5))
    assert await second == 5


async def test_batch_ids_lead_to_attempts(store: PostgresStore) -> None:
    await fill_with(store, attempt(0), attempt(1), attempt(2, batch_job_id="elsewhere"), batch_job_id="parent")
    await fill(store, job(id="j-2", name="lone", batch_job_id="lone"), attempt(3, job_id="j-2", array_index=0))
    async with store.transaction() as tx:
        for batch_job_id, expected in {
            "parent:1": "a-1",
            "parent#1": "a-1",
            "lone": "a-3",
            "elsewhere": "a-2",
            "parent": None,
            "parent:7": None,
            "parent:": None,
            "parent:1:1": None,
            "nothing": None,
            "": None,
        }.items():
            found = await tx.attempts.by_batch_job_id(batch_job_id)
            assert (found.id if found else None) == expected, batch_job_id


async def test_a_bound_id_goes_before_the_job_s_own(store: PostgresStore) -> None:
    """A duplicate job reported first: its children are the attempts."""
    await fill_with(store, attempt(0), attempt(1, batch_job_id="parent:0"), batch_job_id="parent")
    async with store.transaction() as tx:
        found = await tx.attempts.by_batch_job_id("parent:0")
    assert found is not None
    assert found.id == "a-1"


async def test_lists_are_in_order(store: PostgresStore) -> None:
    old = attempt(3, id="a-old", shard=0, array_index=5, created_at=ago(60), generation=1, **ENDED)
    prepare = attempt(7, kind=JobKind.PREPARE, shard=None, created_at=ago(90), **ENDED)
    await fill_with(store, attempt(1), attempt(0, generation=2), old, prepare)
    async with store.transaction() as tx:
        assert ids(await tx.attempts.of_job("j-1")) == ["a-0", "a-1", "a-old", "a-7"]
        assert ids(await tx.attempts.of_shard("r-1", 0)) == ["a-old", "a-0"]
        assert ids(await tx.attempts.of_kind("r-1", JobKind.PREPARE)) == ["a-7"]
        assert ids(await tx.attempts.of_kind("r-1", JobKind.INFER)) == ["a-old", "a-0", "a-1"]
        assert ids(await tx.attempts.live("r-1", 9)) == ["a-0", "a-1"]
        assert ids(await tx.attempts.live("r-1", 1)) == ["a-0"]
        assert await tx.attempts.live("r-2", 9) == []


async def test_i7_claims_take_live_attempts_that_are_due_longest_first(store: PostgresStore) -> None:
    await fill_with(
        store,
        attempt(0, next_check_at=ago(1)),
        attempt(1, next_check_at=ago(9), state=AttemptState.SUBMITTING),
        attempt(2, next_check_at=LATER),
        attempt(3, next_check_at=ago(99), **ENDED),
        attempt(4, next_check_at=NOW),
    )
    async with store.transaction() as tx:
        assert ids(await tx.attempts.claim_due("one", NOW, LATER, 2)) == ["a-1", "a-0"]
        assert ids(await tx.attempts.claim_due("two", NOW, LATER, 9)) == ["a-4"]
        assert await tx.attempts.claim_due("one", NOW, LATER, 9) == []


async def test_a_claim_ends_by_a_check_or_by_time(store: PostgresStore) -> None:
    await fill_with(store, attempt(0), attempt(1), attempt(2))
    in_an_hour = NOW + timedelta(hours=1)
    async with store.transaction() as tx:
        assert len(await tx.attempts.claim_due("one", NOW, LATER, 9)) == 3
        await tx.attempts.checked(["a-0", "a-1"], "another", NOW)
        assert await tx.attempts.claim_due("two", NOW, LATER, 9) == []
        await tx.attempts.checked(["a-0"], "one", NOW)
        await tx.attempts.checked(["a-1"], "one", in_an_hour)
        assert ids(await tx.attempts.claim_due("two", NOW, LATER, 9)) == ["a-0"]
        assert ids(await tx.attempts.claim_due("two", LATER, in_an_hour, 9)) == ["a-0", "a-2"]


async def test_two_claims_at_once_share_the_rows_without_waiting(store: PostgresStore) -> None:
    await fill_with(store, *(attempt(number) for number in range(6)))
    async with store.transaction() as one, store.transaction() as two:
        first = await one.attempts.claim_due("one", NOW, LATER, 4)
        second = await two.attempts.claim_due("two", NOW, LATER, 4)
    assert (ids(first), ids(second)) == (["a-0", "a-1", "a-2", "a-3"], ["a-4", "a-5"])


async def test_stops_wanted_are_asked_again_only_after_a_while(store: PostgresStore) -> None:
    stop = {"stop_intent": StopIntent.CANCEL}
    await fill_with(
        store,
        attempt(0),
        attempt(1, **stop, stop_requested_at=ago(10)),
        attempt(2, **stop),
        attempt(3, **stop, stop_requested_at=ago(90)),
        attempt(4, **stop, **ENDED),
    )
    async with store.transaction() as tx:
        assert ids(await tx.attempts.stops_wanted(NOW, ago(30), 9)) == ["a-2", "a-3"]
        assert ids(await tx.attempts.stops_wanted(NOW, ago(30), 1)) == ["a-2"]


async def test_a_queue_gives_back_what_it_has_not_started(store: PostgresStore) -> None:
    waiting = {"state": AttemptState.QUEUED}
    await fill_with(
        store,
        attempt(0, **waiting),
        attempt(1, state=AttemptState.SUBMITTING),
        attempt(2, **waiting, stop_intent=StopIntent.SUPERSEDE),
        attempt(3),
        attempt(4, **waiting, queue="g5"),
        attempt(5, **waiting, kind=JobKind.INDEX, shard=None),
        attempt(6, **waiting),
    )
    async with store.transaction() as tx:
        assert await tx.attempts.intend_stop_queue("g6e", StopIntent.FALL_BACK, 2) == 2
        assert await tx.attempts.intend_stop_queue("g6e", StopIntent.PAUSE, 9) == 1
        assert await tx.attempts.intend_stop_queue("g6e", StopIntent.PAUSE, 9) == 0
        intents = {found.id: found.stop_intent for found in await tx.attempts.of_job("j-1")}
    fall_back, supersede, pause = StopIntent.FALL_BACK, StopIntent.SUPERSEDE, StopIntent.PAUSE
    # The newest first, and of one time the last: what has waited longest stays at the head.
    assert list(intents.values()) == [pause, fall_back, supersede, None, None, None, fall_back]


async def test_a_stop_may_be_of_one_request_only(store: PostgresStore) -> None:
    waiting: dict[str, Any] = {"state": AttemptState.QUEUED, "started_at": None}
    await fill_with(store, attempt(0, **waiting), attempt(1, **waiting), attempt(2), attempt(3, queue="g5", **waiting))
    async with store.transaction() as tx:
        assert await tx.attempts.waiting(9) == [
            Waiting(queue="g5", request_id="r-1", attempts=1),
            Waiting(queue="g6e", request_id="r-1", attempts=2),
        ]
        assert await tx.attempts.intend_stop_queue("g6e", StopIntent.FALL_BACK, 9, "r-2") == 0
        assert await tx.attempts.intend_stop_queue("g6e", StopIntent.FALL_BACK, 1, "r-1") == 1
        assert await tx.attempts.waiting(1) == [Waiting(queue="g5", request_id="r-1", attempts=1)]
        loads = {load.name: load for load in await tx.attempts.loads()}
    assert (loads["g6e"].queued, loads["g6e"].stopping, loads["g6e"].waiting) == (2, 1, 1)


@pytest.mark.parametrize(
    ("intent", "marked", "expected"),
    [
        (StopIntent.PAUSE, 1, [StopIntent.PAUSE, StopIntent.FALL_BACK, None, None, None]),
        (StopIntent.CANCEL, 4, [StopIntent.CANCEL] * 4 + [None]),
    ],
)
async def test_a_request_stops_what_the_intent_is_for(
    store: PostgresStore, intent: StopIntent, marked: int, expected: list[StopIntent | None]
) -> None:
    await fill_with(
        store,
        attempt(0, state=AttemptState.QUEUED),
        attempt(1, state=AttemptState.QUEUED, stop_intent=StopIntent.FALL_BACK, stop_requested_at=NOW),
        attempt(2),
        attempt(3, kind=JobKind.INDEX, shard=None),
        attempt(4, **ENDED),
    )
    async with store.transaction() as tx:
        assert await tx.attempts.intend_stop_request("r-1", intent) == marked
        assert await tx.attempts.intend_stop_request("r-1", intent) == 0
        assert [found.stop_intent for found in await tx.attempts.of_job("j-1")] == expected
        wanted = ids(await tx.attempts.stops_wanted(NOW, ago(30), 9))
    assert wanted == (["a-0", "a-1", "a-2", "a-3"] if intent is StopIntent.CANCEL else ["a-0"])


async def test_single_changes_of_intent_and_misses(store: PostgresStore) -> None:
    await fill_with(store, attempt(0))
    async with store.transaction() as tx:
        assert await tx.attempts.apply(stop_wanted(attempt(0), StopIntent.SUPERSEDE))
        assert await tx.attempts.apply(missed(attempt(0)))
    assert await read(store) == attempt(0, stop_intent=StopIntent.SUPERSEDE, misses=1)


async def test_loads_count_gpu_work_by_queue_and_remember_the_last_start(store: PostgresStore) -> None:
    await fill_with(
        store,
        attempt(0, state=AttemptState.SUBMITTING, started_at=None),
        attempt(1, state=AttemptState.QUEUED, queued_at=ago(5), started_at=None),
        attempt(2, state=AttemptState.QUEUED, queued_at=ago(50), started_at=None),
        attempt(3, started_at=ago(90)),
        attempt(4, started_at=ago(9), **ENDED),
        attempt(5, queue="g5", started_at=ago(7), **ENDED),
        attempt(6, queue="g6", started_at=ago(8), **ENDED),
        attempt(7, kind=JobKind.INDEX, shard=None, queue="cpu"),
    )
    async with store.transaction() as tx:
        await tx.queues.put(QueueState(name="g5"))
        loads = await tx.attempts.loads()
    assert loads == [
        QueueLoad(name="g5", last_started_at=ago(7)),
        QueueLoad(name="g6e", submitting=1, queued=2, running=1, oldest_queued_at=ago(50), last_started_at=ago(9)),
    ]


async def test_after_our_own_silence_nobody_is_silent(store: PostgresStore) -> None:
    await fill_with(
        store,
        attempt(0, last_contact_at=ago(900)),
        attempt(1, last_contact_at=ago(5)),
        attempt(2, last_contact_at=ago(900), **ENDED),
    )
    async with store.transaction() as tx:
        assert await tx.attempts.hear_again(ago(60), NOW) == 1
        heard = [found.last_contact_at for found in await tx.attempts.of_job("j-1")]
    assert heard == [NOW, ago(5), ago(900)]
