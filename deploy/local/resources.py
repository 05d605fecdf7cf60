"""The buckets and queues of the stack, created with stock boto3 as an operator would create them on AWS.

Owns their names. Every queue has a dead-letter queue that takes a message after five receives; nothing
subscribes to those, they are looked at by people.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

import boto3
from botocore.config import Config

from deploy.local.ministack import REGION

MAX_RECEIVES = 5
RETENTION_SECONDS = 14 * 86_400


class BucketName(StrEnum):
    """Where things live: sources, Parquet, and plans with assignments."""

    PHOTOS = "photos"
    EMBEDDINGS = "embeddings"
    CONTROL = "control"


class QueueName(StrEnum):
    """SQS queues between upstream, controller, workers and Batch."""

    REQUESTS = "reembed-requests"
    REPORTS = "reembed-reports"
    BATCH_EVENTS = "reembed-batch-events"
    REJECTS = "reembed-rejects"
    STATUS = "reembed-status"


def client(service: str, endpoint: str) -> Any:
    """A boto3 client of the stack, whatever AWS configuration the machine has."""
    return boto3.client(
        service,
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"total_max_attempts": 3}),
    )


def create_buckets(s3_endpoint: str) -> None:
    """All buckets of `BucketName`."""
    s3 = client("s3", s3_endpoint)
    for bucket in BucketName:
        s3.create_bucket(Bucket=bucket)
    s3.close()


def create_queues(sqs_endpoint: str) -> dict[QueueName, str]:
    """All queues of `QueueName` with their dead-letter queues; their URLs."""
    sqs = client("sqs", sqs_endpoint)
    urls = {}
    for queue in QueueName:
        attributes = {"MessageRetentionPeriod": str(RETENTION_SECONDS)}
        dead_url = sqs.create_queue(QueueName=f"{queue}-dlq", Attributes=attributes)["QueueUrl"]
        answer = sqs.get_queue_attributes(QueueUrl=dead_url, AttributeNames=["QueueArn"])
        policy = {"deadLetterTargetArn": answer["Attributes"]["QueueArn"], "maxReceiveCount": MAX_RECEIVES}
        attributes["RedrivePolicy"] = json.dumps(policy)
        urls[queue] = sqs.create_queue(QueueName=queue, Attributes=attributes)["QueueUrl"]
    sqs.close()
    return urls
