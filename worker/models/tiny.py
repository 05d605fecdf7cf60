"""`tiny@1`: a fixed random projection of an 8 x 8 thumbnail, for tests and dry runs.

Deterministic, under a millisecond an image, and still sensible: pictures that look alike at a glance land close
together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worker.models.plugin import ModelPlugin, Preprocessing, Resize

if TYPE_CHECKING:
    import torch

    from worker.models.plugin import Forward

DIMENSIONS = 64
INPUT_SIZE = 64
SEED = 7


def _load(device: str) -> Forward:
    import torch
    from torch.nn.functional import adaptive_avg_pool2d

    generator = torch.Generator().manual_seed(SEED)
    projection = torch.randn(3 * 8 * 8, DIMENSIONS, generator=generator).to(device)

    def forward(images: torch.Tensor) -> torch.Tensor:
        """(N, 3, 64, 64) → (N, 64)."""
        return adaptive_avg_pool2d(images, 8).flatten(1) @ projection

    return forward


plugin = ModelPlugin("tiny", "1", DIMENSIONS, Preprocessing(input_size=INPUT_SIZE, resize=Resize.SQUASH), _load)
