"""A place for worker attempts: buckets, a report queue, a planned shard, and the real worker as a subprocess."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import psutil
from PIL import Image

from deploy.local.ministack import credentials
from schema import layout, messages, shardfile
from schema.assignment import Entry, InferAssignment
from schema.exit_codes import ExitCode
from schema.messages import ReportKind, WorkerReport
from schema.plan import CommitMarker
from schema.shardfile import Address
from worker import chunks
from worker.models import registry
from worker.rows import Row

DEADLINE_SECONDS = 120.0

#: Replaces the rules of the S3 proxy.
Faults = Callable[..., None]


def photo(seed: int, *, size: tuple[int, int] = (160, 120), image_format: str = "JPEG") -> bytes:
    """A smooth random picture: no two seeds look alike."""
    noise = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).save(file, image_format)
    return file.getvalue()


def photos(count: int) -> dict[str, bytes]:
    return {f"stock/{number:03d}.jpg": photo(number) for number in range(count)}


def wait_for(condition: Callable[[], Any], what: str, seconds: float = DEADLINE_SECONDS) -> Any:
    """The first true value of `condition`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} seconds for {what}"
        time.sleep(0.02)
    return value


@dataclass
class Attempt:
    """A running or ended worker process."""

    process: subprocess.Popen[bytes]
    log_path: Path

    def wait(self) -> ExitCode:
        try:
            return ExitCode(self.process.wait(DEADLINE_SECONDS))
        finally:
            if self.process.poll() is None:
                self.process.kill()

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def children(self, module: str, *, direct: bool = False) -> list[psutil.Process]:
        """Living descendants that run `python -m module`, or seem to: a child just forked still has our command line.

        `direct`: only children of the first process.
        """
        try:
            family = psutil.Process(self.process.pid).children(recursive=not direct)
        except psutil.NoSuchProcess:
            return []
        found = []
        for child in family:
            try:
                if module in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
            except psutil.NoSuchProcess:
                continue
        return found


