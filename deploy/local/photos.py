"""The demo's pictures: crops of the photos in scikit-image's wheel with queries held out, or a user's own folder.

Owns what is uploaded, what should become of it, and what to ask. Nothing is downloaded: only files inside the installed
wheel are opened, and one seed gives the same pictures again.

Each photo is divided into a 3 by 3 grid. Some cells are queries; the asset crops are random windows that touch no query
cell, mildly altered as the copies in a library differ (brightness, contrast, saturation, mirror, size, quality). So a
query can be found only by what its photo *is*: none of its pixels are in the index. It counts as found if one of the
five nearest assets comes from its photo.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import comb
from pathlib import Path

from PIL import Image, ImageEnhance, ImageOps, UnidentifiedImageError

from deploy.local.awkward import awkward_files
from schema.states import RowStatus

#: Natural photos of the wheel. Left out: drawings, test charts, the second view of the motorcycle, and what is too
#: small or too empty to be cut.
PHOTOS = (
    "astronaut.png",
    "brick.png",
    "camera.png",
    "cell.png",
    "chelsea.png",
    "coffee.png",
    "coins.png",
    "grass.png",
    "gravel.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "moon.png",
    "motorcycle_left.png",
    "page.png",
    "retina.jpg",
    "rocket.jpg",
    "text.png",
)
GRID = 3
QUERIES_A_PHOTO = 3
ASSETS_A_PHOTO = 20
CROP_SIDES = (0.22, 0.33)  # of the photo's shorter side; a cell is 0.33
TRIES_A_CROP = 10_000
NEAREST = 5
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
FOLDER_QUERIES = 8

Box = tuple[int, int, int, int]
#: Takes a key and a body and puts them where the request will look.
Upload = Callable[[str, bytes], None]


@dataclass(frozen=True)
class Asset:
    """One object of the source. `photo` is what it was cut from ("" for an awkward file); `expected` its final status,
    None where nobody knows, as in a user's folder."""

    key: str
    photo: str
    expected: RowStatus | None = RowStatus.OK


@dataclass(frozen=True)
class Query:
    """A picture to search with, and the photo that it should find."""

    photo: str
    jpeg: bytes


@dataclass(frozen=True)
class DemoSet:
    """What was uploaded below `prefix`, and what to ask."""

    prefix: str
    assets: tuple[Asset, ...]
    queries: tuple[Query, ...]

    @property
    def expected_status(self) -> dict[str, RowStatus]:
        """The final status of every key of which it is known."""
        return {asset.key: asset.expected for asset in self.assets if asset.expected is not None}

    @property
    def photo_of(self) -> dict[str, str]:
        """The photo that each key shows."""
        return {asset.key: asset.photo for asset in self.assets if asset.photo}

    def is_hit(self, query: Query, nearest_keys: Sequence[str]) -> bool:
        """Whether one of the five nearest keys is of the query's photo."""
        return any(self.photo_of.get(key) == query.photo for key in nearest_keys[:NEAREST])

    def recall_by_chance(self) -> float:
        """What drawing five of the assets blindly would find, as a share of the queries."""
        total = sum(asset.expected in (RowStatus.OK, None) for asset in self.assets)
        if not self.queries or total <= NEAREST:
            return 1.0

        def chance(query: Query) -> float:
            own = sum(asset.photo == query.photo for asset in self.assets)
            return 1 - comb(total - own, NEAREST) / comb(total, NEAREST)

        return sum(map(chance, self.queries)) / len(self.queries)


