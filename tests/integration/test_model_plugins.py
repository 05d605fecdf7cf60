"""docs/model-plugins.md, executed: the package on that page, installed and run by the real worker."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from schema.exit_codes import ExitCode
from schema.states import RowStatus
from tests.integration.worker_site import Site, photo, photos
from worker.decode import Decoded, decode
from worker.models import registry

DOCUMENT = (Path(__file__).parents[2] / "docs" / "model-plugins.md").read_text()
FILE = re.compile(r"^`house-models/(?P<path>[\w./]+)`[^\n]*:\n\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
TRY_IT = re.compile(r"^## Try it$.*?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODEL = "house-style@2"
SEED = 5


def documented_network(folder: Path) -> torch.nn.Module:
    names: dict[str, Any] = {}
    exec((folder / "house_models/network.py").read_text(), names)
    torch.manual_seed(SEED)
    return names["network"]().eval()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package of the page with random weights, as `pip install --target` would leave it, and on the path."""
    folder = tmp_path / "site"
    for match in FILE.finditer(DOCUMENT):
        path = folder / match["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(match["text"])
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    metadata = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    ((group, points),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    metadata.joinpath("entry_points.txt").write_text("\n".join(lines))
    torch.save(documented_network(folder).state_dict(), folder / "house_models/weights.pt")
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "house_models"]:
        del sys.modules[name]


@pytest.fixture
def site(installed: Path, s3_client: Any, aws_endpoint: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(s3_client, aws_endpoint, aws_endpoint, tmp_path, model=MODEL)
    yield site
    site.close()


def expected(folder: Path, body: bytes) -> np.ndarray:
    """The documented arithmetic on the worker's pixels."""
    decoded = decode(body, registry.find(MODEL).preprocessing, 10**8)
    assert isinstance(decoded, Decoded)
    pixels = torch.from_numpy(decoded.pixels).float() / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    with torch.no_grad():
        vector = documented_network(folder)(((pixels - mean[:, None, None]) / std[:, None, None])[None])[0]
    return torch.nn.functional.normalize(vector, dim=0).numpy()


def test_the_package_of_the_page_runs_in_the_worker(site: Site, installed: Path) -> None:
    bodies = photos(6)
    entry = site.plan(site.put_photos(bodies))
    assert site.run(entry, ranks=2, environment={"PYTHONPATH": str(installed)}, dtype="float32") is ExitCode.OK
    rows = site.rows()
    assert [row.status for row in rows] == [RowStatus.OK] * 6
    for row in rows:
        np.testing.assert_allclose(row.embedding, expected(installed, bodies[row.key.decode()]), atol=1e-4)


def test_without_the_package_the_worker_says_what_it_has(site: Site) -> None:
    entry = site.plan(site.put_photos(photos(1)))
    assert site.run(entry) is ExitCode.CONFIG_ERROR
    assert "no model 'house-style@2' on this image" in (site.ended().error or "")


def test_trying_it_needs_no_service_and_finding_it_no_torch(installed: Path) -> None:
    (installed / "photo.jpg").write_bytes(photo(1))
    (snippet,) = TRY_IT.findall(DOCUMENT)

    def run(code: str) -> str:
        environment = {"PYTHONPATH": f"{installed}:{Path(__file__).parents[2]}", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, cwd=installed, env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert run(snippet) == "(1, 32) float32\n"
    finding = f"import sys; from worker.models import registry; registry.find({MODEL!r}); print('torch' in sys.modules)"
    assert run(finding) == "False\n"
