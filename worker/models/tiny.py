"""`tiny@1`: a fixed random projection of an 8 x 8 thumbnail, for tests and dry runs.

Deterministic, in numpy alone, so that a worker starts in a second; and still sensible: pictures that look alike at a
glance land close together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from worker.models.plugin import ModelPlugin, Preprocessing, Resize, Runtime

DIMENSIONS = 64
INPUT_SIZE = 64
THUMBNAIL = 8
SEED = 7


def _load(device: str) -> object:
    rng = np.random.default_rng(SEED)
    projection = rng.standard_normal((3 * THUMBNAIL * THUMBNAIL, DIMENSIONS), np.float32)

    def forward(images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """(N, 3, 64, 64) → (N, 64)."""
        cell = INPUT_SIZE // THUMBNAIL
        thumbnails = images.reshape(len(images), 3, THUMBNAIL, cell, THUMBNAIL, cell).mean(axis=(3, 5))
        return thumbnails.reshape(len(images), -1) @ projection

    return forward


plugin = ModelPlugin(
    "tiny", "1", DIMENSIONS, Preprocessing(input_size=INPUT_SIZE, resize=Resize.SQUASH), _load, runtime=Runtime.NUMPY
)
