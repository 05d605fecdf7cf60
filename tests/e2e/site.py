"""The whole system for one test after another: real Postgres, SQS, S3, workers, and the Batch stand-in.

A small model over a few small pictures, so that a request takes seconds. Tests look at what a user or operator could
see, and at the database; they reach into no process.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
import psycopg
from PIL import Image

from controller.core import invariants
from controller.store.store import PostgresStore
from deploy.local.batch_site import BatchTuning, Queue
from deploy.local.environment import TENANT
from deploy.local.output import Output, read_output
from deploy.local.postgres import Database, Driver
from deploy.local.resources import BucketName, QueueName, client
from deploy.local.s3proxy import Rule
from deploy.local.stack import Stack
from schema.client import Client, RequestRef
from schema.layout import Location
from schema.states import JobKind

PREFIX = "e2e/"
ASSETS, SHARD_ASSETS, CHUNK_ASSETS, ARRAY_MAX = 36, 8, 2, 2
SHARDS = 5  # in arrays of two and two, and one lone job
BAD = {f"{PREFIX}{number:03d}.jpg" for number in (5, 21)}
MODEL = "tiny@1"
LIMIT_SECONDS = 180.0
SIZES = {
    "REEMBED_WORK__SHARD_ASSETS": str(SHARD_ASSETS),
    "REEMBED_WORK__CHUNK_ASSETS": str(CHUNK_ASSETS),
    "REEMBED_PLACEMENT__ARRAY_MAX": str(ARRAY_MAX),
}
TUNING = BatchTuning(start_delay_seconds=2, backlog=SHARDS + 1)


def pictures() -> dict[str, bytes]:
    """Key → file; the same every time. Two of them are no pictures."""
    dice = np.random.default_rng(3)
    files = {}
    for number in range(ASSETS):
        cells = dice.integers(0, 256, (8, 8, 3), np.uint8)
        stream = io.BytesIO()
        Image.fromarray(cells).resize((80, 60), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=90)
        key = f"{PREFIX}{number:03d}.jpg"
        files[key] = b"" if key in BAD else stream.getvalue()
    return files


def eventually(
    condition: Callable[[], Any], what: str, limit_seconds: float = LIMIT_SECONDS, *, pause_seconds: float = 0.01
) -> Any:
    """The first true value of `condition`, asked every `pause_seconds`."""
    deadline = time.monotonic() + limit_seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {limit_seconds:g} s: {what}"
        time.sleep(pause_seconds)
    return value


@dataclass
class Site(AbstractContextManager["Site"]):
    """A stack with pictures in its bucket; controllers are the test's own."""

    stack: Stack
    keys: set[str] = field(default_factory=lambda: set(pictures()))

    @classmethod
    def build(cls, directory: Path, tuning: BatchTuning = TUNING, **settings: str) -> Self:
        return cls(Stack(directory, tuning=tuning, settings=SIZES | settings))

    def __enter__(self) -> Self:
        self.stack.up()
        self.s3 = client("s3", self.stack.s3_endpoint)
        self.sqs = client("sqs", self.stack.sqs_endpoint)
        url = self.stack.postgres.url(Database.CONTROL, Driver.PSYCOPG)
        self._database = psycopg.connect(url, autocommit=True)
        for key, body in pictures().items():
            self.s3.put_object(Bucket=BucketName.PHOTOS, Key=key, Body=body)
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        self.s3.close()
        self.sqs.close()
        self.stack.down()

    # -- asking --------------------------------------------------------------------------------------

    def upstream(self) -> Client:
        """A client as upstream services use it."""
        urls = (self.stack.queue_url(queue) for queue in (QueueName.REQUESTS, QueueName.STATUS))
        return Client(*urls, tenant=TENANT, sqs=self.sqs)

    def submit(self, key: str, **fields: Any) -> Run:
        source, output = f"s3://{BucketName.PHOTOS}/{PREFIX}", f"s3://{BucketName.EMBEDDINGS}/{key}"
        # One queue, so that it is no matter of luck where a shard runs; the demo and its faults show the others.
        defaults = {"index": key, "tolerance": 0.5, "queues": [Queue.G6E]}
        ref = self.upstream().submit(key, source, MODEL, output, **defaults | fields)
        return Run(self, ref)

    def rows(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """What the control database says."""
        return self._database.execute(statement, values).fetchall()

    # -- trouble -------------------------------------------------------------------------------------

    def batch_fault(self, **fault: Any) -> None:
        httpx.post(f"{self.stack.batch_endpoint}/_faults", json=fault).raise_for_status()

    def s3_faults(self, *rules: Rule) -> None:
        body = [rule.model_dump(mode="json") for rule in rules]
        httpx.post(f"{self.stack.s3_endpoint}/_faults", json=body).raise_for_status()

    def batch_jobs(self) -> list[dict[str, Any]]:
        """Everything that Batch runs or ran, children included."""
        return httpx.get(f"{self.stack.batch_endpoint}/_jobs").raise_for_status().json()["jobs"]

    def batch_faults_fired(self) -> dict[str, int]:
        return httpx.get(f"{self.stack.batch_endpoint}/_faults").raise_for_status().json()

    def metric(self, controller: str, name: str, **labels: str) -> float:
        """A counter of one replica, summed over the labels that are not given."""
        text = httpx.get(f"{self.stack.api_url(controller)}/metrics").raise_for_status().text
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        lines = [line for line in text.splitlines() if line.startswith((f"reembed_{name} ", f"reembed_{name}{{"))]
        assert lines, f"no metric {name}"
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(label in line for label in wanted))


