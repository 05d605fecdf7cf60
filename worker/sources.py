"""Where the addresses of a request come from: a prefix, a manifest of keys, or a few keys sent inline.

Each gives one ascending stream of distinct keys, in bounded memory. What the request or the bucket's owner has to
change is a `SourceError` with a text that says so, or `Refused` in the words of S3.

A manifest is Parquet or CSV with a column `key` and, optionally, `size` and `etag`. A size that is missing, empty
or -1 becomes 0, and a missing etag "": unknown, and never compared with the object. Listings know both.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import IO, Any

from schema.assignment import PrepareAssignment
from schema.layout import Location
from schema.shardfile import MAX_ETAG_BYTES, MAX_KEY_BYTES, MAX_SIZE_BYTES, Address
from worker.context import ConfigError, Interrupted
from worker.listing import ParallelListing
from worker.pages import list_page
from worker.patience import patiently
from worker.spill import Spill, sort_key

#: Addresses sorted in memory at a time; about 200 bytes each.
RUN_ASSETS = 500_000
_BLOCK_BYTES = 1 << 20


class SourceError(ConfigError):
    """The source as the request names it cannot be used; the text says what is wrong with it."""


def addresses(
    assignment: PrepareAssignment, client: Any, spill: Spill, stop: threading.Event, *, run_assets: int = RUN_ASSETS
) -> Generator[Address]:
    """The assignment's source as one ascending stream of distinct keys."""
    if assignment.manifest_uri is not None:
        found = _manifest(client, Location.parse(assignment.manifest_uri), assignment.manifest_sha256, stop)
        return _sorted(found, assignment.source_bucket, spill, run_assets)
    if assignment.inline_keys_uri is not None:
        found = _inline(client, Location.parse(assignment.inline_keys_uri), stop)
        return _sorted(found, assignment.source_bucket, spill, run_assets)
    listing = ParallelListing(
        lambda after: list_page(client, assignment, after, stop),
        prefix=assignment.prefix or "",
        concurrency=assignment.list_concurrency,
        spill=spill,
        bucket=assignment.source_bucket,
    )
    return iter(listing)


def describe(assignment: PrepareAssignment) -> str:
    """The source as it is named to people."""
    if assignment.manifest_uri is not None:
        return assignment.manifest_uri
    if assignment.inline_keys_uri is not None:
        return "the request's inline keys"
    return Location(assignment.source_bucket, assignment.prefix or "").uri


def _sorted(found: Iterable[Address], bucket: str, spill: Spill, run_assets: int) -> Generator[Address]:
    """External sort: runs that fit in memory, then one merge that drops repeated keys."""
    source = iter(found)
    extents = []
    while run := sorted(islice(source, run_assets), key=sort_key):
        extents.append(spill.write(bucket, run))
    return spill.merge(extents)


def _inline(client: Any, location: Location, stop: threading.Event) -> Iterator[Address]:
    with _downloaded(client, location, None, stop) as file:
        try:
            keys = json.load(file)
        except ValueError as error:
            raise SourceError(f"{location.uri} is not JSON: {error}") from error
    if not isinstance(keys, list):
        raise SourceError(f"{location.uri} is not a JSON array of keys")
    for number, key in enumerate(keys, 1):
        if not isinstance(key, str):
            raise SourceError(f"{location.uri}, key {number}: {key!r} is not a string")
        yield _address(key, None, None, f"{location.uri}, key {number}")


def _manifest(client: Any, location: Location, sha256: str | None, stop: threading.Event) -> Iterator[Address]:
    with _downloaded(client, location, sha256, stop) as file:
        parquet = file.read(4) == b"PAR1"
        file.seek(0)
        with closing(_parquet_rows(file, location.uri) if parquet else _csv_rows(file, location.uri)) as rows:
            for number, (key, size, etag) in enumerate(rows, 1):
                yield _address(key, size, etag, f"{location.uri}, row {number}")


