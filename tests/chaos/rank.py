"""A rank that takes its container along when it dies at an armed crash point."""

from __future__ import annotations

import os
import signal

from tests.chaos.firing import fires
from worker import rank
from worker.source import Bucket

_put = Bucket.put


def pass_by(point: str) -> None:
    if fires(point):
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


async def put(self: Bucket, key: str, body: bytes) -> None:
    pass_by("worker.infer.chunk:before")
    await _put(self, key, body)
    pass_by("worker.infer.chunk:after")


if __name__ == "__main__":
    Bucket.put = put  # type: ignore[method-assign]
    rank.main()