@dataclass
class Run:
    """One request."""

    site: Site
    ref: RequestRef

    @property
    def id(self) -> str:
        return self.ref.request_id

    def holds(self, condition: str) -> bool:
        """Whether an SQL condition about this request (`%(id)s`) is true now."""
        return bool(self.site.rows(f"SELECT 1 WHERE {condition}", id=self.id))

    def until(self, condition: str) -> None:
        eventually(lambda: self.holds(condition), condition)

    @property
    def state(self) -> str:
        found = self.site.rows("SELECT state FROM requests WHERE id = %(id)s", id=self.id)
        return found[0][0] if found else "unknown"

    def finished(self) -> Output:
        """Wait for its end, check everything that must be true of it, and read the output."""
        final = ("succeeded", "failed", "cancelled", "attention")
        eventually(lambda: self.state in final, f"the end of {self.id}: {self.state}")
        assert self.state == "succeeded", self.site.rows("SELECT reason FROM requests WHERE id = %(id)s", id=self.id)
        output = self.output()
        assert self.jobs_without_row() == set()
        assert self.live_attempts() == 0
        violations = asyncio.run(self.violations())
        assert violations == [], violations
        return output

    def output(self) -> Output:
        """The output as a reader finds it: each asset once, each shard committed once."""
        [(manifest_uri,)] = self.site.rows("SELECT manifest_uri FROM requests WHERE id = %(id)s", id=self.id)
        output = read_output(self.site.s3, manifest_uri)
        assert output.not_exactly_once(self.site.keys) == set()
        assert {key for key, status in output.statuses.items() if status != "ok"} == BAD
        assert set(self.commits(manifest_uri)) == set(range(SHARDS))
        assert set(self.commits(manifest_uri).values()) == {1}, "a shard was committed twice"
        return output

    def commits(self, manifest_uri: str) -> Mapping[int, int]:
        """Shard → commit markers on S3."""
        place = Location.parse(manifest_uri)
        prefix = place.key.rpartition("/")[0] + "/commits/"
        listed = self.site.s3.list_objects_v2(Bucket=place.bucket, Prefix=prefix)["Contents"]
        return Counter(int(entry["Key"].removeprefix(prefix).partition("/")[0]) for entry in listed)

    def chunk_objects(self) -> dict[str, str]:
        """Key → entity tag of every finished chunk that lies in the output, committed or not."""
        planned = "SELECT output_uri FROM requests WHERE id = %(id)s AND output_uri IS NOT NULL"
        found = self.site.rows(planned, id=self.id)
        if not found:
            return {}
        place = Location.parse(found[0][0]).join("chunks/")
        pages = self.site.s3.get_paginator("list_objects_v2").paginate(Bucket=place.bucket, Prefix=place.key)
        entries = (entry for page in pages for entry in page.get("Contents", []))
        return {e["Key"]: e["ETag"] for e in entries if not e["Key"].endswith(".partial.parquet")}

    def jobs_without_row(self) -> set[str]:
        names = {name for (name,) in self.site.rows("SELECT name FROM jobs")}
        return {job["name"] for job in self.site.batch_jobs()} - names

    async def violations(self) -> list[str]:
        """What the control database holds against an invariant."""
        store = PostgresStore.connect(self.site.stack.postgres.url(Database.CONTROL, Driver.ASYNCPG))
        async with store.transaction() as tx:
            request = await tx.requests.get(self.id)
            shards = await tx.shards.search(self.id, states=None, outcome=None, after=-1, limit=1000)
            attempts = [attempt for kind in JobKind for attempt in await tx.attempts.of_kind(self.id, kind)]
            jobs = [await tx.jobs.get(name) for name in {attempt.job_id for attempt in attempts}]
        await store.close()
        assert request is not None
        assert len(shards) == SHARDS
        assert len(attempts) >= SHARDS
        return invariants.check([request], shards, attempts, [job for job in jobs if job is not None])

    def live_attempts(self) -> int:
        statement = "SELECT count(*) FROM attempts WHERE request_id = %(id)s AND state <> 'ended'"
        return self.site.rows(statement, id=self.id)[0][0]

    def attempts(self, kind: JobKind = JobKind.INFER) -> list[dict[str, Any]]:
        """Oldest first."""
        names = ("id", "shard", "queue", "state", "outcome", "batch_job_id", "array_index", "figures")
        statement = (
            f"SELECT {', '.join(names)} FROM attempts WHERE request_id = %(id)s AND kind = %(kind)s ORDER BY created_at"
        )
        found = self.site.rows(statement, id=self.id, kind=kind)
        return [dict(zip(names, row, strict=True)) for row in found]


def assert_same_output(one: Output, other: Output) -> None:
    """Keys, statuses, order and chunk bounds exactly; vectors but for rounding."""
    assert [(row.place, row.key, row.status) for row in one.rows] == [
        (row.place, row.key, row.status) for row in other.rows
    ]
    for mine, theirs in zip(one.rows, other.rows, strict=True):
        assert (mine.vector is None) == (theirs.vector is None), mine.key
        if mine.vector is not None and theirs.vector is not None:
            cosine = mine.vector @ theirs.vector / np.linalg.norm(mine.vector) / np.linalg.norm(theirs.vector)
            assert cosine >= 0.9999, mine.key