@dataclass
class Site:
    """One request's buckets and queue. `endpoint` is what the worker talks to."""

    s3: Any
    endpoint: str
    sqs_endpoint: str
    directory: Path
    model: str = "tiny@1"
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def __post_init__(self) -> None:
        self.source = f"photos-{self.name}"
        self.control = f"control-{self.name}"
        self.output_bucket = f"out-{self.name}"
        for bucket in (self.source, self.control, self.output_bucket):
            self.s3.create_bucket(Bucket=bucket)
        self.sqs = boto3.client(
            "sqs",
            endpoint_url=self.sqs_endpoint,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        self.queue = self.sqs.create_queue(QueueName=f"reports-{self.name}")["QueueUrl"]
        self.output = layout.Location(self.output_bucket, "embeddings/0123456789abcdef")
        self._attempts = 0

    def close(self) -> None:
        self.sqs.close()

    # --- what upstream and preparation do ---------------------------------------------------------------------------

    def put_photos(self, bodies: Mapping[str, bytes]) -> list[Address]:
        """Upload, and list as preparation would: byte order, size, ETag."""
        addresses = []
        for key in sorted(bodies, key=str.encode):
            answer = self.s3.put_object(Bucket=self.source, Key=key, Body=bodies[key])
            addresses.append(Address(key.encode(), len(bodies[key]), answer["ETag"].strip('"')))
        return addresses

    def slow_get(self, key: str, seconds: float) -> dict[str, Any]:
        """A rule for the proxy: source keys that begin with `key` are answered late."""
        return {"action": "delayed", "prefix": f"{self.source}/{key}", "seconds": seconds}

    def plan(self, addresses: Iterable[Address], *, shard: int = 0, chunk_assets: int = 4) -> Entry:
        addresses = list(addresses)
        body = shardfile.write(self.source, addresses)
        key = layout.shard_key("r1", "a0", shard)
        self.s3.put_object(Bucket=self.control, Key=key, Body=body)
        self._chunk_assets = chunk_assets
        return Entry(
            attempt_id="",
            token="t",
            shard=shard,
            shard_key=key,
            shard_sha256=hashlib.sha256(body).hexdigest(),
            chunks=-(-len(addresses) // chunk_assets),
        )

    # --- what the controller and Batch do ---------------------------------------------------------------------------

    def assign(self, *entries: Entry, **changes: Any) -> str:
        """Write an assignment object; gives its URI. Attempt ids are new each time."""
        self._attempts += 1
        named = [
            entry.model_copy(update={"attempt_id": f"a{self._attempts}-{index}"}) for index, entry in enumerate(entries)
        ]
        digest = registry.find(self.model).preprocessing_digest
        assignment = InferAssignment(
            **{
                "request_id": "r1",
                "job_id": f"j{self._attempts}",
                "tenant": "t1",
                "control_bucket": self.control,
                "report_queue_url": self.queue,
                "heartbeat_seconds": 5.0,
                "entries": named,
                "source_bucket": self.source,
                "output_uri": self.output.uri,
                "model": self.model,
                "preprocessing_digest": digest,
                "chunk_assets": self._chunk_assets,
                "tolerance": 0.5,
                "decode_seconds": 20.0,
                **changes,
            }
        )
        key = layout.assignment_key(assignment.job_id)
        self.s3.put_object(Bucket=self.control, Key=key, Body=assignment.to_bytes())
        return f"s3://{self.control}/{key}"

    def start(self, uri: str, *, ranks: int = 1, **environment: str) -> Attempt:
        log_path = self.directory / f"{self.name}-{uuid.uuid4().hex[:6]}.log"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "worker.main", "--ranks", str(ranks)],
                env=inherited
                | credentials()
                | {
                    "AWS_ENDPOINT_URL_S3": self.endpoint,
                    "AWS_ENDPOINT_URL_SQS": self.sqs_endpoint,
                    "REEMBED_ASSIGNMENT": uri,
                    "REEMBED_DEVICE": "cpu",
                    "OMP_NUM_THREADS": "1",
                }
                | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return Attempt(process, log_path)

    def run(
        self, *entries: Entry, ranks: int = 1, environment: Mapping[str, str] | None = None, **changes: Any
    ) -> ExitCode:
        attempt = self.start(self.assign(*entries, **changes), ranks=ranks, **(environment or {}))
        code = attempt.wait()
        sys.stdout.write(attempt.log)  # shown only when the test fails
        return code

    # --- what is there afterwards -----------------------------------------------------------------------------------

    def reports(self) -> list[WorkerReport]:
        """All reports so far, in order of sequence; takes them from the queue."""
        found: list[WorkerReport] = []
        while got := self.sqs.receive_message(QueueUrl=self.queue, MaxNumberOfMessages=10).get("Messages", []):
            for message in got:
                envelope = json.loads(message["Body"])
                assert envelope["type"] == messages.MessageType.WORKER_REPORT
                found.append(WorkerReport.model_validate(envelope["data"]))
                self.sqs.delete_message(QueueUrl=self.queue, ReceiptHandle=message["ReceiptHandle"])
        return sorted(found, key=lambda report: (report.attempt_id, report.seq))

    def ended(self) -> WorkerReport:
        """The one `ended` report since the last look."""
        (report,) = [report for report in self.reports() if report.kind is ReportKind.ENDED]
        return report

    def marker(self, shard: int = 0, generation: int = 1) -> CommitMarker | None:
        key = self.output.join(layout.commit_key(shard, generation)).key
        if key not in self.keys(self.output_bucket):
            return None
        body = self.s3.get_object(Bucket=self.output_bucket, Key=key)["Body"].read()
        return CommitMarker.model_validate_json(body)

    def keys(self, bucket: str) -> list[str]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def chunk_keys(self) -> list[str]:
        prefix = self.output.join("").key
        return sorted(key[len(prefix) :] for key in self.keys(self.output_bucket) if "/chunks/" in key)

    def rows(self, shard: int = 0) -> list[Row]:
        """Read from the Parquet that the marker names, each object checked against its digest."""
        marker = self.marker(shard)
        assert marker is not None
        found: list[Row] = []
        for chunk in marker.chunks:
            body = self.s3.get_object(Bucket=self.output_bucket, Key=self.output.join(chunk.key).key)["Body"].read()
            assert hashlib.sha256(body).hexdigest() == chunk.sha256
            rows = chunks.decode(body)
            assert len(rows) == chunk.rows
            found += rows
        return found
