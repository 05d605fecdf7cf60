"""Laws of the core that hold for any input."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from controller.core import transitions
from controller.core.batching import batches, spread
from controller.core.outcome import Evidence, classify
from controller.core.placement import Choice, QueueSpec, place
from controller.core.progress import figure_deltas
from controller.core.retry import GiveUp, Limits, Retry, decide
from schema.plan import Figures
from schema.states import AttemptState, Outcome, ShardState, StopIntent
from tests.builders import NOW, attempt, marker, request, shard

LIMITS = Limits(failures=4, backoff_seconds=30, backoff_max_seconds=900, isolate_after=2)
reasons = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["Host EC2 (instance i-1) terminated.", "Job attempt duration exceeded timeout", "Task failed to start", ""]
    ),
)
evidence = st.builds(
    Evidence,
    committed=st.booleans(),
    started=st.booleans(),
    stop_intent=st.none() | st.sampled_from(StopIntent),
    worker_exit_code=st.none() | st.integers(0, 255),
    batch_status=st.none() | st.sampled_from(["SUCCEEDED", "FAILED", "RUNNING", "SOMETHING_NEW"]),
    status_reason=reasons,
    container_reason=reasons,
    batch_exit_code=st.none() | st.integers(0, 255),
)


@given(evidence)
def test_classify_is_total_and_success_needs_a_commit(seen: Evidence) -> None:
    assert (classify(seen) is Outcome.SUCCEEDED) == seen.committed


@given(st.lists(st.sampled_from(Outcome), min_size=1, max_size=80), st.floats(0, 0.999))
def test_a_retry_is_never_in_the_past_nor_beyond_the_cap(outcomes: list[Outcome], jitter: float) -> None:
    history = [attempt(i, outcome=o, state=AttemptState.ENDED) for i, o in enumerate(outcomes)]
    verdict = decide(outcomes[-1], history, NOW, LIMITS, jitter)
    if isinstance(verdict, Retry):
        assert 0 <= (verdict.eligible_at - NOW).total_seconds() <= LIMITS.backoff_max_seconds
    else:
        assert isinstance(verdict, GiveUp)
        assert verdict.reason


@given(st.integers(1, 200), st.integers(2, 50))
def test_batches_hold_each_shard_once_within_the_size(count: int, array_max: int) -> None:
    placed = [("g6e" if i % 3 else "g6", shard(i)) for i in range(count)]
    made = batches(placed, {"r-1": request()}, array_max)
    assert sorted((b.queue, s.shard) for b in made for s in b.shards) == sorted((q, s.shard) for q, s in placed)
    assert all(1 <= len(b.shards) <= array_max for b in made)


@given(st.integers(1, 300))
def test_spread_is_a_permutation_with_neighbours_apart(count: int) -> None:
    order = [s.shard for s in spread([shard(i) for i in range(count)])]
    assert sorted(order) == list(range(count))
    if count >= 9:
        assert all(abs(a - b) > 1 for a, b in pairwise(order))


@given(st.integers(0, 50), st.dictionaries(st.sampled_from(["g6e", "g6", "g5"]), st.integers(0, 20)))
def test_placement_never_exceeds_a_room_nor_leaves_one_idle(count: int, rooms: dict[str, int]) -> None:
    queues = [QueueSpec(name=name, max_live=99, backlog=99, price_usd_per_hour=1) for name in ("g6e", "g6", "g5")]
    placed = place([shard(i) for i in range(count)], {"r-1": Choice(queues=queues).of(request())}, rooms)
    used = {name: sum(q == name for q, _ in placed) for name in rooms}
    assert all(used[name] <= rooms[name] for name in rooms)
    assert len(placed) == min(count, sum(rooms.values()))


@given(
    st.sampled_from(ShardState),
    st.sampled_from(["a-0", "a-1", None]),
    st.none() | st.integers(0, 255),
    st.booleans(),
)
def test_settling_only_moves_the_current_attempt_s_shard_or_commits(
    state: ShardState, current: str | None, code: int | None, committed: bool
) -> None:
    target = shard(state=state, attempt_id=current)
    settled = transitions.settle(
        attempt(worker_exit_code=code),
        target,
        [],
        marker=marker(target) if committed else None,
        done=False,
        now=NOW,
        limits=LIMITS,
        jitter=0.5,
    )
    if settled.shard is not None:
        assert state in settled.shard.expected
        assert committed or current == "a-0"


figures = st.builds(Figures, assets=st.integers(0, 9), ok=st.integers(0, 9), fetch_seconds=st.floats(0, 9))


@given(figures, figures)
def test_deltas_only_grow(before: Figures, after: Figures) -> None:
    assert all(delta > 0 for delta in figure_deltas(before, after).values())
    assert figure_deltas(after, after) == {}
