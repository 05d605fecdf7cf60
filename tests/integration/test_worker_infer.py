"""The inference job end to end: the real worker as a subprocess, real S3 and SQS protocols."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from schema.exit_codes import ExitCode
from schema.messages import ReportKind
from schema.shardfile import Address
from schema.states import RowStatus
from tests.integration.worker_site import Site, photo, photos, wait_for
from worker.models import registry


@pytest.fixture
def site(s3_client: Any, aws_endpoint: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(s3_client, aws_endpoint, aws_endpoint, tmp_path)
    yield site
    site.close()


LITE0 = {
    "model": "efficientnet-lite0@1",
    "preprocessing_digest": registry.find("efficientnet-lite0@1").preprocessing_digest,
}


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


def test_ranks_and_one_rank_give_the_same_vectors(site: Site) -> None:
    entry = site.plan(site.put_photos(photos(9)))
    assert site.run(entry, ranks=1) is ExitCode.OK
    alone = site.rows()
    assert site.run(entry.model_copy(update={"generation": 2, "shard": 1}), ranks=2) is ExitCode.OK
    marker = site.marker(1, generation=2)
    assert marker is not None
    assert marker.ok == 9
    site.s3.put_object(  # so that `rows` finds it
        Bucket=site.output_bucket, Key=site.output.join("commits/0000001/g1.json").key, Body=marker.to_bytes()
    )
    for one, other in zip(alone, site.rows(1), strict=True):
        assert one.key == other.key
        assert one.embedding is not None
        assert other.embedding is not None
        np.testing.assert_allclose(one.embedding, other.embedding, atol=2e-3)


def test_every_awkward_file_gets_its_row(site: Site) -> None:
    grey16 = io.BytesIO()
    Image.fromarray(np.linspace(0, 65535, 64 * 64, dtype=np.uint16).reshape(64, 64)).save(grey16, "PNG")
    cmyk = io.BytesIO()
    Image.open(io.BytesIO(photo(3))).convert("CMYK").save(cmyk, "JPEG")
    bodies = {
        "a b+%2B.jpg": photo(1),
        "a//double.jpg": photo(2),
        "cmyk.jpg": cmyk.getvalue(),
        "deep/../dots.jpg": photo(4),
        "empty.jpg": b"",
        "grey16.png": grey16.getvalue(),
        "page.jpg": b"<!doctype html><title>404</title>",
        "truncated.jpg": photo(5)[:-400],
        "/leading.jpg": photo(6),
        "wörld/写真.webp": photo(7, image_format="WEBP"),
        "large.png": photo(8, size=(900, 900), image_format="PNG"),
    }
    addresses = site.put_photos(bodies)
    addresses += [Address(b"zz-gone.jpg", 10, "x"), Address(b"zz-replaced.jpg", 3, "feed")]
    site.s3.put_object(Bucket=site.source, Key="zz-replaced.jpg", Body=photo(9))
    entry = site.plan(addresses, chunk_assets=5)
    assert site.run(entry, ranks=2, max_image_pixels=500_000) is ExitCode.OK

    assert_complete(site, [address.key.decode() for address in addresses], chunks=3)
    statuses = {row.key.decode(): row.status for row in site.rows()}
    bad = {key: status for key, status in statuses.items() if status is not RowStatus.OK}
    assert bad == {
        "empty.jpg": RowStatus.UNREADABLE,
        "large.png": RowStatus.TOO_LARGE,
        "page.jpg": RowStatus.UNSUPPORTED,
        "truncated.jpg": RowStatus.UNREADABLE,
        "zz-gone.jpg": RowStatus.MISSING,
        "zz-replaced.jpg": RowStatus.CHANGED,
    }
    marker = site.marker()
    assert marker is not None
    assert marker.statuses == dict(sorted(Counter(map(str, statuses.values())).items()))


def test_the_next_attempt_keeps_finished_chunks_and_ignores_broken_ones(site: Site) -> None:
    bodies = photos(12)
    entry = site.plan(site.put_photos(bodies))
    assert site.run(entry) is ExitCode.OK
    first = site.rows()
    site.reports()
    keys = site.chunk_keys()
    site.s3.delete_object(Bucket=site.output_bucket, Key=site.output.join("commits/0000000/g1.json").key)
    site.s3.put_object(Bucket=site.output_bucket, Key=site.output.join(keys[1]).key, Body=b"cut short")

    assert site.run(entry, ranks=2) is ExitCode.OK
    assert_complete(site, list(bodies), chunks=3)
    figures = site.ended().figures
    assert (figures.chunks_reused, figures.chunks_done, figures.assets) == (2, 1, 4)
    for one, other in zip(first, site.rows(), strict=True):
        assert (one.key, one.status) == (other.key, other.status)


def test_a_committed_shard_is_not_done_again(site: Site) -> None:
    entry = site.plan(site.put_photos(photos(3)))
    assert site.run(entry) is ExitCode.OK
    site.reports()
    assert site.run(entry) is ExitCode.OK
    assert site.ended().figures.assets == 0
    marker = site.marker()
    assert marker is not None
    assert marker.attempt_id == "a1-0"


def test_too_many_bad_rows_withhold_the_marker_and_keep_the_chunks(site: Site) -> None:
    bodies = photos(4) | {f"stock/{number}.jpg": b"not an image" for number in range(5)}
    assert site.run(site.plan(site.put_photos(bodies)), tolerance=0.4) is ExitCode.BAD_DATA
    assert site.marker() is None
    assert site.chunk_keys()
    report = site.ended()
    assert report.exit_code is ExitCode.BAD_DATA
    assert "unsupported" in (report.error or "")


def test_array_and_node_indexes_pick_their_entry(site: Site) -> None:
    addresses = site.put_photos(photos(4))
    entries = [site.plan(addresses[:2], shard=0), site.plan(addresses[2:], shard=1)]
    attempt = site.start(site.assign(*entries), AWS_BATCH_JOB_ARRAY_INDEX="1", AWS_BATCH_JOB_ID="j:1")
    assert attempt.wait() is ExitCode.OK, attempt.log
    assert site.marker(0) is None
    assert [row.key for row in site.rows(1)] == [address.key for address in addresses[2:]]
    report = site.ended()
    assert (report.shard, report.batch_job_id, report.attempt_id) == (1, "j:1", "a1-1")


@pytest.mark.parametrize(
    ("environment", "changes", "code"),
    [
        ({"AWS_BATCH_JOB_ARRAY_INDEX": "7"}, {}, ExitCode.ASSIGNMENT_MISMATCH),
        ({"AWS_BATCH_JOB_NODE_INDEX": "0", "AWS_BATCH_JOB_NUM_NODES": "3"}, {"nodes": 2}, ExitCode.ASSIGNMENT_MISMATCH),
        ({}, {"void": True}, ExitCode.VOID),
        ({}, {"model": "absent@1"}, ExitCode.CONFIG_ERROR),
        ({}, {"preprocessing_digest": "another"}, ExitCode.CONFIG_ERROR),
        ({}, {"source_bucket": "no-such-bucket"}, ExitCode.CONFIG_ERROR),
        ({"REEMBED_DEVICE": "cuda"}, LITE0, ExitCode.HOST_SICK),
    ],
    ids=["array index", "nodes", "void", "model", "preprocessing", "bucket", "no GPU"],
)
def test_what_cannot_be_run_says_why(
    site: Site, environment: dict[str, str], changes: dict[str, Any], code: ExitCode
) -> None:
    entry = site.plan(site.put_photos(photos(2)))
    assert site.run(entry, environment=environment, **changes) is code
    assert site.marker() is None


def test_the_main_node_ends_after_the_others(site: Site) -> None:
    addresses = site.put_photos(photos(8))
    entries = [site.plan(addresses[:1], shard=0), site.plan(addresses[1:], shard=1)]
    uri = site.assign(*entries, nodes=2)
    nodes = {"AWS_BATCH_JOB_NUM_NODES": "2", "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0"}
    main = site.start(uri, AWS_BATCH_JOB_NODE_INDEX="0", **nodes)
    wait_for(lambda: site.marker(0), "the main node's own commit")
    assert main.process.poll() is None
    other = site.start(uri, AWS_BATCH_JOB_NODE_INDEX="1", **nodes)
    assert other.wait() is ExitCode.OK, other.log
    assert main.wait() is ExitCode.OK, main.log
    assert site.marker(1) is not None


def test_the_main_node_gives_up_on_silent_peers(site: Site) -> None:
    addresses = site.put_photos(photos(2))
    entries = [site.plan(addresses[:1], shard=0), site.plan(addresses[1:], shard=1)]
    main = site.start(
        site.assign(*entries, nodes=2),
        AWS_BATCH_JOB_NUM_NODES="2",
        AWS_BATCH_JOB_MAIN_NODE_INDEX="0",
        AWS_BATCH_JOB_NODE_INDEX="0",
        REEMBED_PEERS_IDLE_SECONDS="0.1",
    )
    assert main.wait() is ExitCode.OK, main.log
    assert site.marker(1) is None
