"""One stack for the chaos tests, and what a request makes on it when nothing goes wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.local.batch_site import Queue
from deploy.local.output import Output
from tests.chaos.stack import ChaosSite


@pytest.fixture(scope="session")
def chaos_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosSite]:
    with ChaosSite.on(tmp_path_factory.mktemp("chaos")) as site:
        yield site


@pytest.fixture
def site(chaos_stack: ChaosSite) -> Iterator[ChaosSite]:
    yield chaos_stack
    chaos_stack.stack.ledger.disarm()
    chaos_stack.s3_faults()
    chaos_stack.batch_fault(fault="refuse_capacity", queue=Queue.G6E, clear=True)
    for name in chaos_stack.stack.controllers:
        chaos_stack.stack.kill_controller(name)


@pytest.fixture(scope="session")
def crash_free(chaos_stack: ChaosSite) -> Output:
    """What a request makes when nothing goes wrong."""
    with chaos_stack.controllers("one"):
        return chaos_stack.submit("crash-free").finished()
