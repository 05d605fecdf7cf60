"""What goes wrong under a running worker: killed stages, throttling, lost answers, poison. Ranks have a file too."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from schema import layout
from schema.exit_codes import ExitCode
from schema.messages import ReportKind
from schema.states import RowStatus
from tests.integration.worker_site import Faults, Site, photo, photos, wait_for
from worker.fetch import TRIES


@pytest.fixture
def site(s3_client: Any, proxy: str, aws_endpoint: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(s3_client, proxy, aws_endpoint, tmp_path)
    yield site
    site.close()


class DenyingS3:
    """An S3 endpoint that answers 403 to every GET of one bucket's objects, and passes everything else on."""

    def __init__(self, target: str, bucket: str) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.command == "GET" and self.path.startswith(f"/{bucket}/stock"):
                    return self._send(403, {}, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>")
                headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
                answer = outer.client.request(self.command, target + self.path, headers=headers, content=body)
                return self._send(answer.status_code, dict(answer.headers), answer.content)

            def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "connection", "transfer-encoding", "server", "date"):
                        self.send_header(name, value)
                length = headers.get("content-length", str(len(body))) if self.command == "HEAD" else str(len(body))
                self.send_header("Content-Length", length)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

            do_GET = do_PUT = do_HEAD = do_POST = _answer

        self.client = httpx.Client(timeout=30)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.client.close()


def test_a_killed_engine_or_decoder_costs_no_row(site: Site, faults: Faults) -> None:
    faults(site.slow_get("stock/", 0.6))
    attempt = site.start(site.assign(site.plan(site.put_photos(photos(12))), fetch_concurrency=2))
    wait_for(site.chunk_keys, "a first chunk")
    victims = [attempt.children(name)[0] for name in ("worker.decode", "worker.engine")]
    for victim in victims:
        victim.kill()
    assert attempt.wait() is ExitCode.OK, attempt.log
    assert {row.status for row in site.rows()} <= {RowStatus.OK}
    assert len(site.rows()) == 12


def test_a_burst_of_throttling_is_ridden_out(site: Site, faults: Faults) -> None:
    entry = site.plan(site.put_photos(photos(12)))
    faults({"action": "throttled", "prefix": f"{site.source}/", "at_most": 10})
    assert site.run(entry) is ExitCode.OK
    assert site.ended().figures.throttled == 10
    assert {row.status for row in site.rows()} == {RowStatus.OK}


def test_what_the_loop_gave_up_gets_a_last_pass_in_the_same_attempt(site: Site, faults: Faults) -> None:
    entry = site.plan(site.put_photos(photos(8)))
    faults({"action": "throttled", "prefix": f"{site.source}/stock/001", "at_most": TRIES})
    assert site.run(entry) is ExitCode.OK
    assert {row.status for row in site.rows()} == {RowStatus.OK}
    figures = site.ended().figures
    assert (figures.throttled, figures.ok, figures.chunks_done) == (TRIES, 8, 2)
    assert figures.bytes_fetched == sum(map(len, photos(8).values()))  # the last pass fetched the hole alone
    assert sum(key.endswith(".partial.parquet") for key in site.chunk_keys()) == 1


def test_what_stays_throttled_is_left_to_the_next_attempt(site: Site, faults: Faults) -> None:
    entry = site.plan(site.put_photos(photos(8)))
    faults({"action": "throttled", "prefix": f"{site.source}/stock/001"})
    assert site.run(entry) is ExitCode.INCOMPLETE
    report = site.ended()
    assert (report.exit_code, report.retryable_rows, report.chunks_left) == (ExitCode.INCOMPLETE, 1, 1)
    assert (report.figures.ok, report.figures.assets) == (7, 7)
    assert site.marker() is None
    assert sum(key.endswith(".partial.parquet") for key in site.chunk_keys()) == 1

    faults()
    assert site.run(entry) is ExitCode.OK
    figures = site.ended().figures
    assert (figures.chunks_reused, figures.chunks_done, figures.assets) == (1, 1, 1)  # only the hole was fetched
    assert figures.bytes_fetched == len(photo(1))
    assert [row.ordinal for row in site.rows()] == list(range(8))
    assert {row.status for row in site.rows()} == {RowStatus.OK}
    marker = site.marker()
    assert marker is not None
    assert not any(".partial" in chunk.key for chunk in marker.chunks)


