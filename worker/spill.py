"""Sorted addresses that do not fit in memory: packed runs in one nameless temporary file.

A run is a shard file of its own, read back one block at a time, so that a merge of many runs holds one block of
each. The file has no name: whatever becomes of the process, the disk is free again. About 40 bytes an address.
"""

from __future__ import annotations

import heapq
import os
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType

from schema import shardfile
from schema.shardfile import Address, ShardFile


@dataclass(frozen=True, slots=True)
class Extent:
    """Where one run lies in the file."""

    offset: int
    length: int


class Spill:
    """The file. Several threads may write and read; it is closed by leaving the `with`."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="reembed-spill-")  # noqa: SIM115 - closed by __exit__
        self._lock = threading.Lock()
        self._end = 0

    def __enter__(self) -> Spill:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, bucket: str, addresses: Iterable[Address]) -> Extent:
        """Store one run as it comes."""
        body = shardfile.write(bucket, addresses)
        with self._lock:
            extent = Extent(self._end, len(body))
            self._end += len(body)
        view = memoryview(body)
        offset = extent.offset
        while view:
            written = os.pwrite(self._file.fileno(), view, offset)
            view, offset = view[written:], offset + written
        return extent

    def read(self, extent: Extent) -> Iterator[Address]:
        """The addresses of one run."""

        def read(offset: int, length: int) -> bytes:
            return os.pread(self._file.fileno(), length, extent.offset + offset)

        return iter(ShardFile.open(read, extent.length))

    def merge(self, extents: list[Extent]) -> Generator[Address]:
        """All runs as one, in byte order of the keys; of several rows of one key the one that knows most."""
        runs = [self.read(extent) for extent in extents]
        last: Address | None = None
        for address in heapq.merge(*runs, key=sort_key):
            if last is not None and last.key != address.key:
                yield last
            last = address
        if last is not None:
            yield last


def sort_key(address: Address) -> tuple[bytes, int, str]:
    """Byte order of keys; an unknown size or etag comes before a known one."""
    return address.key, address.size, address.etag
