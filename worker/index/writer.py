"""What an index has to do for the index job. `worker.index.pgvector` does it; another index is another module.

Every operation may be repeated, and stops between two of them lose nothing. Rows are keyed by (key, part), so that
loading twice changes nothing, and a ledger says which commit each shard's rows come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Batch:
    """The ok rows of one chunk: `vectors` is (rows, dimensions), float16 or float32, and contiguous.

    `first` and `last` span the keys of all its rows, the bad ones too.
    """

    keys: list[bytes]
    parts: list[int]
    vectors: npt.NDArray[np.floating]
    first: bytes
    last: bytes


class IndexWriter(Protocol):
    """One index table a (dataset, model, preprocessing)."""

    def ledger(self, table: str) -> dict[int, str]:
        """Shard → digest of the commit marker that its rows come from."""
        ...

    def load_shard(self, table: str, shard: int, marker_digest: str, batches: Iterable[Batch]) -> int:
        """Replace the rows of a shard, all or nothing, with its ledger line; how many there are now."""
        ...

    def drop_shard(self, table: str, shard: int) -> None:
        """Remove the rows of a shard that is no part of the output, with its ledger line."""
        ...

    def build(self, table: str) -> None:
        """Make the table fast to search, where it is large enough to need it."""
        ...

    def activate(self, alias: str, table: str, request_id: str) -> None:
        """Let searches for `alias` use the table, atomically and on the record; once a request."""
        ...

    def close(self) -> None: ...
