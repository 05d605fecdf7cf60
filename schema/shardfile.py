"""The packed address file: which assets a shard holds, in a form that is small, exact and opened lazily.

Owns the bytes; knows nothing of S3 or of plans. Keys are bytes and may hold any of them (newline, NUL, `//`).
The order of the addresses is the writer's; `worker.prepare` writes global byte order without duplicates.

Layout, little endian; every offset is u64, so no size of file is special:

    header   magic "REEMSHRD", version u16, block_assets u32, bucket length u16, bucket
    blocks   zstd frames, each of `block_assets` addresses (the last may hold fewer)
    index    a block: offset u64, length u32, inflated length u32, blake2b-128 of the frame
    footer   index offset u64, count u64, sha256 of (header + index + the two numbers), magic

    a block, inflated, is columns: key length u16[n], etag length u8[n], size u64[n], keys, etags

The footer's digest covers the index and the index covers every block, so whatever is read has been verified,
and one slice costs one small read at open and one read for each block that it touches.

Fails with `ShardFileError`, and with nothing else, on a truncated, corrupt or hostile file: every length is
bounded before memory is taken for it, inflated lengths included. What `read` raises passes through.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import zstandard

MAX_KEY_BYTES = 1024
MAX_ETAG_BYTES = 255
MAX_SIZE_BYTES = (1 << 63) - 1
BLOCK_ASSETS = 4096

_MAGIC = b"REEMSHRD"
_VERSION = 1
_HEADER = struct.Struct("<8sHIH")
_INDEX_ENTRY = struct.Struct("<QII16s")
_NUMBERS = struct.Struct("<QQ")
_FOOTER_BYTES = _NUMBERS.size + 32 + len(_MAGIC)
_COLUMNS_BYTES = 2 + 1 + 8
_MAX_BUCKET_BYTES = 255
# Level 3 keeps 20 bytes of a 49-character hashed key and 5 of a dated one; higher levels save little.
_ZSTD_LEVEL = 3


class ShardFileError(ValueError):
    """Not a shard file, or not an intact one; from `write`: an address that no shard file can hold."""


@dataclass(frozen=True, slots=True)
class Address:
    """One asset. `size` in bytes, 0 if empty or unknown; `etag` without quotes, "" if unknown.

    A reader compares size or etag with the object only where they are known, that is, not 0 and not "".
    """

    key: bytes
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class _Block:
    offset: int
    length: int
    inflated: int
    digest: bytes


def write(bucket: str, addresses: Iterable[Address], *, block_assets: int = BLOCK_ASSETS) -> bytes:
    """The whole file. Equal addresses give equal bytes, so a plan's digest does not depend on the attempt."""
    name = _encoded(bucket, "bucket name")
    if not 0 < len(name) <= _MAX_BUCKET_BYTES:
        raise ShardFileError(f"bucket name of {len(name)} bytes; 1 to {_MAX_BUCKET_BYTES} are possible")
    if not 0 < block_assets <= BLOCK_ASSETS:
        raise ShardFileError(f"blocks of {block_assets} addresses; 1 to {BLOCK_ASSETS} are possible")
    header = _HEADER.pack(_MAGIC, _VERSION, block_assets, len(name)) + name
    compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
    body, index, count = bytearray(header), bytearray(), 0
    source = iter(addresses)
    while batch := list(islice(source, block_assets)):
        inflated = _pack(batch)
        frame = compressor.compress(inflated)
        index += _INDEX_ENTRY.pack(len(body), len(frame), len(inflated), _block_digest(frame))
        body += frame
        count += len(batch)
    numbers = _NUMBERS.pack(len(body), count)
    body += index
    body += numbers + hashlib.sha256(header + index + numbers).digest() + _MAGIC
    return bytes(body)


