"""The engine: one process, one device, and a loop that does nothing but feed it.

Slots in, vectors out, through shared memory; pixels cross as uint8 and are normalised on the device. A batch is
complete, vectors read back, before the next begins, all on one stream: no tensor's memory can be handed on while a
kernel still reads it. The next batch is already waiting in the channel, so the gap is one gather.

Run as `python -m worker.engine`. Says why it cannot work (`failed`: an `ExitCode` by name) and ends; the rank decides
what that means. Float32 on a CPU, float16 autocast on a GPU.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from schema.exit_codes import ExitCode
from worker import ring
from worker.batching import CPU_BATCH, LARGEST_BATCH, Measured, choose_batch_size, embed_within_memory
from worker.channel import Channel, attach
from worker.models import registry
from worker.models.plugin import ModelPlugin

if TYPE_CHECKING:
    import torch

TRIAL_BATCHES = 3
UTILISATION_SECONDS = 5.0


class EngineFailed(Exception):
    """This process cannot embed; `code` says whose fault it is."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Engine:
    """A loaded model on its device, over the two rings."""

    def __init__(self, plugin: ModelPlugin, device: str, pixels: np.ndarray, vectors: np.ndarray, cap: int) -> None:
        import torch

        self._torch = torch
        self.plugin = plugin
        self.device = torch.device(device)
        self.cuda = self.device.type == "cuda"
        self._pixels = torch.from_numpy(pixels)
        self._vectors = torch.from_numpy(vectors)
        self._cap = cap
        preprocessing = plugin.preprocessing
        self._mean = torch.tensor(preprocessing.mean, device=self.device).mul(255).view(1, 3, 1, 1)
        self._scale = torch.tensor(preprocessing.std, device=self.device).mul(255).reciprocal().view(1, 3, 1, 1)
        self._forward = plugin.load(device)

    def embed(self, slots: list[int]) -> list[int]:
        """Vectors of all slots into their ring; gives the slots that memory refused."""
        refused, self._cap = embed_within_memory(slots, self._cap, self._embed, self.out_of_memory)
        return refused

    @property
    def out_of_memory(self) -> tuple[type[BaseException], ...]:
        return (self._torch.OutOfMemoryError, MemoryError)

    def warm_up(self, batch_size: int | None) -> int:
        """The batch size to use: given, measured on a GPU, small on a CPU."""
        if batch_size is not None or not self.cuda:
            self._cap = min(self._cap, batch_size or CPU_BATCH)
        else:
            self._cap = choose_batch_size(self._measure, largest=self._cap)
        return self._cap

    def _embed(self, slots: list[int]) -> None:
        with self._torch.inference_mode():
            picked = self._torch.tensor(slots)
            images = self._pixels[picked]
            if self.cuda:
                images = images.pin_memory().to(self.device, non_blocking=True)
            self._vectors[picked] = self._vectors_of(images).cpu()

    def _vectors_of(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 (N, 3, S, S) on the device → float32 (N, D) on the device."""
        torch = self._torch
        prepared = images.float().sub_(self._mean).mul_(self._scale)
        with torch.autocast("cuda", enabled=self.cuda, dtype=torch.float16):
            vectors = self._forward(prepared)
        vectors = vectors.float()
        return torch.nn.functional.normalize(vectors, dim=1) if self.plugin.normalise else vectors

    def _measure(self, size: int) -> Measured | None:
        """Throughput of random pictures at one size, after one run to warm up."""
        torch = self._torch
        side = self.plugin.preprocessing.input_size
        try:
            images = torch.randint(0, 256, (size, 3, side, side), dtype=torch.uint8, device=self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            with torch.inference_mode():
                self._vectors_of(images)
                torch.cuda.synchronize(self.device)
                began = time.perf_counter()
                for _ in range(TRIAL_BATCHES):
                    self._vectors_of(images)
                torch.cuda.synchronize(self.device)
        except self.out_of_memory:
            torch.cuda.empty_cache()
            return None
        seconds = time.perf_counter() - began
        share = torch.cuda.max_memory_allocated(self.device) / torch.cuda.mem_get_info(self.device)[1]
        return Measured(size * TRIAL_BATCHES / seconds, share)

    def peak_memory_bytes(self) -> int:
        """Of the device; on a CPU, of this process."""
        if self.cuda:
            return int(self._torch.cuda.max_memory_allocated(self.device))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def load(order: dict[str, Any], descriptors: list[int]) -> Engine:
    """Raises `EngineFailed` with the code that fits the cause."""
    plugin = registry.find(order["model"])
    side, dimensions = plugin.preprocessing.input_size, plugin.dimensions
    pixels, vectors = ring.map_pixels(descriptors[0], side), ring.map_vectors(descriptors[1], dimensions)
    device = order["device"]
    _check_device(device, order["threads"])
    try:
        engine = Engine(plugin, device, pixels, vectors, cap=min(LARGEST_BATCH, len(pixels) // 2))
    except MemoryError as error:
        raise EngineFailed(ExitCode.OUT_OF_MEMORY, f"{plugin.model} does not fit into memory") from error
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if "out of memory" in text:
            raise EngineFailed(ExitCode.OUT_OF_MEMORY, f"{plugin.model} does not fit on {device}") from error
        raise EngineFailed(ExitCode.CONFIG_ERROR, f"{plugin.model} cannot be loaded: {text}") from error
    return engine


def _check_device(device: str, threads: int) -> None:
    """One small computation: a broken driver must show here and not as a failure of the model."""
    import torch

    torch.set_num_threads(threads)
    try:
        total = float(torch.ones(8, device=device).sum())
    except Exception as error:
        raise EngineFailed(ExitCode.HOST_SICK, f"{device} is unusable: {type(error).__name__}: {error}") from error
    if total != 8.0:
        raise EngineFailed(ExitCode.HOST_SICK, f"{device} computes wrongly")


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
        channel.send({"batch_size": engine.warm_up(order.get("batch_size")), "device": str(engine.device)})
        _serve(channel, engine, _utilisation(order["device"]))
    except EngineFailed as failure:
        channel.send({"failed": failure.code.name, "error": str(failure)})
    except Exception as error:
        sick = "CUDA" in str(error) or "cuDNN" in str(error)
        code = ExitCode.HOST_SICK if sick else ExitCode.CRASHED
        channel.send({"failed": code.name, "error": f"{type(error).__name__}: {error}"})
        raise


def _serve(channel: Channel, engine: Engine, utilisation: Callable[[], float | None]) -> None:
    idle_since = time.perf_counter()
    while (message := channel.receive()) is not None:
        began = time.perf_counter()
        slots = message[0]["slots"]
        refused = engine.embed(slots)
        ended = time.perf_counter()
        channel.send(
            {
                "slots": slots,
                "refused": refused,
                "wait_seconds": began - idle_since,
                "compute_seconds": ended - began,
                "peak_memory_bytes": engine.peak_memory_bytes(),
                "gpu_utilisation": utilisation(),
            }
        )
        idle_since = ended


def _utilisation(device: str) -> Callable[[], float | None]:
    """NVML's share of time with a kernel running, 0..1, read now and then; None without a GPU."""
    if not device.startswith("cuda"):
        return lambda: None
    last: tuple[float, float | None] = (float("-inf"), None)

    def read() -> float | None:
        nonlocal last
        if time.monotonic() - last[0] > UTILISATION_SECONDS:
            value: float | None = None
            with suppress(Exception):
                import pynvml

                pynvml.nvmlInit()
                handle = pynvml.nvmlDeviceGetHandleByIndex(int(device.partition(":")[2] or 0))
                value = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            last = (time.monotonic(), value)
        return last[1]

    return read


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.exit(1)
