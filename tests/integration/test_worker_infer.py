"""The inference job end to end: the real worker as a subprocess, real S3 and SQS protocols."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schema.exit_codes import ExitCode
from schema.messages import ReportKind
from schema.states import RowStatus
from tests.integration.worker_site import Site, photo


@pytest.fixture
def site(s3_client: Any, aws_endpoint: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(s3_client, aws_endpoint, aws_endpoint, tmp_path)
    yield site
    site.close()


def photos(count: int) -> dict[str, bytes]:
    return {f"stock/{number:03d}.jpg": photo(number) for number in range(count)}


def assert_complete(site: Site, keys: list[str], *, chunks: int) -> None:
    """I11 for one shard: every listed asset has exactly one row, in order, whatever the marker says."""
    rows = site.rows()
    assert [row.key.decode() for row in rows] == sorted(keys, key=str.encode)
    assert [row.ordinal for row in rows] == list(range(len(keys)))
    marker = site.marker()
    assert marker is not None
    assert [chunk.chunk for chunk in marker.chunks] == list(range(chunks))
    assert marker.rows == marker.ok + marker.bad == len(keys)
    assert marker.ok == sum(row.status is RowStatus.OK for row in rows)


def test_a_shard_becomes_chunks_a_commit_and_reports(site: Site) -> None:
    bodies = photos(10)
    assert site.run(site.plan(site.put_photos(bodies)), ranks=1) is ExitCode.OK
    assert_complete(site, list(bodies), chunks=3)
    for row in site.rows():
        assert row.status is RowStatus.OK
        assert row.picture is not None
        assert (row.picture.width, row.picture.height, row.picture.format) == (160, 120, "JPEG")
        assert row.embedding is not None
        assert np.linalg.norm(row.embedding) == pytest.approx(1, abs=1e-2)
    reports = site.reports()
    assert [report.seq for report in reports] == list(range(len(reports)))
    assert reports[0].kind is ReportKind.STARTED
    assert reports[-1].kind is ReportKind.ENDED
    assert reports[-1].exit_code is ExitCode.OK
    assert reports[-1].figures.assets == reports[-1].figures.ok == 10
    assert reports[-1].figures.bytes_fetched == sum(map(len, bodies.values()))
    assert reports[-1].chunks_left == 0
