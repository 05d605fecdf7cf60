"""One image file to one square of pixels, in a process that may be killed at any moment.

Hostile input: the header decides first. Format allow-list, then the pixel cap, and only then are pixels decoded.
Verdicts are values (`Failure`); the process that calls this has no other state, so a hang or a crash costs one asset,
and `worker.decoders` deals with both. Run as `python -m worker.decode`; imports neither torch nor an S3 client.

The rules change pixels, hence outputs: `worker.models.plugin.DECODE_RULES` names this set of them.
1. JPEGs are decoded at the smallest scale that is still twice the target (`draft`): 2-6 times faster, mean error
   under half a grey level.
2. EXIF orientation is applied.
3. 16-bit greys are shifted down, not clamped; 32-bit and float ones are stretched to their own range.
4. CMYK becomes RGB; transparency is laid on white; of an animation only the first frame counts.
"""

from __future__ import annotations

import io
import sys
import time
import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import (  # the plug-ins register themselves, and no others are wanted
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    ImageOps,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from schema.states import RowStatus
from worker import ring
from worker.channel import Channel, attach
from worker.models.plugin import Preprocessing, Resize
from worker.rows import Failure, Picture

#: What may be opened. Pillow opens MPO, a JPEG with more pictures behind it, as a JPEG.
FORMATS = (
    JpegImagePlugin.JpegImageFile.format,
    PngImagePlugin.PngImageFile.format,
    WebPImagePlugin.WebPImageFile.format,
    GifImagePlugin.GifImageFile.format,
    BmpImagePlugin.BmpImageFile.format,
    TiffImagePlugin.TiffImageFile.format,
)
DRAFT_FACTOR = 2
WHITE = (255, 255, 255)
ERROR_CHARACTERS = 300

# Our own cap, from the header, replaces Pillow's, which warns at one size and raises at twice that.
Image.MAX_IMAGE_PIXELS = None
ImageFile.LOAD_TRUNCATED_IMAGES = False


@dataclass(frozen=True, slots=True)
class Decoded:
    """`pixels` uint8 (3, S, S)."""

    picture: Picture
    pixels: npt.NDArray[np.uint8]


def decode(body: bytes, preprocessing: Preprocessing, max_pixels: int) -> Decoded | Failure:
    """The verdict on one file; never raises for anything that a file can contain."""
    if not body:
        return Failure(RowStatus.UNREADABLE, "zero bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd but legal metadata
            image = Image.open(io.BytesIO(body), formats=FORMATS)
            picture = Picture(image.width, image.height, image.format or "")
            if picture.width * picture.height > max_pixels:
                return Failure(RowStatus.TOO_LARGE, f"{picture.width} x {picture.height} pixels, at most {max_pixels}")
            return Decoded(picture, _pixels(image, preprocessing))
    except UnidentifiedImageError:
        return _unidentified(body)
    except MemoryError as error:
        return Failure(RowStatus.TOO_LARGE, _text(error))
    except Exception as error:  # Pillow raises almost anything on a broken file
        return Failure(RowStatus.UNREADABLE, _text(error))


def _unidentified(body: bytes) -> Failure:
    """Not one of the allowed formats; or one of them, but with a header that is cut or broken."""
    if _begins_like_allowed(body[:16]):
        return Failure(RowStatus.UNREADABLE, "header cut short or broken")
    return Failure(RowStatus.UNSUPPORTED, f"not an image of {', '.join(FORMATS)}")


def _begins_like_allowed(head: bytes) -> bool:
    signatures = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM", b"II*\0", b"MM\0*", b"II+\0")
    return head.startswith(signatures) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]


def _pixels(image: Image.Image, preprocessing: Preprocessing) -> npt.NDArray[np.uint8]:
    """uint8 (3, S, S) of an opened image."""
    target = preprocessing.resize_to or preprocessing.input_size
    image.draft("RGB", _draft_size(image, target * DRAFT_FACTOR))
    oriented = ImageOps.exif_transpose(image)
    square = _square(_rgb(oriented), preprocessing)
    return np.ascontiguousarray(np.asarray(square, np.uint8).transpose(2, 0, 1))


def _draft_size(image: Image.Image, shorter: int) -> tuple[int, int]:
    """Smallest size to ask for so that the shorter side is still `shorter`; draft keeps both sides above it."""
    scale = shorter / min(image.size)
    return max(1, round(image.width * scale)), max(1, round(image.height * scale))


def _rgb(image: Image.Image) -> Image.Image:
    """8-bit RGB of any mode."""
    if image.mode.startswith("I;16"):
        return _grey(np.asarray(image).astype(np.uint16) >> 8)
    if image.mode in ("I", "F"):
        return _grey(_stretched(np.asarray(image, np.float64), image.format))
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layered = image.convert("RGBA")
        canvas = Image.new("RGBA", layered.size, (*WHITE, 255))
        return Image.alpha_composite(canvas, layered).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _stretched(values: npt.NDArray[np.float64], image_format: str | None) -> npt.NDArray[np.float64]:
    """To 0..255. Mode I of a PNG holds 16 bits; elsewhere only the picture's own range is known."""
    if image_format == "PNG" or (values.size and values.min() >= 0 and 255 < values.max() <= 65535):
        return np.floor(values / 256)
    values = np.nan_to_num(values, posinf=0.0, neginf=0.0)
    low, high = (values.min(), values.max()) if values.size else (0.0, 0.0)
    if low >= 0 and high <= 1:
        return values * 255
    if low >= 0 and high <= 255:
        return values
    return (values - low) * (255 / (high - low)) if high > low else np.zeros_like(values)


def _grey(values: npt.NDArray[np.generic]) -> Image.Image:
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8), "L").convert("RGB")