def test_at_the_cap_retryable_rows_become_final(site: Site, faults: Faults) -> None:
    entry = site.plan(site.put_photos(photos(4))).model_copy(update={"finalise_retryable": True})
    faults({"action": "throttled", "prefix": f"{site.source}/stock/001"})
    assert site.run(entry) is ExitCode.OK
    assert [row.status for row in site.rows()].count(RowStatus.THROTTLED) == 1
    marker = site.marker()
    assert marker is not None
    assert (marker.ok, marker.bad) == (3, 1)


@pytest.mark.parametrize("action", ["conflicted", "answer_lost", "reset"])
def test_an_unclear_answer_to_the_commit_is_read_back(site: Site, faults: Faults, action: str) -> None:
    entry = site.plan(site.put_photos(photos(2)))
    prefix = f"{site.output_bucket}/{site.output.key}/commits/"
    faults({"action": action, "prefix": prefix, "methods": ["PUT"], "at_most": 1})
    assert site.run(entry) is ExitCode.OK
    assert site.marker() is not None


def test_an_assignment_withdrawn_meanwhile_is_not_committed(site: Site, faults: Faults) -> None:
    entry = site.plan(site.put_photos(photos(4)), chunk_assets=2)
    faults(site.slow_get("stock/003", 600.0))
    uri = site.assign(entry)
    attempt = site.start(uri)
    wait_for(site.chunk_keys, "the first chunk")
    place = layout.Location.parse(uri)
    body = site.s3.get_object(Bucket=place.bucket, Key=place.key)["Body"].read()
    site.s3.put_object(Bucket=place.bucket, Key=place.key, Body=body.replace(b'"void":false', b'"void":true'))
    faults()
    for child in attempt.children("worker.rank"):
        child.kill()  # its request hangs in the proxy; the restarted one is answered at once
    assert attempt.wait() is ExitCode.VOID, attempt.log
    assert site.marker() is None


def test_isolation_finds_the_asset_that_kills(site: Site, faults: Faults) -> None:
    """A rank dies whenever ordinal 1 is fetched: the test is the killer."""
    faults(site.slow_get("stock/001", 600.0))
    entry = site.plan(site.put_photos(photos(3))).model_copy(update={"isolate": [0]})
    attempt = site.start(site.assign(entry))

    def kill_what_hangs() -> bool:
        if attempt.process.poll() is not None:
            return True
        delayed = httpx.get(f"{site.endpoint}/_faults").json().get("delayed", 0)
        if delayed > seen[0]:
            seen[0] = delayed
            for child in attempt.children("worker.rank"):
                child.kill()
        return False

    seen = [0]
    wait_for(kill_what_hangs, "the worker's end")
    assert attempt.wait() is ExitCode.OK, attempt.log
    rows = site.rows()
    assert [row.status for row in rows] == [RowStatus.OK, RowStatus.POISON, RowStatus.OK]
    assert site.ended().poison == [1]


def test_known_poison_is_not_touched(site: Site, faults: Faults) -> None:
    faults(site.slow_get("stock/001", 600.0))
    entry = site.plan(site.put_photos(photos(3))).model_copy(update={"skip": [1]})
    assert site.run(entry) is ExitCode.OK
    assert [row.status for row in site.rows()] == [RowStatus.OK, RowStatus.POISON, RowStatus.OK]


def test_denied_everywhere_is_an_error_of_configuration(site: Site, aws_endpoint: str) -> None:
    entry = site.plan(site.put_photos(photos(3)))
    with DenyingS3(aws_endpoint, site.source) as denying:
        attempt = site.start(site.assign(entry), AWS_ENDPOINT_URL_S3=denying)
        assert attempt.wait() is ExitCode.CONFIG_ERROR, attempt.log
    assert "denied" in (site.ended().error or "")


def test_lost_reports_do_not_fail_the_work(site: Site) -> None:
    entry = site.plan(site.put_photos(photos(2)))
    gone = site.sqs.create_queue(QueueName=f"gone-{site.name}")["QueueUrl"]
    site.sqs.delete_queue(QueueUrl=gone)
    assert site.run(entry, report_queue_url=gone) is ExitCode.OK
    assert site.marker() is not None


def test_reports_say_what_happened_in_order(site: Site, faults: Faults) -> None:
    faults(site.slow_get("stock/", 0.3))
    attempt = site.start(site.assign(site.plan(site.put_photos(photos(6)), chunk_assets=2), heartbeat_seconds=0.2))
    assert attempt.wait() is ExitCode.OK, attempt.log
    reports = site.reports()
    assert reports[0].kind is ReportKind.STARTED
    assert {report.kind for report in reports[1:-1]} == {ReportKind.HEARTBEAT}
    assert any(report.open_chunks for report in reports)
    done = [report.figures.chunks_done for report in reports]
    assert done == sorted(done)
    assert done[-1] == 3
