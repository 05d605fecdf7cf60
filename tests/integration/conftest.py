"""Services that integration tests of the worker share for the whole run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import boto3
import httpx
import psycopg
import pytest
from botocore.config import Config

from deploy.local.ministack import Ministack
from deploy.local.postgres import Database, Driver
from deploy.local.processes import Process, accepts_connections, start_on_free_port
from tests.integration.worker_site import Faults
from tests.postgres import TestServer
from tests.produced import BAD, KEYS, MakeOutput, Produced
from worker.index import pgvector


@pytest.fixture(scope="session")
def aws_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """SQS and S3; tests use buckets and queues of their own."""
    directory = tmp_path_factory.mktemp("shared-ministack")
    server = Ministack(directory / "state", log_path=directory / "ministack.log")
    server.start()
    yield server.endpoint
    server.stop()


@pytest.fixture(scope="session")
def s3_client(aws_endpoint: str) -> Iterator[Any]:
    """A boto3 client as the worker builds it, but for the endpoint."""
    config = Config(retries={"total_max_attempts": 1}, max_pool_connections=32, s3={"addressing_style": "path"})
    client = boto3.client(
        "s3",
        endpoint_url=aws_endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=config,
    )
    yield client
    client.close()


@pytest.fixture(scope="session")
def proxy(aws_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An S3 endpoint that misbehaves on demand."""
    log_path = tmp_path_factory.mktemp("proxy") / "proxy.log"

    def process(port: int) -> Process:
        arguments = ["-m", "deploy.local.s3proxy", "--port", str(port), "--target", aws_endpoint]
        return Process("s3proxy", [sys.executable, *arguments], log_path=log_path)

    running, port = start_on_free_port(process, accepts_connections)
    yield f"http://127.0.0.1:{port}"
    running.kill()  # it may still hold requests that tests delayed for ever


@pytest.fixture
def faults(proxy: str) -> Iterator[Faults]:
    """Call it with rules to replace those of the proxy; with none, it behaves again."""

    def replace(*rules: dict[str, Any]) -> None:
        httpx.post(f"{proxy}/_faults", json=list(rules)).raise_for_status()

    yield replace
    httpx.delete(f"{proxy}/_faults").raise_for_status()


@pytest.fixture(scope="session")
def index_url(postgres_server: TestServer) -> str:
    """The index database, with pgvector; tests use tables and aliases of their own."""
    return postgres_server.cluster.url(Database.INDEX, Driver.PSYCOPG)


@pytest.fixture
def index_database(index_url: str) -> Iterator[psycopg.Connection]:
    """A connection that looks into the index."""
    with psycopg.connect(index_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def make_output(s3_client: Any, index_url: str, monkeypatch: pytest.MonkeyPatch) -> MakeOutput:
    """Makes committed outputs in buckets of their own, to be indexed into `index_url`."""
    monkeypatch.setenv(pgvector.URL_VARIABLE, index_url)
    return lambda **changes: Produced(s3_client, **({"keys": KEYS, "bad": BAD} | changes))


@pytest.fixture
def produced(make_output: MakeOutput) -> Produced:
    """Three shards of ten, ten and five assets, three of which are not ok."""
    return make_output()
