"""What `reembed doctor` looks at: one function a thing, each answers with findings and never raises.

Read-only calls: nothing is sent, received, deleted or submitted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from controller.aws.clients import Clients
from controller.ports import PortError
from controller.settings import Settings
from controller.store import PostgresStore
from schema.migrations import run as migrations

CONNECT_SECONDS = 5.0


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    """One line. `fix` says what to do unless it is ok."""

    check: str
    verdict: Verdict
    detail: str
    fix: str = ""


def ok(check: str, detail: str) -> Finding:
    return Finding(check, Verdict.OK, detail)


def fail(check: str, detail: str, fix: str) -> Finding:
    return Finding(check, Verdict.FAIL, detail, fix)


async def database(settings: Settings) -> list[Finding]:
    store = PostgresStore.connect(
        settings.database.url.get_secret_value(), pool_size=1, connect_timeout_seconds=CONNECT_SECONDS
    )
    expected = migrations.head()
    try:
        found = await store.ping()
    except PortError as error:
        # Also what an unmigrated database answers.
        return [
            fail("database", str(error), "check REEMBED_DATABASE__URL; for a new database run `reembed db upgrade`")
        ]
    finally:
        await store.close()
    if found != expected:
        detail = f"at revision {found}, this version expects {expected}"
        return [fail("database", detail, "run `reembed db upgrade`, or the version that made this revision")]
    return [ok("database", f"reachable, at revision {found}")]


async def aws(settings: Settings) -> list[Finding]:
    """Queues, bucket, Batch; one finding when no client can be made at all."""
    try:
        async with Clients() as clients:
            queues = [queue.name for queue in settings.gpu_queues] + [settings.cpu.queue]
            places = asyncio.gather(
                *(_queue(clients, name, url) for name, url in settings.sqs.model_dump().items()),
                _bucket(clients, settings.storage.control_bucket),
            )
            batch = asyncio.gather(_batch_queues(clients, queues), _definitions(clients, _definition_names(settings)))
            return [*await places, *(finding for group in await batch for finding in group)]
    except Exception as error:
        return [fail("aws", _words(error), "configure region and credentials as for any AWS SDK")]


async def _queue(clients: Clients, name: str, url: str) -> Finding:
    check = f"sqs {name}"
    try:
        answer = await clients.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
    except Exception as error:
        return fail(check, _words(error), f"check REEMBED_SQS__{name.upper()} and sqs:GetQueueAttributes on {url}")
    return judge_sqs(check, url, answer.get("Attributes", {}))


def judge_sqs(check: str, url: str, attributes: Mapping[str, str]) -> Finding:
    """From what GetQueueAttributes says."""
    waiting = attributes.get("ApproximateNumberOfMessages", "unknown")
    if url.endswith(".fifo"):
        return fail(check, "it is a FIFO queue", "use a standard queue")
    if "maxReceiveCount" not in json.loads(attributes.get("RedrivePolicy", "{}")):
        fix = "set a redrive policy, so that a message that cannot be handled does not come back for ever"
        return Finding(check, Verdict.WARN, f"reachable, about {waiting} waiting, no dead-letter queue", fix)
    return ok(check, f"reachable, about {waiting} waiting")


async def _bucket(clients: Clients, bucket: str) -> Finding:
    check = f"s3 {bucket}"
    try:
        await clients.s3.head_bucket(Bucket=bucket)
    except Exception as error:
        fix = "create the control bucket, or fix REEMBED_STORAGE__CONTROL_BUCKET and s3:ListBucket on it"
        return fail(check, _words(error), fix)
    return ok(check, "the control bucket answers")


async def _batch_queues(clients: Clients, names: Sequence[str]) -> list[Finding]:
    try:
        answer = await clients.batch_query.describe_job_queues(jobQueues=list(dict.fromkeys(names)))
    except Exception as error:
        return [fail("batch queues", _words(error), "check region, endpoint and batch:DescribeJobQueues")]
    found: dict[str, Any] = {}
    for queue in answer["jobQueues"]:
        found[queue["jobQueueName"]] = found[queue["jobQueueArn"]] = queue
    return [judge_queue(name, found.get(name)) for name in dict.fromkeys(names)]


def judge_queue(name: str, queue: dict[str, Any] | None) -> Finding:
    check = f"batch queue {name}"
    if queue is None:
        return fail(check, "there is no such job queue", "create it, or take it out of REEMBED_GPU_QUEUES")
    state, status = queue.get("state"), queue.get("status")
    if state != "ENABLED" or status not in ("VALID", None):
        detail = f"{state}, {status}: {queue.get('statusReason') or 'no reason given'}"
        return fail(check, detail, "enable the queue and look at its compute environments")
    return ok(check, "ENABLED")


def _definition_names(settings: Settings) -> list[str]:
    gpu = settings.gpu_queues
    names: list[str | None] = [queue.job_definition for queue in gpu]
    names += [queue.multi_node_job_definition for queue in gpu]
    names += [settings.cpu.prepare_definition, settings.cpu.index_definition]
    return [name for name in dict.fromkeys(names) if name is not None]


async def _definitions(clients: Clients, names: Iterable[str]) -> list[Finding]:
    try:
        answer = await clients.batch_query.describe_job_definitions(jobDefinitions=list(names))
    except Exception as error:
        return [fail("job definitions", _words(error), "check region, endpoint and batch:DescribeJobDefinitions")]
    found = {f"{one['jobDefinitionName']}:{one['revision']}": one for one in answer["jobDefinitions"]}
    found |= {one["jobDefinitionArn"]: one for one in answer["jobDefinitions"]}
    return [judge_definition(name, found.get(name)) for name in names]


def judge_definition(name: str, definition: dict[str, Any] | None) -> Finding:
    check = f"job definition {name}"
    if definition is None:
        return fail(check, "there is no such revision", "register it, and name it with its revision")
    if definition.get("status") != "ACTIVE":
        return fail(check, f"it is {definition.get('status')}", "name an ACTIVE revision")
    attempts = definition.get("retryStrategy", {}).get("attempts", 1)
    if attempts != 1:
        fix = "set retryStrategy.attempts to 1: every retry is a row of ours, Batch's own are invisible"
        return Finding(check, Verdict.WARN, f"ACTIVE, but Batch retries {attempts} times", fix)
    return ok(check, "ACTIVE")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
