"""The environment variables of every process of the stack: the one place that knows the names of settings.

Owns the mapping from addresses to `REEMBED_*` and `AWS_*` variables, and a pace of the controller that suits a
Batch which runs ten times faster than AWS. Anything here can be overridden by `Stack(settings=…)`. A name that
the controller does not know would be ignored in silence, so a test builds its settings from the result.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deploy.local.batch_site import Definition, Queue
from deploy.local.ministack import credentials
from deploy.local.resources import BucketName, QueueName

TENANT = "demo"
MODELS = ("efficientnet-lite0@1", "efficientnet-lite0-random@1", "tiny@1")
REVISION = 1  # every definition is registered once, when the stand-in starts
GPU_QUEUE_PRICES_USD = {Queue.G6E: 1.86, Queue.G6: 0.80, Queue.G5: 1.01, Queue.ONDEMAND: 0.98}

#: Seconds that AWS needs minutes for. A dry queue is noticed after `start_seconds`, probed after `cooldown_seconds`.
LOCAL_PACE = {
    "REEMBED_PLACEMENT__START_SECONDS": "30",
    "REEMBED_PLACEMENT__REASON_DWELL_SECONDS": "3",
    "REEMBED_PLACEMENT__COOLDOWN_SECONDS": "15",
    "REEMBED_PLACEMENT__COOLDOWN_MAX_SECONDS": "120",
    "REEMBED_RETRIES__BACKOFF_SECONDS": "1",
    "REEMBED_RETRIES__BACKOFF_MAX_SECONDS": "10",
    "REEMBED_RECONCILE__CHECK_SECONDS": "5",
    "REEMBED_RECONCILE__REPORT_GRACE_SECONDS": "3",
    "REEMBED_RECONCILE__LOST_SECONDS": "30",
    "REEMBED_RECONCILE__LOOKUP_GRACE_SECONDS": "10",
    "REEMBED_RECONCILE__CALL_TIMEOUT_SECONDS": "5",
    "REEMBED_RECONCILE__ORPHAN_SECONDS": "10",
    "REEMBED_WORK__HEARTBEAT_SECONDS": "2",
    "REEMBED_LOOPS__LEASE_SECONDS": "5",
    "REEMBED_LOOPS__CLAIM_SECONDS": "10",
    "REEMBED_LOOPS__IDLE_SECONDS": "0.25",
    "REEMBED_LOOPS__POLL_SECONDS": "2",
    "REEMBED_LOOPS__PROGRESS_SECONDS": "5",
}


@dataclass(frozen=True)
class Addresses:
    """Where the services of one stack answer."""

    s3_endpoint: str
    sqs_endpoint: str
    batch_endpoint: str
    control_database_url: str
    index_database_url: str
    queue_urls: Mapping[QueueName, str]


def inherited() -> dict[str, str]:
    """Our own environment without the user's AWS account and settings, for processes of the stack."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "REEMBED_"))}


def worker_environment(s3_endpoint: str, sqs_endpoint: str) -> dict[str, str]:
    """What a container gets whatever its role: no Batch, no database. One thread: the ranks share two cores."""
    return {
        **credentials(),
        "AWS_ENDPOINT_URL_S3": s3_endpoint,
        "AWS_ENDPOINT_URL_SQS": sqs_endpoint,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


def stack_environment(at: Addresses, backlog: int) -> dict[str, str]:
    """What controllers, the CLI and upstream clients read. It holds secrets, all of this machine only."""
    return {
        **credentials(),
        "AWS_ENDPOINT_URL_S3": at.s3_endpoint,
        "AWS_ENDPOINT_URL_SQS": at.sqs_endpoint,
        "AWS_ENDPOINT_URL_EVENTS": at.sqs_endpoint,
        "AWS_ENDPOINT_URL_BATCH": at.batch_endpoint,
        "REEMBED_DATABASE__URL": at.control_database_url,
        "REEMBED_INDEX_URL": at.index_database_url,
        "REEMBED_STORAGE__CONTROL_BUCKET": BucketName.CONTROL,
        "REEMBED_SQS__REQUESTS": at.queue_urls[QueueName.REQUESTS],
        "REEMBED_SQS__REPORTS": at.queue_urls[QueueName.REPORTS],
        "REEMBED_SQS__BATCH_EVENTS": at.queue_urls[QueueName.BATCH_EVENTS],
        "REEMBED_SQS__REJECTS": at.queue_urls[QueueName.REJECTS],
        "REEMBED_SQS__STATUS": at.queue_urls[QueueName.STATUS],
        "REEMBED_CPU__QUEUE": Queue.CPU,
        "REEMBED_CPU__PREPARE_DEFINITION": _pinned(Definition.PREPARE),
        "REEMBED_CPU__INDEX_DEFINITION": _pinned(Definition.INDEX),
        "REEMBED_GPU_QUEUES": json.dumps(_gpu_queues(backlog)),
        "REEMBED_MODELS": json.dumps(MODELS),
        "REEMBED_TENANTS": json.dumps({TENANT: _tenant()}),
        **LOCAL_PACE,
    }


def _pinned(definition: Definition) -> str:
    return f"{definition}:{REVISION}"


def _gpu_queues(backlog: int) -> list[dict[str, Any]]:
    """In the order of preference; on-demand last, for multi-node requests."""
    queues = []
    for name, price in GPU_QUEUE_PRICES_USD.items():
        queue: dict[str, Any] = {
            "name": name,
            "job_definition": _pinned(Definition.INFER),
            "price_usd_per_hour": price,
            "backlog": backlog,
        }
        if name is Queue.ONDEMAND:
            queue |= {"on_demand": True, "multi_node_job_definition": _pinned(Definition.INFER_NODES)}
        queues.append(queue)
    return queues


def _tenant() -> dict[str, list[str]]:
    return {"inputs": [f"s3://{BucketName.PHOTOS}/"], "outputs": [f"s3://{BucketName.EMBEDDINGS}/"]}
