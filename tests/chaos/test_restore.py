"""Postgres restored to half an hour earlier, while jobs ran and commits were made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from deploy.local.output import Output
from deploy.local.postgres import BINARIES, Database, Driver
from deploy.local.resources import BucketName
from deploy.local.s3proxy import Action, Rule
from tests.chaos.stack import ChaosSite
from tests.e2e.site import PREFIX, Run, assert_same_output, eventually
from tests.e2e.test_controller_kills import MOMENTS

pytestmark = pytest.mark.chaos
_TIMES = (
    "SELECT table_name, column_name FROM information_schema.columns"
    " WHERE table_schema = 'public' AND data_type = 'timestamp with time zone'"
)
_COMMITTED = "SELECT shard FROM shards WHERE request_id = %(id)s AND state = 'succeeded'"


def dump(site: ChaosSite, path: Path) -> None:
    url = site.stack.postgres.url(Database.CONTROL, Driver.PSYCOPG)
    subprocess.run([BINARIES / "pg_dump", "--format=custom", f"--file={path}", url], check=True)


def restore(site: ChaosSite, path: Path) -> None:
    """As it was, and as if that had been half an hour ago."""
    url = site.stack.postgres.url(Database.CONTROL, Driver.PSYCOPG)
    command = [BINARIES / "pg_restore", "--clean", "--if-exists", "--single-transaction", f"--dbname={url}", str(path)]
    subprocess.run(command, check=True)
    with psycopg.connect(url) as connection:
        for table, column in connection.execute(_TIMES).fetchall():
            statement = sql.SQL("UPDATE {} SET {} = {} - interval '30 minutes'")
            connection.execute(statement.format(*map(sql.Identifier, (table, column, column))))


def committed(run: Run) -> set[int]:
    return {shard for (shard,) in run.site.rows(_COMMITTED, id=run.id)}


def chunks_of(run: Run, shards: set[int]) -> dict[str, str]:
    return {key: tag for key, tag in run.chunk_objects().items() if int(key.split("/chunks/")[1][:7]) in shards}


def test_restored_to_half_an_hour_earlier(site: ChaosSite, crash_free: Output, tmp_path: Path) -> None:
    """One request is half done in the restored state, the other is not in it at all."""
    site.s3_faults(Rule(action=Action.DELAY, prefix=f"{BucketName.PHOTOS}/{PREFIX}", seconds=2))
    with site.controllers("one"):
        known = site.submit("restored")
        known.until(MOMENTS["embedding"])
        dump(site, tmp_path / "dump")
        forgotten = site.submit("forgotten")
        for run in (known, forgotten):
            eventually(lambda run=run: len(committed(run)) >= 1, "a commit")
        site.stack.kill_controller("one")
        runs = {run.id: run for run in (known, forgotten)}
        done = {name: committed(run) for name, run in runs.items()}
        chunks = {name: chunks_of(run, done[name]) for name, run in runs.items()}
        before = {name: {a["id"] for a in run.attempts()} for name, run in runs.items()}
        restore(site, tmp_path / "dump")
        assert forgotten.state == "unknown"
        site.s3_faults()

        site.stack.start_controller("one")
        eventually(lambda: forgotten.state != "unknown", "the forgotten request comes back")
        for name, run in runs.items():
            eventually(lambda run=run: run.state == "succeeded", f"{run.id}: the end")
            again = {a["shard"] for a in run.attempts() if a["id"] not in before[name]}
            assert again.isdisjoint(done[name]), "a committed shard was run again"
            assert chunks_of(run, done[name]) == chunks[name]
        eventually(lambda: not any(job["live"] for job in site.batch_jobs()), "no job lives")
        for run in runs.values():
            assert_same_output(run.output(), crash_free)
