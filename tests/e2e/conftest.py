"""One stack for the tests of this folder; every test starts its own controllers and leaves none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.local.output import Output
from tests.e2e.site import Site


@pytest.fixture(scope="session")
def stack_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site.build(tmp_path_factory.mktemp("e2e")) as site:
        yield site


@pytest.fixture
def site(stack_of_tests: Site) -> Iterator[Site]:
    yield stack_of_tests
    stack_of_tests.s3_faults()
    for name in stack_of_tests.stack.controllers:
        stack_of_tests.stack.stop_controller(name)  # a kill would leave messages in flight to nobody


@pytest.fixture(scope="session")
def undisturbed(stack_of_tests: Site) -> Output:
    """What a request makes when nothing goes wrong."""
    stack_of_tests.stack.start_controller("undisturbed")
    output = stack_of_tests.submit("undisturbed").finished()
    stack_of_tests.stack.stop_controller("undisturbed")
    return output
