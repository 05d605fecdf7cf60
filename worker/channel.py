"""Messages between the processes of one node, and how those processes are started.

A message is a JSON header and a payload of bytes. Not pickle: a decode process handles hostile images, and what it
says must not be able to run code in its parent.

Children are fresh interpreters (`python -m …`), never forks: native S3 clients and CUDA do not survive one. A child
gets its end of a socket pair and any shared memory as inherited descriptors, so nothing has a name that could be left
behind or met by another job. It ends when its parent does: the kernel kills it (Linux), and its channel reads end of
file. It ignores SIGTERM, which Batch may send to everyone: only the first process decides when to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

Header = dict[str, Any]
Message = tuple[Header, bytes]

_LENGTHS = struct.Struct("<IQ")
MAX_HEADER_BYTES = 64 * 1024 * 1024
MAX_PAYLOAD_BYTES = 8 * 1024 * 1024 * 1024
_PR_SET_PDEATHSIG = 1


class ChannelError(Exception):
    """A message that cannot be one; the other side is broken or hostile."""


class Channel:
    """A blocking end. Safe for one sending and one receiving thread."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._file = end.makefile("rb", buffering=1 << 20)

    def send(self, header: Header, payload: bytes | memoryview = b"") -> None:
        """BrokenPipeError when the other side is gone."""
        self._end.sendall(_head(header, len(payload)))
        if payload:
            self._end.sendall(payload)

    def receive(self) -> Message | None:
        """The next message; None when the other side has closed or died, even in mid-message."""
        try:
            lengths = self._file.read(_LENGTHS.size)
            if len(lengths) < _LENGTHS.size:
                return None
            header_bytes, payload_bytes = _checked(lengths)
            header, payload = self._file.read(header_bytes), self._file.read(payload_bytes)
        except ConnectionResetError:
            return None
        if len(header) < header_bytes or len(payload) < payload_bytes:
            return None
        return _parsed(header), payload

    def shutdown(self) -> None:
        """End both directions; a thread that waits in `receive` gets None."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)


class AsyncChannel:
    """The same over asyncio streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> AsyncChannel:
        reader, writer = await asyncio.open_connection(sock=end)
        return cls(reader, writer)

    async def send(self, header: Header, payload: bytes | memoryview = b"") -> None:
        """Returns once the buffer is low again; a dead other side shows in `receive`, not here."""
        self._writer.write(_head(header, len(payload)))
        if payload:
            self._writer.write(payload)
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    async def receive(self) -> Message | None:
        """The next message; None when the other side has closed or died."""
        try:
            header_bytes, payload_bytes = _checked(await self._reader.readexactly(_LENGTHS.size))
            header = await self._reader.readexactly(header_bytes)
            payload = await self._reader.readexactly(payload_bytes) if payload_bytes else b""
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return _parsed(header), payload

    def close(self) -> None:
        self._writer.close()


def start(module: str, descriptors: Sequence[int] = ()) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start `python -m module`; gives the process and our end of its channel. The child calls `attach`."""
    ours, theirs = socket.socketpair()
    inherited = [theirs.fileno(), *descriptors]
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(os.getpid()), *map(str, inherited)],
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def attach() -> tuple[socket.socket, list[int]]:
    """In a child: tie our life to the parent's; gives our end of the channel and the shared descriptors."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent, end, *descriptors = map(int, sys.argv[1:])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel knew our wish
        sys.exit(1)
    return socket.socket(fileno=end), descriptors


def _head(header: Header, payload_bytes: int) -> bytes:
    text = json.dumps(header).encode()
    return _LENGTHS.pack(len(text), payload_bytes) + text


def _checked(lengths: bytes) -> tuple[int, int]:
    header_bytes, payload_bytes = _LENGTHS.unpack(lengths)
    if header_bytes > MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
        raise ChannelError(f"message of {header_bytes} + {payload_bytes} bytes")
    return header_bytes, payload_bytes


def _parsed(header: bytes) -> Header:
    parsed = json.loads(header)
    if not isinstance(parsed, dict):
        raise ChannelError("a header that is no object")
    return parsed
