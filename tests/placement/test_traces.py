"""Placement on the committed traces, cut to a size that runs in seconds; `make simulate-placement` plays them whole."""

from __future__ import annotations

import pytest

from controller.store import PostgresStore
from tests.placement.__main__ import score, work_of
from tests.placement.bounds import cheapest_usd, shortest_seconds
from tests.placement.controller import Controller, ours
from tests.placement.loops import play_loops, scaled
from tests.placement.traces import HOUR, Trace, committed
from tests.placement.world import TICK_SECONDS, World

TRACES = {trace.name: trace for trace in committed()}
SCALE = 40


def test_the_traces_are_the_hard_ones_that_they_claim_to_be() -> None:
    slow = [t.name for t in TRACES.values() if t.dwell_seconds >= 600 and t.longest_dry_seconds >= HOUR]
    assert len(TRACES) >= 10
    assert len(slow) >= 6
    assert sum(trace.storms for trace in TRACES.values()) >= 2


@pytest.mark.parametrize("name", ["dry-everywhere", "spot-storms", "quota-wall"])
def test_near_the_bound_and_before_every_baseline(name: str) -> None:
    found = score(TRACES[name])
    assert found.over_bound["ours"] <= 1.15
    assert found.over_cheapest["ours"] <= 1.1
    assert found.beaten_by == []


def test_nothing_beats_the_bound() -> None:
    """Enough for ever, from the start: the bound is the work by the rate, and one start-up."""
    plenty = Trace(name="plenty", about="", queues={"g6e": ((0.0, 100),), "g6": ((0.0, 0),), "g5": ((0.0, 0),)})
    work = [1.0] * 1000
    assert shortest_seconds(plenty, work) == pytest.approx(180 + 10 * 630)
    # Each instance is paid for from its launch on.
    assert cheapest_usd(plenty, work, 6480) == pytest.approx(100 * 6480 / 3600 * 1.861)
    assert ours(plenty, work).makespan_seconds >= 6480


def test_a_twentieth_is_used_at_once_and_what_is_added_within_two_rounds() -> None:
    """Instances that are up or launching; how long one takes to come up is EC2's affair."""
    little, full = {"g6e": 10, "g6": 8, "g5": 6}, {"g6e": 200, "g6": 160, "g5": 120}
    trace = Trace(
        name="twentyfold", about="", queues={name: ((0.0, little[name]), (HOUR, full[name])) for name in little}
    )
    world = World(trace, work_of(20_000), {name: [name] for name in little})
    controller = Controller(world, {})

    def round_of() -> dict[str, int]:
        controller.step()
        world.finished.clear()
        world.gone.clear()
        world.advance(world.now + TICK_SECONDS)
        return {name: queue.environments[0].size for name, queue in world.queues.items()}

    assert round_of() == little
    while world.now < HOUR:
        round_of()
    round_of()
    assert round_of() == full


@pytest.mark.long
@pytest.mark.parametrize("name", ["dry-preferred", "storm-then-drought"])
async def test_the_real_loops(store: PostgresStore, name: str) -> None:
    """Not a copy of the policy: what dispatch, reconcile and the store make of it."""
    trace, work = scaled(TRACES[name], SCALE), work_of(20_000 // SCALE)
    bound = shortest_seconds(trace, work)
    result = await play_loops(store, trace, work, SCALE)
    async with store.transaction() as tx:
        counts = await tx.shards.counts("r-1")
    assert counts.ok == 1000 * len(work)
    assert result.makespan_seconds <= 1.15 * bound
    assert result.usd <= 1.1 * cheapest_usd(trace, work, result.makespan_seconds)