class ShardFile:
    """An opened file. Holds its index and the block read last; not safe for use by several threads at once."""

    def __init__(self, read: Callable[[int, int], bytes], bucket: str, count: int, block_assets: int) -> None:
        self._read = read
        self.bucket = bucket
        self.count = count
        self._block_assets = block_assets
        self._blocks: list[_Block] = []
        self._last: tuple[int, list[Address]] | None = None

    @classmethod
    def open(cls, read: Callable[[int, int], bytes], size: int) -> ShardFile:
        """Read and verify header, index and footer of a file of `size` bytes, reached by `read(offset, length)`."""
        if size < _HEADER.size + 1 + _FOOTER_BYTES:
            raise ShardFileError(f"{size} bytes are too few for a shard file")
        footer = _exactly(read, size - _FOOTER_BYTES, _FOOTER_BYTES)
        numbers, digest, magic = footer[: _NUMBERS.size], footer[_NUMBERS.size : -len(_MAGIC)], footer[-len(_MAGIC) :]
        if magic != _MAGIC:
            raise ShardFileError("not a shard file, or cut short: the footer does not end in its magic")
        index_offset, count = _NUMBERS.unpack(numbers)
        header, bucket, block_assets = _read_header(read, index_offset, size)
        index_bytes = size - _FOOTER_BYTES - index_offset
        if index_bytes != -(-count // block_assets) * _INDEX_ENTRY.size:
            raise ShardFileError(f"index of {index_bytes} bytes does not fit {count} addresses")
        index = _exactly(read, index_offset, index_bytes)
        if hashlib.sha256(header + index + numbers).digest() != digest:
            raise ShardFileError("the footer's digest does not match header and index")
        opened = cls(read, bucket, count, block_assets)
        opened._blocks = [_Block(*entry) for entry in _INDEX_ENTRY.iter_unpack(index)]
        opened._check_blocks(len(header), index_offset)
        return opened

    def slice(self, start: int, stop: int) -> list[Address]:
        """Addresses of the ordinals start ≤ i < stop, cut to what exists. Reads only the blocks it touches."""
        start, stop = max(start, 0), min(stop, self.count)
        found: list[Address] = []
        while start < stop:
            block, within = divmod(start, self._block_assets)
            part = self._block(block)[within : within + stop - start]
            found += part
            start += len(part)
        return found

    def __iter__(self) -> Iterator[Address]:
        for block in range(len(self._blocks)):
            yield from self._block(block)

    def __len__(self) -> int:
        return self.count

    def _check_blocks(self, first_offset: int, index_offset: int) -> None:
        """Blocks fill the space between header and index without gap or overlap, and can hold what they claim."""
        expected = first_offset
        for number, block in enumerate(self._blocks):
            n = self._assets_of(number)
            largest = n * (_COLUMNS_BYTES + MAX_KEY_BYTES + MAX_ETAG_BYTES)
            if block.offset != expected or not n * (_COLUMNS_BYTES + 1) <= block.inflated <= largest:
                raise ShardFileError(f"block {number} has an impossible place or length")
            expected += block.length
        if expected != index_offset:
            raise ShardFileError("blocks and index do not meet")

    def _assets_of(self, number: int) -> int:
        return min(self._block_assets, self.count - number * self._block_assets)

    def _block(self, number: int) -> list[Address]:
        if self._last is None or self._last[0] != number:
            block = self._blocks[number]
            frame = _exactly(self._read, block.offset, block.length)
            if _block_digest(frame) != block.digest:
                raise ShardFileError(f"block {number} does not match its digest")
            addresses = _unpack(_inflate(frame, block.inflated, number), self._assets_of(number), number)
            self._last = (number, addresses)
        return self._last[1]


def _exactly(read: Callable[[int, int], bytes], offset: int, length: int) -> bytes:
    if length == 0:
        return b""
    found = read(offset, length)
    if len(found) != length:
        raise ShardFileError(f"{len(found)} bytes at {offset} where {length} were asked for")
    return bytes(found)


def _read_header(read: Callable[[int, int], bytes], index_offset: int, size: int) -> tuple[bytes, str, int]:
    """Header bytes, bucket, addresses a block."""
    if not _HEADER.size < index_offset <= size - _FOOTER_BYTES:
        raise ShardFileError(f"index at {index_offset} in a file of {size} bytes")
    header = _exactly(read, 0, min(_HEADER.size + _MAX_BUCKET_BYTES, index_offset))
    magic, version, block_assets, name_bytes = _HEADER.unpack_from(header)
    if magic != _MAGIC:
        raise ShardFileError("not a shard file: wrong magic")
    if version != _VERSION:
        raise ShardFileError(f"shard file of version {version}; this program reads version {_VERSION}")
    name = header[_HEADER.size : _HEADER.size + name_bytes]
    if not 0 < name_bytes <= _MAX_BUCKET_BYTES or len(name) != name_bytes or not 0 < block_assets <= BLOCK_ASSETS:
        raise ShardFileError("header with an impossible bucket or block size")
    try:
        return header[: _HEADER.size + name_bytes], name.decode(), block_assets
    except UnicodeDecodeError as error:
        raise ShardFileError("the bucket name is not UTF-8") from error


def _block_digest(frame: bytes) -> bytes:
    return hashlib.blake2b(frame, digest_size=16).digest()


def _inflate(frame: bytes, length: int, number: int) -> bytes:
    """Exactly `length` bytes. The frame must state that length: zstd would believe whatever it states."""
    try:
        if zstandard.get_frame_parameters(frame).content_size != length:
            raise ShardFileError(f"block {number} states another length than the index")
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ShardFileError(f"block {number} does not inflate: {error}") from error


def _encoded(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ShardFileError(f"{what} {text!r} is not valid Unicode") from error


def _pack(addresses: list[Address]) -> bytes:
    n = len(addresses)
    etags = [_encoded(address.etag, "etag") for address in addresses]
    for address, etag in zip(addresses, etags, strict=True):
        if not 0 < len(address.key) <= MAX_KEY_BYTES:
            raise ShardFileError(f"key of {len(address.key)} bytes; 1 to {MAX_KEY_BYTES} are possible")
        if len(etag) > MAX_ETAG_BYTES or not 0 <= address.size <= MAX_SIZE_BYTES:
            raise ShardFileError(f"impossible etag or size ({address.size}) for key {address.key!r}")
    return b"".join(
        [
            struct.pack(f"<{n}H", *(len(address.key) for address in addresses)),
            bytes(len(etag) for etag in etags),
            struct.pack(f"<{n}Q", *(address.size for address in addresses)),
            *(address.key for address in addresses),
            *etags,
        ]
    )


def _unpack(inflated: bytes, n: int, number: int) -> list[Address]:
    key_lengths = struct.unpack_from(f"<{n}H", inflated)
    etag_lengths = inflated[2 * n : 3 * n]
    sizes = struct.unpack_from(f"<{n}Q", inflated, 3 * n)
    key_at = n * _COLUMNS_BYTES
    etag_at = key_at + sum(key_lengths)
    if etag_at + sum(etag_lengths) != len(inflated):
        raise ShardFileError(f"block {number}: the lengths of its columns do not add up")
    if min(key_lengths) == 0 or max(key_lengths) > MAX_KEY_BYTES or max(sizes) > MAX_SIZE_BYTES:
        raise ShardFileError(f"block {number} holds an impossible key or size")
    addresses: list[Address] = []
    try:
        for key_length, etag_length, size in zip(key_lengths, etag_lengths, sizes, strict=True):
            key = inflated[key_at : key_at + key_length]
            etag = str(inflated[etag_at : etag_at + etag_length], "utf-8")
            addresses.append(Address(key, size, etag))
            key_at += key_length
            etag_at += etag_length
    except UnicodeDecodeError as error:
        raise ShardFileError(f"block {number} holds an etag that is not UTF-8") from error
    return addresses
