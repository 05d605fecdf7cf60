"""The engine: one process, one device, and a loop that does nothing but feed it.

Slots in, vectors out, through shared memory. The next batch is already waiting in the channel, so the gap between two
is one message. The arithmetic is `worker.torch_engine`, or a few lines of numpy here for a plug-in that needs no torch.

Run as `python -m worker.engine`. Says why it cannot work (`failed`: an `ExitCode` by name) and ends; the rank decides
what that means.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from schema.exit_codes import ExitCode
from worker import ring
from worker.batching import CPU_BATCH, LARGEST_BATCH
from worker.channel import Channel, attach
from worker.context import ConfigError, OutOfMemory, Stopped
from worker.models import registry
from worker.models.plugin import ModelPlugin, Runtime


class Engine(Protocol):
    """A loaded model between the rings."""

    def warm_up(self, batch_size: int | None) -> int:
        """The batch size to use from now on."""
        ...

    def embed(self, slots: list[int]) -> list[int]:
        """Write the vector of each slot; gives the slots that memory refused."""
        ...

    def peak_memory_bytes(self) -> int | None: ...

    def utilisation(self) -> float | None: ...


class NumpyEngine:
    """For plug-ins that compute in numpy, on the CPU."""

    def __init__(
        self, plugin: ModelPlugin, pixels: npt.NDArray[np.uint8], vectors: npt.NDArray[np.float32], cap: int
    ) -> None:
        self._plugin = plugin
        self._pixels = pixels
        self._vectors = vectors
        self._cap = cap
        shape = (1, 3, 1, 1)
        self._mean = np.asarray(plugin.preprocessing.mean, np.float32).reshape(shape) * 255
        self._scale = 1 / (np.asarray(plugin.preprocessing.std, np.float32).reshape(shape) * 255)
        self._forward = plugin.load("cpu")

    def warm_up(self, batch_size: int | None) -> int:
        return min(self._cap, batch_size or CPU_BATCH)

    def embed(self, slots: list[int]) -> list[int]:
        vectors = self._forward((self._pixels[slots] - self._mean) * self._scale)
        if self._plugin.normalise:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        self._vectors[slots] = vectors
        return []

    def peak_memory_bytes(self) -> int | None:
        return None

    def utilisation(self) -> float | None:
        return None


def load(order: dict[str, Any], descriptors: list[int]) -> Engine:
    """Raises the `Stopped` that fits the cause."""
    plugin = registry.find(order["model"])
    pixels = ring.map_pixels(descriptors[0], plugin.preprocessing.input_size)
    vectors = ring.map_vectors(descriptors[1], plugin.dimensions)
    cap = min(LARGEST_BATCH, len(pixels) // 2)
    device = "cpu" if plugin.runtime is Runtime.NUMPY else order["device"]
    if plugin.runtime is Runtime.TORCH:
        from worker.torch_engine import check_device

        check_device(device, order["threads"])
    return open_engine(plugin, device, pixels, vectors, cap)


def open_engine(
    plugin: ModelPlugin, device: str, pixels: npt.NDArray[np.uint8], vectors: npt.NDArray[np.float32], cap: int
) -> Engine:
    """From `pixels` (slots, 3, S, S) to `vectors` (slots, D), at most `cap` at once; raises as `load` does."""
    try:
        if plugin.runtime is Runtime.NUMPY:
            return NumpyEngine(plugin, pixels, vectors, cap)
        from worker.torch_engine import TorchEngine

        return TorchEngine(plugin, device, pixels, vectors, cap)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError) or "out of memory" in text:
            raise OutOfMemory(f"{plugin.model} does not fit on {device}: {text}") from error
        raise ConfigError(f"{plugin.model} cannot be loaded: {text}") from error


def main() -> None:
    """Load, say so, then a batch at a time until the rank is gone."""
    end, descriptors = attach()
    channel = Channel(end)
    hello = channel.receive()
    if hello is None:
        return
    order = hello[0]
    try:
        engine = load(order, descriptors)
        channel.send({"batch_size": engine.warm_up(order.get("batch_size"))})
        _serve(channel, engine)
    except Stopped as stopped:
        channel.send({"failed": stopped.code.name, "error": str(stopped)})
    except Exception as error:
        sick = "CUDA" in str(error) or "cuDNN" in str(error)
        code = ExitCode.HOST_SICK if sick else ExitCode.CRASHED
        channel.send({"failed": code.name, "error": f"{type(error).__name__}: {error}"})
        raise


def _serve(channel: Channel, engine: Engine) -> None:
    idle_since = time.perf_counter()
    while (message := channel.receive()) is not None:
        began = time.perf_counter()
        slots = message[0]["slots"]
        refused = engine.embed(slots)
        ended = time.perf_counter()
        own_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        channel.send(
            {
                "slots": slots,
                "refused": refused,
                "wait_seconds": began - idle_since,
                "compute_seconds": ended - began,
                "peak_memory_bytes": engine.peak_memory_bytes() or own_bytes,
                "gpu_utilisation": engine.utilisation(),
            }
        )
        idle_since = ended


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.exit(1)
