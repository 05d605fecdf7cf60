"""SQS on a real protocol, for the messages that go through it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controller.store import PostgresStore
from deploy.local.ministack import Ministack
from tests.reports.site import Site, settings


@pytest.fixture(scope="module")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    directory = tmp_path_factory.mktemp("ministack")
    server = Ministack(directory / "state", log_path=directory / "ministack.log")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def site(store: PostgresStore) -> Site:
    return Site(store, settings())
