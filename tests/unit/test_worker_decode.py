"""Decoding: verdicts on hostile and awkward files, and the rules that change pixels."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from schema.states import RowStatus
from worker.decode import Decoded, decode
from worker.models.plugin import Preprocessing, Resize
from worker.rows import Failure

SIZE = 32
SQUASH = Preprocessing(input_size=SIZE, resize=Resize.SQUASH)
CROP = Preprocessing(input_size=SIZE, resize_to=40)
MAX_PIXELS = 1_000_000
RED = (200, 30, 40)


def scene(width: int = 96, height: int = 64) -> Image.Image:
    """Left reddish, right bluish, brighter downwards: every rotation and crop shows."""
    x = np.linspace(0, 255, width)[None, :].repeat(height, 0)
    y = np.linspace(0, 255, height)[:, None].repeat(width, 1)
    return Image.fromarray(np.stack([255 - x, y, x], axis=2).astype(np.uint8))


def saved(image: Image.Image, image_format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, image_format, **options)
    return file.getvalue()


def pixels(body: bytes, preprocessing: Preprocessing = SQUASH) -> npt.NDArray[np.float64]:
    decoded = decode(body, preprocessing, MAX_PIXELS)
    assert isinstance(decoded, Decoded), decoded
    assert decoded.pixels.shape == (3, SIZE, SIZE)
    assert decoded.pixels.dtype == np.uint8
    return decoded.pixels.astype(float)


def verdict(body: bytes) -> Failure:
    failure = decode(body, SQUASH, MAX_PIXELS)
    assert isinstance(failure, Failure), failure
    return failure


def close(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64], *, levels: float = 3.0) -> bool:
    return float(np.abs(one - other).mean()) <= levels


def huge_png(width: int, height: int) -> bytes:
    """A header that claims much, and almost no data."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 9)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF"])
def test_every_allowed_format_shows_the_same_picture(image_format: str) -> None:
    expected = pixels(saved(scene(), "PNG"))
    assert close(pixels(saved(scene(), image_format)), expected, levels=8.0)


