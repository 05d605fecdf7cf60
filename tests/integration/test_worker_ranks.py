"""Ranks share a shard: together exact, apart disjoint; and what kills or stops them costs no finished chunk."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from schema.exit_codes import ExitCode
from schema.states import RowStatus
from tests.integration.worker_site import Attempt, Faults, Site, photos, wait_for

STAGES = ("worker.rank", "worker.engine", "worker.decode")


@pytest.fixture
def site(s3_client: Any, proxy: str, aws_endpoint: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(s3_client, proxy, aws_endpoint, tmp_path)
    yield site
    site.close()


def family(attempt: Attempt) -> list[psutil.Process]:
    """Every living process of every rank."""
    return [process for stage in STAGES for process in attempt.children(stage)]


def another_rank(attempt: Attempt, killed: set[int]) -> psutil.Process:
    """The one rank that is alive and was not killed yet."""

    def living() -> list[psutil.Process]:
        return [rank for rank in attempt.children("worker.rank", direct=True) if rank.pid not in killed]

    (rank,) = wait_for(lambda: living() if len(living()) == 1 else None, "a single rank")
    return rank


@pytest.mark.parametrize(
    ("ranks", "chunk_assets", "chunks"), [(2, 4, 5), (8, 1, 18), (8, 4, 5)], ids=["two", "eight", "more than chunks"]
)
def test_ranks_share_a_shard_exactly(site: Site, ranks: int, chunk_assets: int, chunks: int) -> None:
    bodies = photos(18)
    entry = site.plan(site.put_photos(bodies), chunk_assets=chunk_assets)
    attempt = site.start(site.assign(entry), ranks=ranks)
    seen: set[int] = set()
    while attempt.process.poll() is None:
        seen |= {rank.pid for rank in attempt.children("worker.rank", direct=True)}
    assert attempt.wait() is ExitCode.OK, attempt.log
    assert len(seen) == min(ranks, chunks)  # a rank without a chunk is not started

    rows = site.rows()
    assert [(row.ordinal, row.key.decode()) for row in rows] == list(enumerate(sorted(bodies)))  # the union is exact
    assert {row.status for row in rows} == {RowStatus.OK}
    assert len(site.chunk_keys()) == chunks  # disjoint: no chunk was written twice
    figures = site.ended().figures
    assert (figures.chunks_done, figures.assets) == (chunks, 18)  # and none was done twice
    assert figures.bytes_fetched == sum(map(len, bodies.values()))


def test_a_killed_rank_is_restarted_and_its_chunks_are_done(site: Site, faults: Faults) -> None:
    faults(site.slow_get("stock/011", 600.0))
    attempt = site.start(site.assign(site.plan(site.put_photos(photos(12)), chunk_assets=3)), ranks=2)
    wait_for(lambda: len(site.chunk_keys()) == 3, "all chunks but the one that hangs")
    faults()
    another_rank(attempt, set()).kill()
    assert attempt.wait() is ExitCode.OK, attempt.log
    assert [row.ordinal for row in site.rows()] == list(range(12))
    assert {row.status for row in site.rows()} == {RowStatus.OK}
    assert "rank lost" in attempt.log


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_that_dies_twice_ends_the_job_and_keeps_all_finished_chunks(
    site: Site, faults: Faults, ranks: int
) -> None:
    faults(site.slow_get("stock/007", 600.0))
    entry = site.plan(site.put_photos(photos(8)), chunk_assets=2)
    attempt = site.start(site.assign(entry), ranks=ranks)
    wait_for(lambda: len(site.chunk_keys()) == 3, "all chunks but the one that hangs, of whatever rank")
    killed: set[int] = set()
    for _ in range(2):
        rank = another_rank(attempt, killed)
        killed.add(rank.pid)
        rank.kill()
    assert attempt.wait() is ExitCode.CRASHED, attempt.log
    report = site.ended()
    assert (report.exit_code, report.open_chunks, report.chunks_left) == (ExitCode.CRASHED, [3], 1)
    assert len(site.chunk_keys()) == 3
    assert site.marker() is None

    faults()
    assert site.run(entry, ranks=ranks) is ExitCode.OK
    figures = site.ended().figures
    assert (figures.chunks_reused, figures.chunks_done, figures.assets) == (3, 1, 2)
    assert [row.ordinal for row in site.rows()] == list(range(8))


def test_the_other_rank_goes_on_while_one_dies_for_good(site: Site, faults: Faults) -> None:
    """Rank 1 hangs in its first chunk and dies twice, while rank 0 still has one to finish."""
    faults(site.slow_get("stock/001", 600.0), site.slow_get("stock/006", 600.0))
    entry = site.plan(site.put_photos(photos(8)), chunk_assets=1)
    attempt = site.start(site.assign(entry), ranks=2)
    wait_for(lambda: len(site.chunk_keys()) == 6, "all chunks but the two that hang")
    first, second = sorted(
        attempt.children("worker.rank", direct=True), key=lambda rank: (rank.create_time(), rank.pid)
    )
    second.kill()
    (reborn,) = wait_for(
        lambda: [rank for rank in attempt.children("worker.rank", direct=True) if rank not in (first, second)],
        "the second life",
    )
    reborn.kill()
    wait_for(lambda: attempt.log.count("rank lost") == 2, "the end of its lives")
    assert attempt.process.poll() is None
    faults()
    first.kill()  # its request hangs in the proxy; the restarted one is answered at once
    assert attempt.wait() is ExitCode.CRASHED, attempt.log
    assert site.ended().open_chunks == [1]
    assert len(site.chunk_keys()) == 7


@pytest.mark.parametrize("ranks", [1, 2])
def test_sigterm_finishes_the_open_chunks(site: Site, faults: Faults, ranks: int) -> None:
    """A second SIGTERM changes nothing, nor do those that reach the children: only the first process decides."""
    faults(site.slow_get("stock/", 0.2))
    entry = site.plan(site.put_photos(photos(24)), chunk_assets=2)
    attempt = site.start(site.assign(entry, fetch_concurrency=ranks), ranks=ranks)
    wait_for(site.chunk_keys, "a first chunk")
    attempt.process.send_signal(signal.SIGTERM)
    wait_for(lambda: len(site.chunk_keys()) > 1, "an open chunk to be finished")
    for process in [psutil.Process(attempt.process.pid), *family(attempt)]:
        process.send_signal(signal.SIGTERM)
    assert attempt.wait() is ExitCode.INTERRUPTED, attempt.log
    report = site.ended()
    assert report.exit_code is ExitCode.INTERRUPTED
    assert report.open_chunks == []
    kept = len(site.chunk_keys())
    assert 2 <= kept < 12
    assert report.chunks_left == 12 - kept
    assert site.marker() is None

    faults()
    assert site.run(entry, ranks=ranks) is ExitCode.OK
    assert site.ended().figures.chunks_reused == kept
    assert len(site.rows()) == 24


def test_sigterm_does_not_wait_for_a_chunk_that_takes_too_long(site: Site, faults: Faults) -> None:
    faults(site.slow_get("stock/003", 600.0))
    entry = site.plan(site.put_photos(photos(4)), chunk_assets=2)
    attempt = site.start(site.assign(entry), REEMBED_STOP_SECONDS="0.5")
    wait_for(site.chunk_keys, "the first chunk")
    started = family(attempt)
    attempt.process.send_signal(signal.SIGTERM)
    assert attempt.wait() is ExitCode.INTERRUPTED, attempt.log
    assert site.ended().open_chunks == [1]
    wait_for(lambda: not any(process.is_running() for process in started), "the children's end")


def test_a_killed_worker_leaves_no_process_and_no_broken_chunk(site: Site, faults: Faults) -> None:
    faults(site.slow_get("stock/009", 600.0))
    entry = site.plan(site.put_photos(photos(12)))
    attempt = site.start(site.assign(entry), ranks=2)
    wait_for(lambda: len(site.chunk_keys()) == 2, "two chunks")
    started = family(attempt)
    assert len(started) >= 3  # one rank may have ended with its share
    attempt.process.send_signal(signal.SIGKILL)
    attempt.process.wait()
    wait_for(lambda: not any(process.is_running() for process in started), "the children's end")

    faults()
    assert site.run(entry) is ExitCode.OK
    assert site.ended().figures.chunks_reused == 2
    assert len(site.rows()) == 12