def build(upload: Upload, *, prefix: str = "demo/", seed: int = 2, assets_a_photo: int = ASSETS_A_PHOTO) -> DemoSet:
    """Cut the default set, hand every object to `upload`, and say what it was."""
    assets: list[Asset] = []
    queries: list[Query] = []
    for name in PHOTOS:
        dice = random.Random(f"{seed}/{name}")
        photo, image = Path(name).stem, wheel_image(name)
        cells = dice.sample(grid_cells(image.size), QUERIES_A_PHOTO)
        queries += [Query(photo, _jpeg(image.crop(cell))) for cell in cells]
        for number, box in enumerate(windows_outside(cells, image.size, assets_a_photo, dice)):
            asset = Asset(f"{prefix}{photo}/{number:03d}.jpg", photo)
            upload(asset.key, _jpeg(_altered(image.crop(box), dice), quality=dice.randint(78, 92)))
            assets.append(asset)
    for file in awkward_files(wheel_image("color.png")):
        upload(prefix + file.name, file.body)
        assets.append(Asset(prefix + file.name, "", file.expected))
    return DemoSet(prefix, tuple(assets), tuple(queries))


def from_folder(folder: Path, upload: Upload, *, prefix: str = "images/", seed: int = 1) -> DemoSet:
    """A user's own pictures as they are; the queries are the middle of a few of them, and each should find its own."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())
    if not paths:
        raise FileNotFoundError(f"no picture below {folder} (looked for {', '.join(sorted(IMAGE_SUFFIXES))})")
    assets = []
    for path in paths:
        asset = Asset(prefix + path.relative_to(folder).as_posix(), path.name, expected=None)
        upload(asset.key, path.read_bytes())
        assets.append(asset)
    queries: list[Query] = []
    for path in random.Random(seed).sample(paths, len(paths)):
        if len(queries) == FOLDER_QUERIES:
            break
        middle = _middle(path)
        if middle is not None:
            queries.append(Query(path.name, middle))
    return DemoSet(prefix, tuple(assets), tuple(queries))


def wheel_image(name: str) -> Image.Image:
    """One picture of scikit-image's wheel, in RGB."""
    with (files("skimage.data") / name).open("rb") as file:
        return Image.open(file).convert("RGB")


def grid_cells(size: tuple[int, int]) -> list[Box]:
    """The largest centred square of each cell of the grid."""
    width, height = size[0] // GRID, size[1] // GRID
    side = min(width, height)
    corners = [
        (column * width + (width - side) // 2, row * height + (height - side) // 2)
        for row in range(GRID)
        for column in range(GRID)
    ]
    return [(left, top, left + side, top + side) for left, top in corners]


def windows_outside(taken: Sequence[Box], size: tuple[int, int], count: int, dice: random.Random) -> list[Box]:
    """`count` random squares that touch none of the taken ones."""
    windows: list[Box] = []
    for _ in range(count * TRIES_A_CROP):
        side = round(dice.uniform(*CROP_SIDES) * min(size))
        left, top = dice.randint(0, size[0] - side), dice.randint(0, size[1] - side)
        window = (left, top, left + side, top + side)
        if not any(overlap(window, box) for box in taken):
            windows.append(window)
            if len(windows) == count:
                return windows
    raise ValueError(f"no room for {count} windows beside {len(taken)} queries in {size[0]} x {size[1]} pixels")


def overlap(one: Box, other: Box) -> bool:
    """Whether two boxes share a pixel."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _altered(image: Image.Image, dice: random.Random) -> Image.Image:
    image = ImageEnhance.Brightness(image).enhance(dice.uniform(0.7, 1.3))
    image = ImageEnhance.Contrast(image).enhance(dice.uniform(0.7, 1.3))
    image = ImageEnhance.Color(image).enhance(dice.uniform(0.4, 1.1))
    if dice.random() < 0.5:
        image = ImageOps.mirror(image)
    scale = dice.uniform(0.9, 1.3)
    return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)


def _middle(path: Path) -> bytes | None:
    """The middle three quarters of a picture as JPEG; None if it cannot be read."""
    try:
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened).convert("RGB")
    except (UnidentifiedImageError, OSError, ValueError):
        return None
    margin_x, margin_y = image.width // 8, image.height // 8
    return _jpeg(image.crop((margin_x, margin_y, image.width - margin_x, image.height - margin_y)))


def _jpeg(image: Image.Image, quality: int = 90) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return stream.getvalue()
