"""Ties a child's life to its parent's, then becomes the child.

`launcher.py PARENT SIGNAL IDENTITY PROGRAM ARGS…`, run by path. It takes on IDENTITY, asks the kernel to send
SIGNAL when the parent dies, and replaces itself with PROGRAM. A `preexec_fn` could do the same, but would run
Python between fork and exec, which can deadlock in a parent with threads.

IDENTITY is `-` (as we are), the name of a user, or `@namespace`: still the same user to the file system, but
called `nobody` in a user namespace of its own, which satisfies programs that refuse to run as root.

The order matters: the kernel forgets the wish when the identity changes, so the identity comes first; and the
parent may have died before the wish was made, so it is looked for afterwards. Where there is no prctl
(macOS) the child simply runs, and only an orderly stop ends it.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000
NOBODY = 65534
AS_WE_ARE, NAMESPACE = "-", "@namespace"
PARENT_GONE = 143  # what a shell would report for a child ended by SIGTERM


def become_user(name: str) -> None:
    """Drop root for `name`, groups first, while we may still change them."""
    entry = pwd.getpwnam(name)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


def enter_namespace(libc: ctypes.CDLL) -> None:
    """Map our own user and group to nobody's; OSError where the kernel or a container forbids it."""
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWUSER) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{NOBODY} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{NOBODY} {gid} 1")


def main(arguments: list[str]) -> None:
    """Never returns: the process becomes PROGRAM, or ends."""
    parent, signal_number, identity, program, *rest = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    if identity == NAMESPACE:
        enter_namespace(libc)
    elif identity != AS_WE_ARE:
        become_user(identity)
    if sys.platform == "linux":
        libc.prctl(PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)
        if os.getppid() != int(parent):
            sys.exit(PARENT_GONE)
    os.execvp(program, [program, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
