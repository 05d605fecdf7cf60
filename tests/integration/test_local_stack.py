"""The embedded stack as a whole: it comes up, runs a job, its variables are the controller's, it leaves nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from controller.settings import Settings
from deploy.local.batch_site import BatchTuning, Definition, Queue
from deploy.local.postgres import Database, Driver
from deploy.local.resources import BucketName, QueueName, client
from deploy.local.stack import AlreadyUpError, Stack

DEADLINE_SECONDS = 60
QUICK = BatchTuning(time_scale=0.01)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("stack"), tuning=QUICK) as stack:
        yield stack


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def living_processes(directory: Path) -> list[psutil.Process]:
    """Every process that works in `directory`, names it on its command line, or logs into it."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ", "status"]):
        command_line = " ".join(process.info["cmdline"] or [])
        environment = (process.info["environ"] or {}).get("TMPDIR", "")
        named = str(directory) in command_line or str(directory) in environment
        if named and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def test_the_controller_reads_its_settings_from_the_environment(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = stack.environment()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert [queue.name for queue in settings.gpu_queues] == ["g6e", "g6", "g5", "ondemand"]
    assert settings.sqs.requests == stack.queue_url(QueueName.REQUESTS)
    assert settings.storage.control_bucket == BucketName.CONTROL
    for name in environment:
        group, _, field = name.removeprefix("REEMBED_").lower().partition("__")
        if field:
            assert field in type(getattr(settings, group)).model_fields, f"{name} is no setting"


def test_the_database_is_migrated(stack: Stack) -> None:
    with psycopg.connect(stack.postgres.url(Database.CONTROL, Driver.PSYCOPG)) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    assert ("alembic_version",) in tables
    assert len(tables) > 5


def test_batch_has_the_queues_and_pinned_definitions(stack: Stack) -> None:
    batch = client("batch", stack.batch_endpoint)
    queues = {queue["jobQueueName"] for queue in batch.describe_job_queues()["jobQueues"]}
    definitions = batch.describe_job_definitions(status="ACTIVE")["jobDefinitions"]
    batch.close()
    assert queues == set(Queue)
    assert {(item["jobDefinitionName"], item["revision"]) for item in definitions} == {(name, 1) for name in Definition}


def test_a_job_runs_the_real_worker_and_its_events_reach_sqs(stack: Stack) -> None:
    """Without an assignment the worker refuses to work; that it says so shows that it ran."""
    batch, sqs = client("batch", stack.batch_endpoint), client("sqs", stack.sqs_endpoint)
    job_id = batch.submit_job(jobName="no-assignment", jobQueue=Queue.G6E, jobDefinition=Definition.INFER)["jobId"]

    def described() -> dict[str, Any]:
        return batch.describe_jobs(jobs=[job_id])["jobs"][0]

    def last_event_arrived() -> bool:
        url = stack.queue_url(QueueName.BATCH_EVENTS)
        messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
        return any(job_id in message["Body"] and "FAILED" in message["Body"] for message in messages)

    assert eventually(lambda: described()["status"] == "FAILED"), described()
    logs = "".join(path.read_text() for path in (stack.logs / "jobs").rglob("*") if path.is_file())
    assert "REEMBED_ASSIGNMENT" in logs
    assert eventually(last_event_arrived)
    batch.close()
    sqs.close()


def test_s3_is_reached_through_the_faults(stack: Stack) -> None:
    s3 = client("s3", stack.s3_endpoint)
    assert {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]} == set(BucketName)
    s3.close()
    assert httpx.get(f"{stack.s3_endpoint}/_faults").json()["throttled"] == 0


def test_a_second_stack_in_the_same_directory_is_refused(stack: Stack) -> None:
    with pytest.raises(AlreadyUpError, match="in use by process"):
        Stack(stack.directory).up()


def test_down_leaves_no_process_and_up_again_starts_empty(tmp_path: Path) -> None:
    stack = Stack(tmp_path, tuning=QUICK)
    with stack:
        assert living_processes(tmp_path)
        with psycopg.connect(stack.postgres.url(Database.CONTROL, Driver.PSYCOPG)) as connection:
            connection.execute("CREATE TABLE left_over ()")
    assert not living_processes(tmp_path)
    with (
        Stack(tmp_path, tuning=QUICK) as again,
        psycopg.connect(again.postgres.url(Database.CONTROL, Driver.PSYCOPG)) as connection,
    ):
        assert connection.execute("SELECT to_regclass('left_over')").fetchone() == (None,)
    assert not living_processes(tmp_path)


def test_a_killed_supervisor_leaves_nothing_and_the_next_one_comes_up(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from deploy.local.stack import Stack; import time\n"
        f"with Stack(Path({str(tmp_path)!r})): print('up', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"up\n"
        assert len(living_processes(tmp_path)) > 3
        supervisor.kill()
    with Stack(tmp_path, tuning=QUICK):
        pass
    assert eventually(lambda: not living_processes(tmp_path))
