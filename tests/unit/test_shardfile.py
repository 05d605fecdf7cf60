"""The packed address file: what it costs, what it refuses, and that hostile files cost nothing."""

from __future__ import annotations

import hashlib
import struct
import tracemalloc

import pytest
import zstandard

from schema import shardfile
from schema.shardfile import Address, ShardFile, ShardFileError

BUCKET = "stock-photos"
ODD_KEYS = [b"/a", b"a//b", b"a/../b", b"a/", b".", b"a\nb", b"a\0b", b"\xff\xfe", "写/😀".encode(), b"x" * 1024]


class Reader:
    """A `read` that remembers what it was asked for."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.calls: list[tuple[int, int]] = []

    def __call__(self, offset: int, length: int) -> bytes:
        self.calls.append((offset, length))
        return self.body[offset : offset + length]


def opened(body: bytes) -> ShardFile:
    return ShardFile.open(Reader(body), len(body))


def addresses(count: int) -> list[Address]:
    return [Address(b"images/%08d.jpg" % number, number, f"{number:032x}") for number in range(count)]


def resealed(body: bytes, frame: bytes, inflated: int) -> bytes:
    """`body` of one block, with that block replaced and every digest made right again: a hostile writer."""
    first = struct.unpack_from("<Q", body, len(body) - 56)[0]
    (start,) = struct.unpack_from("<Q", body, first)
    header = body[:start]
    index = struct.pack("<QII", start, len(frame), inflated) + hashlib.blake2b(frame, digest_size=16).digest()
    numbers = struct.pack("<Q", start + len(frame)) + body[len(body) - 48 : len(body) - 40]
    return header + frame + index + numbers + hashlib.sha256(header + index + numbers).digest() + body[-8:]


def test_odd_keys_survive() -> None:
    written = [Address(key, number, "") for number, key in enumerate(ODD_KEYS)]
    file = opened(shardfile.write(BUCKET, written))
    assert (file.bucket, file.count, list(file)) == (BUCKET, len(ODD_KEYS), written)


def test_an_empty_file_is_a_file() -> None:
    file = opened(shardfile.write(BUCKET, []))
    assert (file.count, list(file), file.slice(0, 10)) == (0, [], [])


def test_equal_addresses_give_equal_bytes() -> None:
    assert shardfile.write(BUCKET, addresses(100)) == shardfile.write(BUCKET, iter(addresses(100)))


def test_hashed_keys_take_about_twenty_bytes_beside_size_and_etag() -> None:
    keys = [f"images/{hashlib.sha256(str(n).encode()).hexdigest()[:38]}.jpg".encode() for n in range(20_000)]
    body = shardfile.write(BUCKET, [Address(key, 0, "") for key in sorted(keys)])
    assert len(body) / len(keys) < 25


def test_a_slice_reads_only_the_blocks_it_touches() -> None:
    body = shardfile.write(BUCKET, addresses(1000), block_assets=100)
    reader = Reader(body)
    file = ShardFile.open(reader, len(body))
    assert len(reader.calls) == 3
    reader.calls.clear()
    assert file.slice(250, 260) == addresses(1000)[250:260]
    assert file.slice(260, 300) == addresses(1000)[260:300]
    assert len(reader.calls) == 1, "the block read last is kept"
    assert file.slice(290, 310) == addresses(1000)[290:310]
    assert len(reader.calls) == 2


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 0), (5, 2), (-3, 4), (0, 250), (99, 101), (100, 200), (240, 999), (250, 251)]
)
def test_slices_are_cut_to_what_exists(start: int, stop: int) -> None:
    file = opened(shardfile.write(BUCKET, addresses(250), block_assets=100))
    assert file.slice(start, stop) == addresses(250)[max(start, 0) : max(stop, 0)]


@pytest.mark.parametrize(
    "address",
    [
        pytest.param(Address(b"", 0, ""), id="empty key"),
        pytest.param(Address(b"x" * 1025, 0, ""), id="key over 1024 bytes"),
        pytest.param(Address(b"k", -1, ""), id="negative size"),
        pytest.param(Address(b"k", 1 << 63, ""), id="size over int64"),
        pytest.param(Address(b"k", 0, "é" * 128), id="etag over 255 bytes"),
        pytest.param(Address(b"k", 0, "\ud800"), id="etag with a lone surrogate"),
    ],
)
def test_addresses_that_no_file_can_hold_are_refused(address: Address) -> None:
    with pytest.raises(ShardFileError):
        shardfile.write(BUCKET, [address])


@pytest.mark.parametrize("bucket", ["", "b" * 256, "\ud800"])
def test_impossible_buckets_are_refused(bucket: str) -> None:
    with pytest.raises(ShardFileError):
        shardfile.write(bucket, [])


def test_a_hostile_length_takes_no_memory() -> None:
    """A frame that inflates to 256 MiB, under right digests, whatever length the index claims for it."""
    bomb = zstandard.ZstdCompressor().compress(bytes(256 << 20))
    body = shardfile.write(BUCKET, addresses(1))
    tracemalloc.start()
    try:
        for claimed in (1 << 28, 58, 1200):
            with pytest.raises(ShardFileError):
                list(opened(resealed(body, bomb, claimed)))
        unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1200))
        with pytest.raises(ShardFileError, match="another length"):
            list(opened(resealed(body, unsized, 1200)))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "inflated",
    [
        pytest.param(struct.pack("<HBQ", 2, 0, 1) + b"k", id="columns do not add up"),
        pytest.param(struct.pack("<HBQ", 0, 1, 1) + b"e", id="empty key"),
        pytest.param(struct.pack("<HBQ", 1025, 0, 1) + b"k" * 1025, id="key too long"),
        pytest.param(struct.pack("<HBQ", 1, 0, 1 << 63) + b"k", id="size too large"),
        pytest.param(struct.pack("<HBQ", 1, 1, 1) + b"k\xff", id="etag not UTF-8"),
    ],
)
def test_impossible_contents_under_right_digests_are_refused(inflated: bytes) -> None:
    frame = zstandard.ZstdCompressor().compress(inflated)
    with pytest.raises(ShardFileError):
        list(opened(resealed(shardfile.write(BUCKET, addresses(1)), frame, len(inflated))))


def test_a_count_that_no_index_holds_is_refused_before_it_is_believed() -> None:
    body = bytearray(shardfile.write(BUCKET, addresses(1)))
    body[-48:-40] = struct.pack("<Q", (1 << 64) - 1)
    with pytest.raises(ShardFileError, match="does not fit"):
        opened(bytes(body))


def test_another_version_is_named() -> None:
    body = bytearray(shardfile.write(BUCKET, addresses(1)))
    body[8:10] = struct.pack("<H", 2)
    with pytest.raises(ShardFileError, match="version 2"):
        opened(bytes(body))
