"""Arming crash points, and dying at them. Light: every process of a container imports it.

A point is armed by a file and fires once in all processes together: whoever gets to rename the file dies.
"""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Iterable
from pathlib import Path

DIRECTORY = "CHAOS_DIRECTORY"


def methods(protocol: type) -> list[str]:
    """What a port can be asked, in the order in which it is written."""
    return [name for name, member in vars(protocol).items() if inspect.isfunction(member) and name[0] != "_"]


def index_operations() -> list[str]:
    from worker.index.writer import IndexWriter

    return [name for name in methods(IndexWriter) if name != "close"]


class Ledger:
    """What is armed and what has fired, as files that every process of the stack can see."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("armed", "fired"):
            (directory / name).mkdir(parents=True, exist_ok=True)

    def arm(self, points: Iterable[str]) -> None:
        for point in points:
            (self.directory / "armed" / point).touch()

    def armed(self) -> set[str]:
        return set(os.listdir(self.directory / "armed"))

    def fired(self) -> set[str]:
        return set(os.listdir(self.directory / "fired"))

    def disarm(self) -> None:
        for point in self.armed():
            (self.directory / "armed" / point).unlink(missing_ok=True)


def fires(point: str) -> bool:
    """Whether this process is the one that passes an armed point first."""
    directory = os.environ[DIRECTORY]
    try:
        os.rename(f"{directory}/armed/{point}", f"{directory}/fired/{point}")
    except FileNotFoundError:
        return False
    return True


def pass_by(point: str) -> None:
    """Die here, as a lost host would, if the point is armed."""
    if fires(point):
        os.kill(os.getpid(), signal.SIGKILL)
