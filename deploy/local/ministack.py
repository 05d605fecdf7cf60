"""SQS, S3 and EventBridge from `ministack`, as one subprocess on one port of 127.0.0.1.

Owns its environment: what it binds, what it keeps (nothing: queues and objects are gone when it stops), and
what it must leave alone. Everything AWS-shaped goes through its port; S3 clients of the stack use
`s3proxy`, which stands in front.

How it differs from the real services, as far as this project leans on them (1.4.21; the tests hold these):

- By default it binds every interface, and opens two more ports of its own (SFTP, MQTT). All switched off.
- At start and stop it removes Docker containers that carry its label. It gets no Docker socket.
- `IfNoneMatch: *`, `StartAfter`, ranges, visibility time-outs, dead-letter queues, long polls and message
  attributes behave as in AWS.
- It has no limit of 120,000 messages in flight, no 429s and no SlowDown; `s3proxy` supplies the latter.
- A signature is not verified, except on presigned URLs, so any credentials do.
- QueueUrls echo the Host header of the caller.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import httpx

from deploy.local.processes import Process, start_on_free_port

REGION = "us-east-1"
ACCOUNT_ID = "000000000000"


def credentials() -> dict[str, str]:
    """Environment with which any AWS SDK talks to the stack and never finds the user's own account."""
    return {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_REGION": REGION,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


class Ministack:
    """One ministack server; stopping it forgets every queue and object."""

    def __init__(self, directory: Path, *, log_path: Path) -> None:
        self._directory = directory
        self._log_path = log_path
        self._process: Process | None = None
        self.port = 0

    @property
    def endpoint(self) -> str:
        """Base URL of all its services."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the server runs."""
        return self._process is not None and self._process.running

    def start(self) -> None:
        """Start it on a free port and wait until it answers."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._process, self.port = start_on_free_port(self._server, _ready)

    def stop(self) -> None:
        """Stop it; all it held is gone."""
        if self._process is not None:
            self._process.stop(grace_seconds=5)

    def _server(self, port: int) -> Process:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        environment = inherited | {
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(port),
            "MINISTACK_REGION": REGION,
            "MINISTACK_ACCOUNT_ID": ACCOUNT_ID,
            "SERVICES": "s3,sqs,events",
            "SFTP_ENABLED": "0",
            "IOT_MTLS_ENABLED": "0",
            "DOCKER_HOST": f"unix://{self._directory.resolve()}/no-docker.sock",
            "TMPDIR": str(self._directory.resolve()),
            "S3_DATA_DIR": str(self._directory.resolve() / "s3"),
            "STATE_DIR": str(self._directory.resolve() / "state"),
            "S3_PERSIST": "0",
            "PERSIST_STATE": "0",
            "LOG_LEVEL": "WARNING",
        }
        return Process(
            "ministack",
            [sys.executable, "-m", "ministack"],
            log_path=self._log_path,
            env=environment | credentials(),
            cwd=self._directory,
        )


def _ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/_ministack/health", timeout=5).is_success
    except httpx.HTTPError:
        return False
