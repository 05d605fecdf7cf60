"""A controller that dies at armed crash points, and is started again each time, as ECS would.

`python -m tests.chaos.controller` is the product's own composition root with wrapped ports, in a child forked from a
parent that has imported everything: a start costs a fraction of a second, so that a hundred crashes fit into minutes.
SIGTERM goes on to the child and ends both.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FrameType

from controller import main
from controller.loops.context import Context
from controller.loops.runner import Loop
from controller.metrics import Metrics
from controller.settings import Settings
from tests.chaos.points import direct_ports
from tests.chaos.wrapped import NamedLoop, crashing

_PR_SET_PDEATHSIG = 1
_open_context, _loops = main.open_context, main.loops


@asynccontextmanager
async def open_crashing_context(settings: Settings, metrics: Metrics) -> AsyncIterator[Context]:
    async with _open_context(settings, metrics) as context:
        yield crashing(context, dict(direct_ports()))


def named_loops(context: Context) -> list[Loop]:
    return [NamedLoop(loop) for loop in _loops(context)]


def child() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    main.open_context, main.loops = open_crashing_context, named_loops  # type: ignore[assignment]
    main.main()


def supervise() -> int:
    """The exit code of the child that was not killed."""
    running, stopping = 0, False

    def stop(*_: int | FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        if running:
            os.kill(running, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    while True:
        running = os.fork()
        if not running:
            child()
            return 0
        code = os.waitstatus_to_exitcode(os.waitpid(running, 0)[1])
        if stopping or code != -signal.SIGKILL:
            return max(code, 0)


if __name__ == "__main__":
    sys.exit(supervise())
