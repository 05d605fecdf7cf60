"""The engine's arithmetic in torch: a loaded model on its device, between the two rings.

Pixels cross to the device as uint8 and are normalised there. A batch is complete, vectors read back, before the next
begins, all on one stream: no tensor's memory can be handed on while a kernel still reads it. Float32 on a CPU, float16
autocast on a GPU. Imported by the engine process only.
"""

from __future__ import annotations

import time
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import torch

from worker.batching import CPU_BATCH, Measured, choose_batch_size, embed_within_memory
from worker.context import HostSick
from worker.models.plugin import ModelPlugin

TRIAL_BATCHES = 3
UTILISATION_SECONDS = 5.0
OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)


def check_device(device: str, threads: int) -> None:
    """One small computation: a broken driver must show here and not as a failure of the model."""
    torch.set_num_threads(threads)
    try:
        total = float(torch.ones(8, device=device).sum())
    except Exception as error:
        raise HostSick(f"{device} is unusable: {type(error).__name__}: {error}") from error
    if total != 8.0:
        raise HostSick(f"{device} computes wrongly")


class TorchEngine:
    """`embed` reads slots of the pixel ring and writes the same slots of the vector ring."""

    def __init__(
        self,
        plugin: ModelPlugin,
        device: str,
        pixels: npt.NDArray[np.uint8],
        vectors: npt.NDArray[np.float32],
        cap: int,
    ) -> None:
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
        self._utilisation: tuple[float, float | None] = (float("-inf"), None)

    def warm_up(self, batch_size: int | None) -> int:
        """The batch size to use: given, measured on a GPU, small on a CPU."""
        if batch_size is not None or not self.cuda:
            self._cap = min(self._cap, batch_size or CPU_BATCH)
        else:
            self._cap = choose_batch_size(self._measure, largest=self._cap)
        return self._cap

    def embed(self, slots: list[int]) -> list[int]:
        """Vectors of all slots; gives the slots that memory refused."""
        refused, self._cap = embed_within_memory(slots, self._cap, self._embed, OUT_OF_MEMORY)
        return refused

    def peak_memory_bytes(self) -> int | None:
        """Of the device; None where that is the process's own."""
        return int(torch.cuda.max_memory_allocated(self.device)) if self.cuda else None

    def utilisation(self) -> float | None:
        """NVML's share of time with a kernel running, 0..1, read now and then; None without a GPU."""
        if self.cuda and time.monotonic() - self._utilisation[0] > UTILISATION_SECONDS:
            value: float | None = None
            with suppress(Exception):  # a figure is not worth failing for
                value = torch.cuda.utilization(self.device) / 100
            self._utilisation = (time.monotonic(), value)
        return self._utilisation[1]

    def _embed(self, slots: list[int]) -> None:
        with torch.inference_mode():
            picked = torch.tensor(slots)
            images = self._pixels[picked]
            if self.cuda:
                images = images.pin_memory().to(self.device, non_blocking=True)
            self._vectors[picked] = self._vectors_of(images).cpu()

    def _vectors_of(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 (N, 3, S, S) on the device → float32 (N, D) on the device."""
        prepared = images.float().sub_(self._mean).mul_(self._scale)
        with torch.autocast("cuda", enabled=self.cuda, dtype=torch.float16):
            vectors = self._forward(prepared)
        vectors = vectors.float()
        return torch.nn.functional.normalize(vectors, dim=1) if self.plugin.normalise else vectors

    def _measure(self, size: int) -> Measured | None:
        """Throughput of random pictures at one size, after one run to warm up; None when out of memory."""
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
        except OUT_OF_MEMORY:
            torch.cuda.empty_cache()
            return None
        seconds = time.perf_counter() - began
        share = torch.cuda.max_memory_allocated(self.device) / torch.cuda.mem_get_info(self.device)[1]
        return Measured(size * TRIAL_BATCHES / seconds, share)
