"""Files that trip naive readers of images or keys, each with the status that its row must end with.

Owns the bytes and the verdicts. All but the broken ones show the same picture, so what fails is the file's form.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from schema.states import RowStatus

EXIF_ORIENTATION, TURN_RIGHT = 0x0112, 6
HTML = b"<!DOCTYPE html>\n<html><body><h1>404 Not Found</h1><p>Saved by a crawler as an image.</p></body></html>\n"


@dataclass(frozen=True)
class AwkwardFile:
    """`name` is the key below the demo's prefix."""

    name: str
    body: bytes
    expected: RowStatus


def awkward_files(image: Image.Image) -> list[AwkwardFile]:
    """All of them, made from one RGB picture."""
    whole = _jpeg(image)
    ok, unreadable = RowStatus.OK, RowStatus.UNREADABLE
    return [
        AwkwardFile("awkward/cmyk.jpg", _jpeg(image.convert("CMYK")), ok),
        AwkwardFile("awkward/grey16.png", _grey16(image), ok),
        AwkwardFile("awkward/rotated.jpg", _rotated(image), ok),
        AwkwardFile("awkward/truncated.jpg", whole[: len(whole) // 2], unreadable),
        AwkwardFile("awkward/empty.jpg", b"", unreadable),
        AwkwardFile("awkward/not-an-image.jpg", HTML, RowStatus.UNSUPPORTED),
        AwkwardFile("awkward//double-slash.jpg", whole, ok),
        AwkwardFile("awkward/plus + %2B", whole, ok),
        AwkwardFile("awkward/ünïcödé-写真.jpg", whole, ok),
    ]


def _grey16(image: Image.Image) -> bytes:
    """A PNG with 16 bits a pixel; readers that clamp instead of shifting see white."""
    grey = np.asarray(image.convert("L")).astype(np.uint16) * 257
    stream = io.BytesIO()
    Image.fromarray(grey).save(stream, "PNG")
    return stream.getvalue()


def _rotated(image: Image.Image) -> bytes:
    """Stored lying on its side, with the EXIF tag that says so."""
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = TURN_RIGHT
    stream = io.BytesIO()
    image.transpose(Image.Transpose.ROTATE_90).save(stream, "JPEG", quality=90, exif=exif)
    return stream.getvalue()


def _jpeg(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=90)
    return stream.getvalue()