@contextmanager
def _downloaded(client: Any, location: Location, sha256: str | None, stop: threading.Event) -> Iterator[IO[bytes]]:
    """The object in a nameless file, at its start, checked against the digest that the request gave."""
    with tempfile.TemporaryFile(prefix="reembed-source-") as file:

        def download() -> str:
            file.seek(0)
            file.truncate()
            digest = hashlib.sha256()
            for block in client.get_object(Bucket=location.bucket, Key=location.key)["Body"].iter_chunks(_BLOCK_BYTES):
                if stop.is_set():
                    raise Interrupted(f"stopped while reading {location.uri}")
                digest.update(block)
                file.write(block)
            return digest.hexdigest()

        found = patiently(download, stop, f"read {location.uri}")
        if sha256 is not None and found != sha256:
            raise SourceError(f"{location.uri} has sha256 {found}; the request says {sha256}")
        file.seek(0)
        yield file


def _parquet_rows(file: IO[bytes], uri: str) -> Generator[tuple[Any, Any, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(file)
        names = [name for name in ("key", "size", "etag") if name in parquet.schema_arrow.names]
        if "key" not in names:
            raise SourceError(f"{uri} has no column `key`; it has {', '.join(parquet.schema_arrow.names)}")
        for batch in parquet.iter_batches(batch_size=16_384, columns=names):
            columns = {name: batch.column(name).to_pylist() for name in names}
            nothing = [None] * batch.num_rows
            yield from zip(columns["key"], columns.get("size", nothing), columns.get("etag", nothing), strict=True)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{uri} is not a Parquet file that can be read: {error}") from error


def _csv_rows(file: IO[bytes], uri: str) -> Generator[tuple[Any, Any, Any]]:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    rows = csv.reader(text, strict=True)
    try:
        header = [name.strip().lower() for name in next(rows, [])]
        if "key" not in header:
            raise SourceError(f"{uri} has no column `key` in its first line; write one with key[,size,etag]")
        places = [header.index(name) if name in header else None for name in ("key", "size", "etag")]
        for row in rows:
            if len(row) != len(header):
                raise SourceError(f"{uri}, line {rows.line_num}: {len(row)} fields under {len(header)} columns")
            key, size, etag = (None if at is None else row[at] for at in places)
            yield key, size, etag
    except (csv.Error, UnicodeDecodeError) as error:
        raise SourceError(f"{uri}, line {rows.line_num}: not CSV in UTF-8: {error}") from error
    finally:
        text.detach()  # the file is the caller's to close


def _address(key: Any, size: Any, etag: Any, where: str) -> Address:
    """One row checked; `where` leads the reader to it."""
    try:
        name = key if isinstance(key, bytes) else str(key if key is not None else "").encode()
        name.decode()
    except UnicodeError as error:
        raise SourceError(f"{where}: the key is not UTF-8: {key!r}") from error
    if not 0 < len(name) <= MAX_KEY_BYTES:
        raise SourceError(f"{where}: a key has 1 to {MAX_KEY_BYTES} bytes, this one {len(name)}")
    tag = str(etag or "").strip('"')
    if len(tag.encode(errors="replace")) > MAX_ETAG_BYTES or not tag.isascii():
        raise SourceError(f"{where}: impossible etag {tag!r}")
    return Address(name, _size(size, where), tag)


def _size(size: Any, where: str) -> int:
    """Bytes; 0 where unknown. Whole numbers written as floats are what pandas makes of a column with gaps."""
    text = str(size if size is not None else "").strip()
    if text in ("", "nan", "NaN"):
        return 0
    try:
        number = Decimal(text)
        if not number.is_finite() or not -1 <= number <= MAX_SIZE_BYTES or number != int(number):
            raise InvalidOperation
    except InvalidOperation as error:
        raise SourceError(f"{where}: size {size!r} is not a number of bytes") from error
    return max(int(number), 0)
