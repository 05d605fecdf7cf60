"""The demo's pictures: repeatable, held out honestly, and what the worker makes of them is what is expected."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deploy.local import photos
from deploy.local.photos import Asset, DemoSet, Query
from schema.states import RowStatus
from worker.decode import Decoded, decode
from worker.models.registry import find

MAX_PIXELS = 100_000_000
Built = tuple[DemoSet, dict[str, bytes]]


@pytest.fixture(scope="module")
def built() -> Built:
    bodies: dict[str, bytes] = {}
    return photos.build(bodies.__setitem__), bodies


def status_of(body: bytes) -> RowStatus:
    verdict = decode(body, find("tiny@1").preprocessing, MAX_PIXELS)
    return RowStatus.OK if isinstance(verdict, Decoded) else verdict.status


def test_there_are_enough_assets_and_every_one_was_uploaded(built: Built) -> None:
    demo, bodies = built
    assert len(demo.photo_of) >= 300
    assert {asset.key for asset in demo.assets} == set(bodies)
    assert {query.photo for query in demo.queries} == set(demo.photo_of.values())
    assert len(demo.assets) == len(bodies), "two assets share a key"


def test_one_seed_gives_the_same_bytes(built: Built) -> None:
    again: dict[str, bytes] = {}
    demo = photos.build(again.__setitem__)
    assert (demo, again) == built


def test_another_seed_gives_other_crops(built: Built) -> None:
    other: dict[str, bytes] = {}
    photos.build(other.__setitem__, seed=99, assets_a_photo=1)
    assert not {body for key, body in other.items() if "/awkward" not in key} & set(built[1].values())


@pytest.mark.parametrize("name", photos.PHOTOS)
def test_no_window_touches_a_query_cell(name: str) -> None:
    size = photos.wheel_image(name).size
    dice = random.Random(name)
    cells = dice.sample(photos.grid_cells(size), photos.QUERIES_A_PHOTO)
    covered = np.zeros((size[1], size[0]), bool)
    for left, top, right, bottom in photos.windows_outside(cells, size, 40, dice):
        assert 0 <= left < right <= size[0]
        assert 0 <= top < bottom <= size[1]
        covered[top:bottom, left:right] = True
    for left, top, right, bottom in cells:
        assert right - left > 50
        assert not covered[top:bottom, left:right].any()


def test_no_room_is_said_and_does_not_hang() -> None:
    everything = [(0, 0, 300, 300)]
    with pytest.raises(ValueError, match="no room for 1 windows"):
        photos.windows_outside(everything, (300, 300), 1, random.Random(0))


def test_the_worker_gives_every_file_its_expected_status(built: Built) -> None:
    demo, bodies = built
    assert {key: status_of(body) for key, body in bodies.items()} == demo.expected_status


def test_the_awkward_files_are_what_they_claim(built: Built) -> None:
    _, bodies = built

    def opened(name: str) -> Image.Image:
        return Image.open(io.BytesIO(bodies[f"demo/awkward/{name}"]))

    assert opened("cmyk.jpg").mode == "CMYK"
    assert opened("grey16.png").mode.startswith("I;16")
    assert opened("rotated.jpg").getexif()[0x0112] == 6
    assert bodies["demo/awkward/empty.jpg"] == b""
    assert {"demo/awkward//double-slash.jpg", "demo/awkward/plus + %2B", "demo/awkward/ünïcödé-写真.jpg"} <= set(bodies)


def test_chance_is_that_of_drawing_without_return() -> None:
    assets = tuple(Asset(f"{photo}{number}", photo) for photo in "ab" for number in range(5))
    demo = DemoSet("", assets, (Query("a", b""),))
    assert demo.recall_by_chance() == pytest.approx(1 - 1 / 252)  # C(10, 5) draws, one of them all b
    assert demo.is_hit(demo.queries[0], ["b0", "b1", "b2", "b3", "a4"])
    assert not demo.is_hit(demo.queries[0], ["b0", "b1", "b2", "b3", "b4", "a0"])


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    photos.wheel_image("chelsea.png").save(tmp_path / "deep" / "cat.JPG")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    (tmp_path / "notes.txt").write_text("not taken")
    bodies: dict[str, bytes] = {}
    demo = photos.from_folder(tmp_path, bodies.__setitem__)
    assert set(bodies) == {"images/broken.png", "images/deep/cat.JPG"}
    assert bodies["images/broken.png"] == b"no picture"
    assert demo.expected_status == {}
    assert [query.photo for query in demo.queries] == ["cat.JPG"]
    with pytest.raises(FileNotFoundError, match="no picture below"):
        photos.from_folder(tmp_path / "nowhere", bodies.__setitem__)


@pytest.mark.long
def test_recall_is_far_above_chance_and_above_random_weights(built: Built) -> None:
    """Without the system: one process, one model, cosine over everything."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    demo, bodies = built
    keys = [key for key, expected in demo.expected_status.items() if expected is RowStatus.OK]
    pictures = [bodies[key] for key in keys] + [query.jpeg for query in demo.queries]

    def recall(model: str) -> float:
        plugin = find(model)
        mean, std = (
            torch.tensor(values).view(3, 1, 1) for values in (plugin.preprocessing.mean, plugin.preprocessing.std)
        )
        forward = plugin.load("cpu")
        vectors = []
        for body in pictures:
            decoded = decode(body, plugin.preprocessing, MAX_PIXELS)
            assert isinstance(decoded, Decoded)
            with torch.inference_mode():
                pixels = torch.from_numpy(decoded.pixels).float() / 255
                vectors.append(forward(((pixels - mean) / std).unsqueeze(0))[0].numpy())
        matrix = np.stack(vectors)
        matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
        ranked = np.argsort(-(matrix[len(keys) :] @ matrix[: len(keys)].T), axis=1)
        hits = [
            demo.is_hit(query, [keys[place] for place in row]) for query, row in zip(demo.queries, ranked, strict=True)
        ]
        return float(np.mean(hits))

    trained, untrained, chance = (
        recall("efficientnet-lite0@1"),
        recall("efficientnet-lite0-random@1"),
        demo.recall_by_chance(),
    )
    assert trained >= 0.9
    assert untrained < trained - 0.15
    assert chance < 0.3
