"""Ties a child's life to its parent's, then becomes the child.

`launcher.py PARENT SIGNAL USER PROGRAM ARGS…`, run by path. It changes to USER (`-` keeps the present one), asks the
kernel to send SIGNAL when the parent dies, and replaces itself with PROGRAM. A `preexec_fn` could do the
same, but would run Python between fork and exec, which can deadlock in a parent with threads.

The order matters: the kernel forgets the wish when the user changes, so the user comes first; and the
parent may have died before the wish was made, so it is looked for afterwards. Where there is no prctl
(macOS) the child simply runs, and only an orderly stop ends it.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import sys

PR_SET_PDEATHSIG = 1
PARENT_GONE = 143  # what a shell would report for a child ended by SIGTERM


def _become(user: str) -> None:
    """Drop root for `user`, groups first, while we may still change them."""
    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


def main(arguments: list[str]) -> None:
    parent, signal_number, user, program, *rest = arguments
    if user != "-":
        _become(user)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)
        if os.getppid() != int(parent):
            sys.exit(PARENT_GONE)
    os.execvp(program, [program, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
