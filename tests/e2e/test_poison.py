"""A picture that kills its worker costs one row: it is isolated, found, recorded, and the rest succeeds."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from deploy.local.environment import MODELS
from deploy.local.output import read_output
from deploy.local.resources import BucketName
from schema.states import Outcome
from tests.e2e.site import BAD, PREFIX, SHARD_ASSETS, Site, eventually

MODEL = "fragile@1"
#: The tiny model, but a picture that is green all over takes the whole process with it, as a driver's fault does.
PLUGIN = """
import os, signal
import numpy as np
from dataclasses import replace
from worker.models.tiny import plugin as tiny

def load(device):
    forward = tiny.load(device)
    def fragile(images):
        greens = images[:, 1].mean(axis=(1, 2)) - images[:, 0].mean(axis=(1, 2))
        if (greens > 1.5).any():
            os.kill(os.getppid(), signal.SIGKILL)
        return forward(images)
    return fragile

plugin = replace(tiny, name="fragile", load=load)
"""
GREEN = f"{PREFIX}011.jpg"

pytestmark = pytest.mark.long


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A deployment whose image has one more model."""
    package = tmp_path / "image"
    metadata = package / "fragile-1.dist-info"
    metadata.mkdir(parents=True)
    package.joinpath("fragile.py").write_text(PLUGIN)
    metadata.joinpath("METADATA").write_text("Name: fragile\nVersion: 1\n")
    metadata.joinpath("entry_points.txt").write_text("[reembed.models]\nfragile = fragile:plugin\n")
    monkeypatch.setenv("PYTHONPATH", str(package), prepend=":")
    with Site.build(tmp_path / "stack", REEMBED_MODELS=json.dumps([*MODELS, MODEL])) as site:
        stream = io.BytesIO()
        Image.new("RGB", (80, 60), (0, 255, 0)).save(stream, "PNG")
        site.s3.put_object(Bucket=BucketName.PHOTOS, Key=GREEN, Body=stream.getvalue())
        yield site


def test_the_picture_is_found_and_the_rest_succeeds(site: Site) -> None:
    site.stack.start_controller("one")
    source, output = f"s3://{BucketName.PHOTOS}/{PREFIX}", f"s3://{BucketName.EMBEDDINGS}/poison"
    ref = site.upstream().submit("poison", source, MODEL, output, tolerance=0.5)
    ended = "SELECT state, manifest_uri, reason FROM requests WHERE id = %(id)s AND state IN ('succeeded', 'attention')"
    [(state, manifest, reason)] = eventually(lambda: site.rows(ended, id=ref.request_id), "the end")
    assert state == "succeeded", reason
    found = read_output(site.s3, manifest)
    assert found.not_exactly_once(site.keys) == set()
    assert {key for key, status in found.statuses.items() if status == "poison"} == {GREEN}
    assert {key for key, status in found.statuses.items() if status not in ("ok", "poison")} == BAD
    shard = int(GREEN.removeprefix(PREFIX)[:3]) // SHARD_ASSETS
    attempts = "SELECT shard, outcome FROM attempts WHERE request_id = %(id)s AND kind = 'infer' ORDER BY created_at"
    outcomes = site.rows(attempts, id=ref.request_id)
    assert [o for s, o in outcomes if s == shard] == [Outcome.CRASHED, Outcome.CRASHED, Outcome.SUCCEEDED]
    assert Outcome.CRASHED not in {o for s, o in outcomes if s != shard}