def _square(image: Image.Image, preprocessing: Preprocessing) -> Image.Image:
    size, bicubic = preprocessing.input_size, Image.Resampling.BICUBIC
    if preprocessing.resize is Resize.SQUASH:
        return image.resize((size, size), bicubic)
    if preprocessing.resize is Resize.PAD:
        return ImageOps.pad(image, (size, size), bicubic, color=WHITE)
    return _centre(image, preprocessing.resize_to or size, size)


def _centre(image: Image.Image, shorter: int, size: int) -> Image.Image:
    """Scale the shorter side to `shorter` and cut the centre, in one resampling of only the part that is kept.

    The cut is at a whole pixel of the scaled picture, as where one scales first: half a pixel beside it, fine textures
    alias otherwise, which costs up to 0.01 of cosine.
    """
    scale = shorter / min(image.size)
    width, height = round(image.width * scale), round(image.height * scale)
    left, top = (width - size) // 2, (height - size) // 2
    across, down = image.width / width, image.height / height
    box = (left * across, top * down, (left + size) * across, (top + size) * down)
    return image.resize((size, size), Image.Resampling.BICUBIC, box=box)


def main() -> None:
    """Serve one rank: bytes in, pixels into the slot that comes with them, verdict out, in order."""
    end, (pixels_descriptor,) = attach()
    channel = Channel(end)
    hello = channel.receive()
    if hello is None:
        return
    order = hello[0]
    preprocessing = Preprocessing.parse(order["preprocessing"])
    pixels = ring.map_pixels(pixels_descriptor, preprocessing.input_size)
    while (message := channel.receive()) is not None:
        header, body = message
        began = time.perf_counter()
        verdict = decode(body, preprocessing, order["max_pixels"])
        reply = _reply(verdict)
        if isinstance(verdict, Decoded):
            pixels[header["slot"]] = verdict.pixels
        reply["seconds"] = time.perf_counter() - began
        channel.send(reply)


def _reply(verdict: Decoded | Failure) -> dict[str, object]:
    if isinstance(verdict, Failure):
        return {"status": verdict.status, "error": verdict.error}
    picture = verdict.picture
    return {"status": RowStatus.OK, "width": picture.width, "height": picture.height, "format": picture.format}


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.exit(1)
