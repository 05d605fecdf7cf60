"""The packed address file: everything written is read back, and no damage goes unnoticed or crashes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schema import shardfile
from schema.shardfile import Address, ShardFile, ShardFileError

keys = st.binary(min_size=1, max_size=40) | st.binary(min_size=1000, max_size=1024)
etags = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60)
addresses = st.lists(st.builds(Address, keys, st.integers(0, shardfile.MAX_SIZE_BYTES), etags), max_size=40)
buckets = st.from_regex(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", fullmatch=True)
blocks = st.integers(1, 16)


def opened(body: bytes) -> ShardFile:
    return ShardFile.open(lambda offset, length: body[offset : offset + length], len(body))


@given(buckets, addresses, blocks)
def test_round_trip(bucket: str, written: list[Address], block_assets: int) -> None:
    file = opened(shardfile.write(bucket, written, block_assets=block_assets))
    assert (file.bucket, file.count, list(file)) == (bucket, len(written), written)


@given(addresses, blocks, st.integers(-2, 45), st.integers(-2, 45))
def test_a_slice_is_the_slice_of_the_list(written: list[Address], block_assets: int, start: int, stop: int) -> None:
    file = opened(shardfile.write("photos", written, block_assets=block_assets))
    assert file.slice(start, stop) == written[max(start, 0) : max(stop, 0)]


@given(addresses, blocks, st.data())
def test_one_changed_byte_never_goes_unnoticed(written: list[Address], block_assets: int, data: st.DataObject) -> None:
    body = bytearray(shardfile.write("photos", written, block_assets=block_assets))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    try:
        read = list(opened(bytes(body)))
    except ShardFileError:
        return
    raise AssertionError(f"a change at {at} gave {read!r}")


@given(addresses, blocks, st.data())
def test_a_file_cut_short_or_grown_is_refused(written: list[Address], block_assets: int, data: st.DataObject) -> None:
    body = shardfile.write("photos", written, block_assets=block_assets)
    cut = data.draw(st.integers(0, len(body) - 1))
    for damaged in (body[:cut], body[cut + 1 :], body + body[cut:]):
        try:
            list(opened(damaged))
        except ShardFileError:
            continue
        raise AssertionError("a damaged file was read")


@given(st.binary(max_size=400))
def test_noise_is_refused(noise: bytes) -> None:
    try:
        opened(noise)
    except ShardFileError:
        return
    raise AssertionError("noise was read as a shard file")
