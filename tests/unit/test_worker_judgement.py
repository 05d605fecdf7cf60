"""Pure decisions of the inference job: tolerance, isolation, shares of ranks, which entry is ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schema.assignment import Entry, InferAssignment
from schema.exit_codes import ExitCode
from worker.context import Stopped
from worker.isolation import TooDeadly, find_poison
from worker.main import pick_entry
from worker.ranks import share
from worker.settings import BatchIdentity, Settings
from worker.tolerance import Verdict, judge


@pytest.mark.parametrize(
    ("statuses", "rows", "finalise", "verdict"),
    [
        ({"ok": 90, "missing": 5}, 100, False, Verdict.GO_ON),
        ({"ok": 90, "missing": 6}, 100, False, Verdict.BAD_DATA),
        ({"missing": 5}, 100, False, Verdict.GO_ON),
        ({"ok": 10, "throttled": 50}, 100, False, Verdict.GO_ON),
        ({"ok": 10, "throttled": 50}, 100, True, Verdict.BAD_DATA),
        ({"denied": 100}, 1000, False, Verdict.ALL_DENIED),
        ({"denied": 99}, 1000, False, Verdict.GO_ON),
        ({"denied": 3}, 3, False, Verdict.ALL_DENIED),
        ({"denied": 500, "ok": 1}, 1000, False, Verdict.GO_ON),
        ({}, 0, False, Verdict.GO_ON),
        ({}, 10, False, Verdict.GO_ON),
    ],
)
def test_tolerance(statuses: dict[str, int], rows: int, finalise: bool, verdict: Verdict) -> None:
    assert judge(statuses, rows, 0.05, finalise=finalise) is verdict


@given(st.lists(st.sampled_from(["ok", "missing", "throttled"]), min_size=1, max_size=60), st.floats(0, 1))
def test_a_verdict_before_the_end_is_the_verdict_at_the_end(rows: list[str], tolerance: float) -> None:
    """Whatever comes later, bad data seen early is bad data."""
    verdicts = []
    for seen in range(1, len(rows) + 1):
        counts = {status: rows[:seen].count(status) for status in set(rows[:seen])}
        verdicts.append(judge(counts, len(rows), tolerance, finalise=False))
    if Verdict.BAD_DATA in verdicts:
        assert verdicts[-1] is Verdict.BAD_DATA


@given(start=st.integers(0, 1000), length=st.integers(0, 200), offsets=st.sets(st.integers(0, 199), max_size=6))
def test_isolation_finds_exactly_what_kills(start: int, length: int, offsets: set[int]) -> None:
    deadly = {start + offset for offset in offsets if offset < length}
    runs = 0

    def survives(low: int, high: int) -> bool:
        nonlocal runs
        runs += 1
        assert start <= low < high <= start + length
        return not deadly & set(range(low, high))

    assert find_poison(start, start + length, survives) == sorted(deadly)
    assert runs <= 1 + 2 * len(deadly) * 8


def test_isolation_blames_no_asset_for_a_death_of_another_cause() -> None:
    deaths = iter([False, True, True])
    assert find_poison(0, 8, lambda _low, _high: next(deaths)) == []


def test_isolation_gives_up_on_a_host_that_kills_everything() -> None:
    with pytest.raises(TooDeadly):
        find_poison(0, 64, lambda _low, _high: False)


@given(count=st.integers(0, 50), world=st.integers(1, 9))
def test_shares_are_disjoint_complete_and_never_empty(count: int, world: int) -> None:
    shares = share(range(count), world)
    assert sorted(item for mine in shares for item in mine) == list(range(count))
    assert all(shares)
    assert len(shares) == min(world, count)
    assert not shares or max(map(len, shares)) - min(map(len, shares)) <= 1


def assignment(entries: int, nodes: int | None = None, void: bool = False) -> InferAssignment:
    return InferAssignment(
        request_id="r",
        job_id="j",
        tenant="t",
        void=void,
        control_bucket="c",
        report_queue_url="q",
        entries=[Entry(attempt_id=f"a{index}", token="t") for index in range(entries)],
        source_bucket="s",
        output_uri="s3://o/d",
        model="m@1",
        preprocessing_digest="p",
        chunk_assets=1,
        nodes=nodes,
    )


@pytest.mark.parametrize(
    ("environment", "given_", "attempt"),
    [
        ({}, assignment(1), "a0"),
        ({"AWS_BATCH_JOB_ARRAY_INDEX": "2"}, assignment(3), "a2"),
        ({"AWS_BATCH_JOB_NODE_INDEX": "1", "AWS_BATCH_JOB_NUM_NODES": "2"}, assignment(2, nodes=2), "a1"),
    ],
    ids=["lone", "array", "node"],
)
def test_which_entry_is_ours(environment: dict[str, str], given_: InferAssignment, attempt: str) -> None:
    settings = Settings("uri", BatchIdentity.from_environment(environment))
    assert pick_entry(given_, settings).attempt_id == attempt


@pytest.mark.parametrize(
    ("environment", "given_", "code"),
    [
        ({"AWS_BATCH_JOB_ARRAY_INDEX": "3"}, assignment(3), ExitCode.ASSIGNMENT_MISMATCH),
        ({"AWS_BATCH_JOB_NUM_NODES": "3"}, assignment(2, nodes=2), ExitCode.ASSIGNMENT_MISMATCH),
        ({}, assignment(2, nodes=2), ExitCode.ASSIGNMENT_MISMATCH),
        ({"AWS_BATCH_JOB_NUM_NODES": "2"}, assignment(2), ExitCode.ASSIGNMENT_MISMATCH),
        ({}, assignment(1, void=True), ExitCode.VOID),
    ],
)
def test_what_is_not_ours_is_not_run(environment: dict[str, str], given_: InferAssignment, code: ExitCode) -> None:
    with pytest.raises(Stopped) as stopped:
        pick_entry(given_, Settings("uri", BatchIdentity.from_environment(environment)))
    assert stopped.value.code is code


def test_settings_say_what_is_missing_and_prefer_the_command_line() -> None:
    with pytest.raises(ValueError, match="REEMBED_ASSIGNMENT"):
        Settings.from_environment({})
    environment = {"REEMBED_ASSIGNMENT": "s3://b/k", "REEMBED_RANKS": "2", "REEMBED_STOP_SECONDS": "1.5"}
    assert Settings.from_environment(environment).ranks == 2
    assert Settings.from_environment(environment, ranks=8).ranks == 8
    assert Settings.from_environment(environment).stop_seconds == 1.5
