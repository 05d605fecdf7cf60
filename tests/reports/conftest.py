"""A deployment of its own for each report."""

from __future__ import annotations

import pytest

from controller.store import PostgresStore
from tests.reports.site import Site, settings


@pytest.fixture
def site(store: PostgresStore) -> Site:
    return Site(store, settings())
