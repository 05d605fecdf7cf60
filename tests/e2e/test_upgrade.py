"""A rolling upgrade: the release before and this code share one database, one after the other and side by side."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest

from deploy.local.output import Output
from tests.e2e.site import Site, assert_same_output
from tests.e2e.test_controller_kills import MOMENTS

#: 0.1.0 calls itself ready on its own revision only, and works all the same.
ALIVE = "/livez"
RELEASES = Path(__file__).parents[1] / "releases"

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of a process that runs the latest release instead of this code."""
    folder = tmp_path_factory.mktemp("released")
    wheel = max(RELEASES.glob("reembed-*.whl"))
    with ZipFile(wheel) as archive:
        archive.extractall(folder)
    return {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}


def runs(site: Site, name: str, environment: dict[str, str]) -> bool:
    """Whether the code that a controller of this site runs is the released one."""
    maps = Path(f"/proc/{site.stack.controllers[name].pid}/environ").read_bytes().decode()
    answers = httpx.get(f"{site.stack.api_url(name)}{ALIVE}").status_code == 200
    return answers and f"PYTHONPATH={environment['PYTHONPATH']}" in maps.split("\0")


def test_the_release_hands_over_and_takes_back(site: Site, undisturbed: Output, released: dict[str, str]) -> None:
    """Old, then both, then new; and, as a roll-back would, old again, all within one request."""
    site.stack.start_controller("old", until=ALIVE, **released)
    assert runs(site, "old", released)
    run = site.submit("upgrade")
    run.until(MOMENTS["planned"])
    site.stack.start_controller("new")
    run.until(MOMENTS["first commit"])
    site.stack.stop_controller("old")
    run.until(MOMENTS["half committed"])
    site.stack.start_controller("old", until=ALIVE, **released)
    site.stack.stop_controller("new")
    assert_same_output(run.finished(), undisturbed)


def test_the_release_alone_on_the_new_schema(site: Site, undisturbed: Output, released: dict[str, str]) -> None:
    site.stack.start_controller("old", until=ALIVE, **released)
    assert_same_output(site.submit("released").finished(), undisturbed)
