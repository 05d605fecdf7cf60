"""What a model must tell the worker. A plug-in is one object of this shape under an entry point of `reembed.models`.

Nothing here, and nothing at the top level of a plug-in's module, imports torch: preparation reads a plug-in's digest on
a CPU machine, and decode processes read its input size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Forward = Callable[[torch.Tensor], torch.Tensor]

#: Rules of `worker.decode` that change pixels. A new value makes new outputs; raise it with any change of those rules.
DECODE_RULES = "draft2-exif-white-2"


class Resize(StrEnum):
    """How an image of any shape becomes a square; bicubic throughout."""

    CROP = "crop"  # scale the shorter side to `resize_to`, cut the centre
    SQUASH = "squash"  # scale both sides to the input size; the aspect ratio is lost
    PAD = "pad"  # scale the longer side to the input size, centre on white


@dataclass(frozen=True)
class Preprocessing:
    """From image file to the model's input. `mean` and `std` are of pixels in 0..1, by channel R, G, B."""

    input_size: int
    resize: Resize = Resize.CROP
    resize_to: int | None = None
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Preprocessing:
        """From `asdict` after a way through JSON."""
        return cls(**{**fields, "resize": Resize(fields["resize"])})

    @property
    def digest(self) -> str:
        """16 hex digits; outputs of unlike preprocessing never share a prefix."""
        text = json.dumps({"rules": DECODE_RULES, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Runtime(StrEnum):
    """What a model computes with."""

    TORCH = "torch"
    NUMPY = "numpy"  # on the CPU; spares the start of torch


@dataclass(frozen=True)
class ModelPlugin:
    """A model, complete but not loaded.

    `load(device)` returns a callable: float32 (N, 3, S, S), already normalised, on that device → (N, `dimensions`),
    any float dtype. Tensors, or arrays with `Runtime.NUMPY`. It must not execute a pickle (`weights_only=True`, or
    safetensors). With `normalise` the worker scales every vector to unit length.
    """

    name: str
    version: str
    dimensions: int
    preprocessing: Preprocessing
    load: Callable[[str], Any]
    normalise: bool = True
    runtime: Runtime = Runtime.TORCH

    @property
    def model(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def preprocessing_digest(self) -> str:
        return self.preprocessing.digest