def test_an_mpo_shows_its_first_picture() -> None:
    body = saved(scene(), "MPO", save_all=True, append_images=[Image.new("RGB", (96, 64), RED)])
    assert close(pixels(body), pixels(saved(scene(), "PNG")))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", RowStatus.UNREADABLE),
        (b"<!doctype html><title>Not found</title>", RowStatus.UNSUPPORTED),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", RowStatus.UNSUPPORTED),
        (b"%PDF-1.7", RowStatus.UNSUPPORTED),
        (b"\0\0\0\x1cftypheic", RowStatus.UNSUPPORTED),
        (saved(scene(), "PPM"), RowStatus.UNSUPPORTED),
        (saved(scene(), "ICO"), RowStatus.UNSUPPORTED),
        (saved(scene(), "JPEG")[:4], RowStatus.UNREADABLE),
        (saved(scene(), "JPEG")[:-200], RowStatus.UNREADABLE),
        (saved(scene(), "JPEG", progressive=True)[:-200], RowStatus.UNREADABLE),
        (saved(scene(), "PNG")[:60], RowStatus.UNREADABLE),
        (saved(scene(), "WEBP")[:60], RowStatus.UNREADABLE),
        (saved(scene(), "GIF")[:30], RowStatus.UNREADABLE),
        (huge_png(20_000, 20_000), RowStatus.TOO_LARGE),
        (huge_png(1001, 1000), RowStatus.TOO_LARGE),
        (huge_png(1000, 1000), RowStatus.UNREADABLE),
    ],
    ids=[
        "empty", "html", "svg", "pdf", "heic", "ppm", "ico", "jpeg magic only", "jpeg cut", "progressive cut",
        "png cut", "webp cut", "gif cut", "bomb", "one row too many", "at the cap but hollow",
    ],
)  # fmt: skip
def test_files_that_give_no_picture(body: bytes, status: RowStatus) -> None:
    failure = verdict(body)
    assert failure.status is status
    assert failure.error


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientations_show_one_picture(orientation: int) -> None:
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = scene(960, 640)
    if orientation in undo:
        stored = stored.transpose(undo[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert close(
        pixels(saved(stored, "JPEG", quality=95, exif=exif), CROP), pixels(saved(scene(960, 640), "PNG"), CROP)
    )


def test_16_bit_grey_is_scaled_not_clamped() -> None:
    ramp = np.linspace(0, 65535, 96 * 64).reshape(64, 96).astype(np.uint16)
    twin = pixels(saved(Image.fromarray((ramp >> 8).astype(np.uint8)), "PNG"))
    assert close(pixels(saved(Image.fromarray(ramp), "PNG")), twin)
    assert close(pixels(saved(Image.fromarray(ramp), "TIFF")), twin)


@pytest.mark.parametrize("values", [np.linspace(0, 1, 6144), np.linspace(-3, 9, 6144), np.linspace(0, 255, 6144)])
def test_float_greys_use_the_whole_range(values: npt.NDArray[np.float64]) -> None:
    body = saved(Image.fromarray(values.reshape(64, 96).astype(np.float32)), "TIFF")
    got = pixels(body)
    assert got.min() < 12
    assert got.max() > 243


def test_a_constant_or_broken_float_image_does_not_fail() -> None:
    assert pixels(saved(Image.fromarray(np.full((8, 8), 1e9, np.float32)), "TIFF")).max() == 0
    assert pixels(saved(Image.fromarray(np.full((8, 8), np.nan, np.float32)), "TIFF")).max() == 0


def test_cmyk_becomes_rgb() -> None:
    flat = Image.new("RGB", (64, 64), RED)
    got = pixels(saved(flat.convert("CMYK"), "JPEG", quality=95)).mean(axis=(1, 2))
    assert np.abs(got - RED).max() < 12


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_is_laid_on_white(mode: str) -> None:
    hidden = Image.new("RGBA", (64, 64), (10, 10, 10, 0))
    if mode == "P":
        paletted = Image.new("P", (64, 64), 0)
        paletted.putpalette([10, 10, 10])
        body = saved(paletted, "PNG", transparency=0)
    else:
        body = saved(hidden.convert(mode), "PNG")
    assert pixels(body).min() == 255


@pytest.mark.parametrize("image_format", ["GIF", "WEBP", "PNG"])
def test_an_animation_is_its_first_frame(image_format: str) -> None:
    frames = [Image.new("RGB", (64, 64), RED), Image.new("RGB", (64, 64), (0, 255, 0))]
    body = saved(frames[0], image_format, save_all=True, append_images=frames[1:], duration=100)
    assert np.abs(pixels(body).mean(axis=(1, 2)) - RED).max() < 8


def test_draft_changes_almost_nothing() -> None:
    noise = np.random.default_rng(1).integers(0, 256, (60, 90, 3), np.uint8)
    large = Image.fromarray(noise).resize((1200, 800), Image.Resampling.BICUBIC)
    body = saved(large, "JPEG", quality=92)
    full = Image.open(io.BytesIO(body))
    full.load()
    shorter = full.resize((60, 40), Image.Resampling.BICUBIC).crop((14, 4, 46, 36))
    expected = np.asarray(shorter, float).transpose(2, 0, 1)
    assert close(pixels(body, CROP), expected, levels=2.0)


@pytest.mark.parametrize("size", [(2000, 1), (1, 2000), (1, 1), (7, 300)])
def test_extreme_shapes_still_fit(size: tuple[int, int]) -> None:
    body = saved(Image.new("RGB", size, RED), "PNG")
    for preprocessing in (SQUASH, CROP, Preprocessing(input_size=SIZE, resize=Resize.PAD)):
        assert pixels(body, preprocessing).shape == (3, SIZE, SIZE)


def test_padding_is_white_and_keeps_the_shape() -> None:
    got = pixels(saved(Image.new("RGB", (64, 32), RED), "PNG"), Preprocessing(input_size=SIZE, resize=Resize.PAD))
    assert got[:, 0, :].min() == 255
    assert np.abs(got[:, SIZE // 2, SIZE // 2] - RED).max() < 2


def test_the_digest_tells_preprocessing_apart() -> None:
    alike = Preprocessing(input_size=SIZE, resize=Resize.SQUASH)
    assert alike.digest == SQUASH.digest
    assert len({SQUASH.digest, CROP.digest, Preprocessing(input_size=SIZE, std=(0.2, 0.2, 0.2)).digest}) == 3
