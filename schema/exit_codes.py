"""Exit codes of a worker process, read back by `controller.core.outcome`.

Values stay clear of the shell's own (1, 2, 126–128) and of 128+signal, which the kernel and Docker use.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """One code a cause; each maps to one `schema.states.Outcome`."""

    OK = 0
    CRASHED = 1
    INTERRUPTED = 64
    INCOMPLETE = 65
    BAD_DATA = 66
    CONFIG_ERROR = 67
    HOST_SICK = 68
    OUT_OF_MEMORY = 69
    VOID = 70
    ASSIGNMENT_MISMATCH = 71
