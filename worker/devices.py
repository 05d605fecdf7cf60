"""What this host offers: GPUs and CPUs, and their division among ranks. Imports no torch: the parent never needs it.

A host that should have a GPU but shows none must not silently compute on its CPU: the container's environment says what
was promised, and the engine then fails on `cuda`, which is `host_sick`.
"""

from __future__ import annotations

import os
from contextlib import suppress

_NO_GPU = ("", "void", "none", "no")


def gpus() -> int:
    """GPUs that this container may use; 1 if they were promised but the driver does not answer."""
    count = 0
    with suppress(Exception):  # no driver, no library
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    promised = os.environ.get("NVIDIA_VISIBLE_DEVICES", "").lower() not in _NO_GPU
    return max(count, int(promised))


def on_gpu() -> bool:
    """REEMBED_DEVICE=cpu or cuda overrides what the host shows."""
    choice = os.environ.get("REEMBED_DEVICE", "")
    return choice == "cuda" or (choice != "cpu" and gpus() > 0)


def ranks(wanted: int | None) -> int:
    """Engines of this node: as told, or one for each GPU, or one."""
    if wanted is not None:
        return max(1, wanted)
    return max(1, gpus()) if on_gpu() else 1


def device(rank: int) -> str:
    """torch's name of the device of a rank; ranks beyond the GPUs share them."""
    return f"cuda:{rank % max(1, gpus())}" if on_gpu() else "cpu"


def divide_cpus(world: int, decoders: int | None = None) -> tuple[int, int]:
    """Decode processes and torch threads of one rank.

    One CPU of each rank is for fetch and engine; the others decode. On a CPU-only host the engine is the
    slowest stage, so decoding gets one process and the engine the rest.
    """
    mine = max(1, _cpus() // world)
    if on_gpu():
        return decoders or max(1, mine - 1), 1
    count = decoders or 1
    return count, max(1, mine - count)


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
