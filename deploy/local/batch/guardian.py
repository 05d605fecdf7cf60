"""A tiny process that outlives the stand-in just long enough to kill its jobs.

Run as a script by `processes`. It reads `+<pgid>` and `-<pgid>` lines on stdin; when the pipe closes, however the
stand-in died, it kills every group still listed and, where /proc exists, every process that carries the stand-in's
mark in its environment (a job that left its group, or one started in the very last moment). It imports nothing of
the package and ignores Ctrl-C, which the terminal sends to it too.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress


def marked_processes(mark: bytes) -> list[int]:
    found = []
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if entry.isdigit() and int(entry) != os.getpid():
            with suppress(OSError), open(f"/proc/{entry}/environ", "rb") as environment:
                if mark in environment.read().split(b"\0"):
                    found.append(int(entry))
    return found


def main() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    mark = sys.argv[1].encode()
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        (groups.add if line[0] == "+" else groups.discard)(group)
    for group in groups:
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    for _ in range(3):  # a killed parent may have forked in between
        for pid in marked_processes(mark):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
