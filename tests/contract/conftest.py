"""Real services for the suites of the AWS ports: ministack, the S3 proxy before it, and the Batch stand-in.

Servers live for the session; clients and the environment that names the servers for a test. Suites take
`aws_environment` first, so that no test can ever reach an account of the user's.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
from aiobotocore.session import AioSession, get_session

from controller.aws.clients import ClientOptions, Clients
from deploy.local.batch.config import (
    CapacityType,
    ComputeEnvironmentConfig,
    EventsConfig,
    JobQueueConfig,
    StandInConfig,
)
from deploy.local.batch.launch import StandIn, running
from deploy.local.ministack import Ministack, credentials
from deploy.local.processes import Process, start_on_free_port
from deploy.local.resources import client

SPOT_QUEUE = "g6e"
ON_DEMAND_QUEUE = "ondemand"
TIME_SCALE = 0.02


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    """SQS and S3."""
    directory = tmp_path_factory.mktemp("ministack")
    server = Ministack(directory / "state", log_path=directory / "ministack.log")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def s3_proxy_url(ministack: Ministack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """S3 that fails on demand."""
    log_path = tmp_path_factory.mktemp("proxy") / "proxy.log"

    def proxy(port: int) -> Process:
        arguments = ["--port", str(port), "--target", ministack.endpoint]
        return Process("s3proxy", [sys.executable, "-m", "deploy.local.s3proxy", *arguments], log_path=log_path)

    process, port = start_on_free_port(proxy)
    yield f"http://127.0.0.1:{port}"
    process.stop()


@pytest.fixture(scope="session")
def batch_event_queue_url(ministack: Ministack) -> str:
    """The queue that plays the EventBridge target of the stand-in."""
    sqs = client("sqs", ministack.endpoint)
    url: str = sqs.create_queue(QueueName=f"batch-events-{uuid.uuid4().hex[:8]}")["QueueUrl"]
    sqs.close()
    return url


@pytest.fixture(scope="session")
def stand_in(
    ministack: Ministack, batch_event_queue_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandIn]:
    """Batch with a spot and an on-demand queue, jobs that end at once, and events without faults."""
    events = EventsConfig(
        queue_url=batch_event_queue_url,
        endpoint_url=ministack.endpoint,
        delay_max_seconds=0,
        late_probability=0,
        duplicate_probability=0,
    )
    with running(_stand_in_config(events), tmp_path_factory.mktemp("batch") / "logs") as batch:
        yield batch


def _stand_in_config(events: EventsConfig) -> StandInConfig:
    resources = [
        {"type": "VCPU", "value": "1"},
        {"type": "MEMORY", "value": "1024"},
        {"type": "GPU", "value": "1"},
    ]
    container = {"image": "worker", "command": ["-c", "pass"], "resourceRequirements": resources}
    nodes = {"numNodes": 2, "mainNode": 0, "nodeRangeProperties": [{"targetNodes": "0:", "container": container}]}
    return StandInConfig(
        time_scale=TIME_SCALE,
        requests_per_second=1000,
        compute_environments=(
            ComputeEnvironmentConfig(name="g6e-spot", instance_family="g6e", slots=2),
            ComputeEnvironmentConfig(name="g6-ondemand", type=CapacityType.EC2, slots=2),
        ),
        queues=(
            JobQueueConfig(name=SPOT_QUEUE, compute_environments=("g6e-spot",)),
            JobQueueConfig(name=ON_DEMAND_QUEUE, compute_environments=("g6-ondemand",)),
        ),
        job_definitions=(
            {"jobDefinitionName": "infer", "type": "container", "containerProperties": container},
            {"jobDefinitionName": "infer-nodes", "type": "multinode", "nodeProperties": nodes},
        ),
        images={"worker": (sys.executable,)},
        events=events,
    )


@pytest.fixture
def aws_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Credentials of nobody and no endpoints but those that a test sets."""
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.fixture(scope="session")
def sdk_session() -> AioSession:
    """Keeps the service models, which take longer to load than most tests to run."""
    return get_session()


@pytest.fixture
async def clients(
    aws_environment: pytest.MonkeyPatch, ministack: Ministack, s3_proxy_url: str, sdk_session: AioSession
) -> AsyncIterator[Clients]:
    """SQS and S3 clients that find their endpoints as they do on AWS, in the environment; no SDK retries."""
    aws_environment.setenv("AWS_ENDPOINT_URL_SQS", ministack.endpoint)
    aws_environment.setenv("AWS_ENDPOINT_URL_S3", s3_proxy_url)
    async with Clients(ClientOptions(sdk_attempts=1), sdk_session) as opened:
        yield opened


@pytest.fixture
async def batch_clients(
    aws_environment: pytest.MonkeyPatch, stand_in: StandIn, sdk_session: AioSession
) -> AsyncIterator[Clients]:
    """Batch clients for the stand-in, with a read time-out short enough to run into."""
    aws_environment.setenv("AWS_ENDPOINT_URL_BATCH", stand_in.url)
    async with Clients(ClientOptions(batch_read_timeout_seconds=1.0), sdk_session) as opened:
        yield opened
