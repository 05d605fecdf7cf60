"""Embeds a few pictures in this process, on the CPU: what to search an index with.

The same decoding and the same arithmetic as a job, without its processes: for one's own pictures, not for strangers'.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from worker.batching import CPU_BATCH
from worker.decode import decode
from worker.engine import open_engine
from worker.models import registry
from worker.rows import Failure

MAX_PIXELS = 100_000_000


class UnreadablePictureError(ValueError):
    """A file that has no pixels for us."""


def embed_pictures(model: str, bodies: Sequence[bytes]) -> npt.NDArray[np.float32]:
    """Image files → float32 (N, D). UnknownModel, `Stopped`, or UnreadablePictureError that counts from 0."""
    plugin = registry.find(model)
    side = plugin.preprocessing.input_size
    pixels = np.empty((len(bodies), 3, side, side), np.uint8)
    for number, body in enumerate(bodies):
        verdict = decode(body, plugin.preprocessing, MAX_PIXELS)
        if isinstance(verdict, Failure):
            raise UnreadablePictureError(f"picture {number}: {verdict.status.value}: {verdict.error}")
        pixels[number] = verdict.pixels
    vectors = np.zeros((len(bodies), plugin.dimensions), np.float32)
    engine = open_engine(plugin, "cpu", pixels, vectors, CPU_BATCH)
    refused = engine.embed(list(range(len(bodies))))
    assert not refused, "a CPU does not refuse a batch"
    return vectors
