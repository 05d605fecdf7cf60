"""boto3 clients as the worker wants them. Endpoints come from the environment, as stock AWS_ENDPOINT_URL_* variables.

boto3 is imported inside the functions: ranks need it only for the odd key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: What S3 will answer next time too: another region, a malformed request, no access, not there.
REFUSALS = frozenset({301, 307, 400, 403, 404})


def s3_client(*, max_attempts: int = 6, connections: int = 16) -> Any:
    """For control objects SDK retries stay on; a caller that owns its retries passes `max_attempts=1`."""
    import boto3
    from botocore.config import Config

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    local = endpoint is not None and urlsplit(endpoint).hostname in LOOPBACK
    config = Config(
        connect_timeout=3,
        read_timeout=60,
        max_pool_connections=connections,
        retries={"mode": "standard", "total_max_attempts": max_attempts},
        s3={"addressing_style": "path" if local else "auto"},
    )
    return boto3.client("s3", config=config, endpoint_url=endpoint, region_name=_region())


def expect_owners(client: Any, owners: Mapping[str, str]) -> None:
    """Send the account id of a bucket's owner with every call that touches one of `owners`: S3 then refuses a bucket
    that changed hands."""

    def add(params: dict[str, Any], model: Any, **_: Any) -> None:
        owner = owners.get(params.get("Bucket", ""))
        if owner is not None and "ExpectedBucketOwner" in model.input_shape.members:
            params.setdefault("ExpectedBucketOwner", owner)

    client.meta.events.register("before-parameter-build.s3", add)


def sqs_client() -> Any:
    """Short time-outs and no SDK retries: the reporter has its own."""
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=2, read_timeout=5, retries={"mode": "standard", "total_max_attempts": 1})
    endpoint = os.environ.get("AWS_ENDPOINT_URL_SQS") or os.environ.get("AWS_ENDPOINT_URL")
    return boto3.client("sqs", config=config, endpoint_url=endpoint, region_name=_region())


def _region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
