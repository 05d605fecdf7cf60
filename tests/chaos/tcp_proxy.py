"""A TCP proxy on loopback that breaks connections, loses answers and repeats requests.

It runs in a thread of the test. Bytes pass through as they are; only to lose the answer of a request, or to send one
twice, it looks for the end of HTTP requests.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

PIECE_BYTES = 65536
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
#: SO_LINGER of no seconds: close() sends a reset.
_AT_ONCE = struct.pack("ii", 1, 0)


class TcpProxy:
    """`target` gives the port of the service when somebody connects. `http`: requests are told apart."""

    def __init__(self, target: Callable[[], int], *, http: bool) -> None:
        self._target = target
        self._http = http
        self._open: set[asyncio.StreamWriter] = set()
        self._lose: tuple[bytes, int] = (b"", 0)
        self.repeat: bytes | None = None
        self.lost = self.repeated = self.resets = 0
        self._loop = asyncio.new_event_loop()
        ready: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        self.port = ready.result(10)

    def lose_answers(self, marked: bytes, count: int) -> None:
        """The next requests that contain these bytes are carried out; their answer never comes."""
        self._lose = (marked, count)

    def reset(self) -> None:
        """Break every connection, both ways."""

        async def broken() -> None:
            for writer in list(self._open):
                _reset(writer)
                self.resets += 1

        asyncio.run_coroutine_threadsafe(broken(), self._loop).result(10)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, ready: Future[int]) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._handle, "127.0.0.1", 0))
        ready.set_result(server.sockets[0].getsockname()[1])
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        for writer in list(self._open):
            writer.transport.abort()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, away = await asyncio.open_connection("127.0.0.1", self._target())
        except OSError:
            _reset(writer)
            return
        self._open |= {writer, away}
        back = asyncio.create_task(_pump(there, writer))
        try:
            if self._http:
                await self._requests(reader, writer, away, back)
            else:
                await _pump(reader, away)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open -= {writer, away}
            with suppress(OSError):
                away.close()
            with suppress(OSError, asyncio.CancelledError):
                await asyncio.wait_for(back, 5)
            writer.close()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        away: asyncio.StreamWriter,
        back: asyncio.Task[None],
    ) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            request = head + (await reader.readexactly(int(length[1])) if length else b"")
            if self.repeat is not None and self.repeat in request:
                await self._send_once_more(request)
            marked, count = self._lose
            if count and marked in request:
                self._lose = (marked, count - 1)
                back.cancel()
                await self._carry_out(request)
                self.lost += 1
                _reset(writer)
                return
            away.write(request)
            await away.drain()

    async def _send_once_more(self, request: bytes) -> None:
        await self._carry_out(request)
        self.repeated += 1

    async def _carry_out(self, request: bytes) -> None:
        """On a connection of its own, until the answer has begun."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target())
        writer.write(request)
        await reader.read(PIECE_BYTES)
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
        writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    writer.transport.abort()
