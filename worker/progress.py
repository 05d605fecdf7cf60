"""What is known of the shard while ranks work: chunks stored, chunks open, figures. Reports are made from it.

One thread uses it, the job's own. Nothing here is needed after a crash: chunk objects on S3 are the truth.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from schema.exit_codes import ExitCode
from schema.plan import Figures
from worker.chunks import Stored
from worker.context import ConfigError, Stopped
from worker.rank import ChunkOrder
from worker.rows import add
from worker.tolerance import Verdict, judge

if TYPE_CHECKING:
    from worker.reporting import Reporter

_LARGEST = ("wall_seconds", "peak_memory_bytes")
_UTILISATION = "gpu_utilisation"


class BadData(Stopped):
    """Too large a share of the shard is bad; its chunks are kept, its marker is withheld."""

    code = ExitCode.BAD_DATA


class Progress:
    """Observer of the ranks (`worker.ranks.Observer`)."""

    def __init__(
        self,
        report: Reporter,
        rows_of: Sequence[int],
        found: Mapping[int, Stored],
        tolerance: float,
        finalise: bool,
    ) -> None:
        self._report = report
        self._rows_of = rows_of
        self._stored = dict(found)
        self._reused = {number for number, stored in found.items() if not stored.partial}
        self._tolerance = tolerance
        self._finalise = finalise
        self._open: dict[int, set[int]] = {}
        self._isolated: int | None = None
        self._closed: set[int] = set()
        self._latest: dict[int, Figures] = {}
        self._lost: list[Figures] = []
        self._poison: set[int] = set()
        self._began = time.monotonic()
        self._tell()

    # --- what ranks say ---------------------------------------------------------------------------------------------

    def heard(self, rank: int, message: dict[str, Any]) -> None:
        """Raises `BadData` or `ConfigError` once the rest of the shard could not change the verdict."""
        if "figures" in message:
            self._latest[rank] = Figures.model_validate(message["figures"])
        if "opened" in message:
            self._open.setdefault(rank, set()).add(message["opened"])
        if "closed" in message:
            self._close(rank, Stored(**message["closed"]), message["poison"])
        self._tell()
        if "opened" in message:
            self._report.nudge()
        if "closed" in message:
            self.raise_for(self.verdict())

    def lost(self, rank: int, chunks: Sequence[ChunkOrder]) -> list[ChunkOrder]:
        """A rank died: its figures stand, its open chunks stay named, and this is what it leaves undone."""
        numbers = {order.chunk for order in chunks}
        if rank in self._latest:
            self._lost.append(self._latest.pop(rank))
        return [order for order in self.undone_chunks() if order.chunk in numbers - self._closed]

    def _close(self, rank: int, stored: Stored, poison: Sequence[int]) -> None:
        self._stored[stored.chunk] = stored
        self._open.get(rank, set()).discard(stored.chunk)
        self._closed.add(stored.chunk)
        self._poison.update(poison)

    # --- what is left -----------------------------------------------------------------------------------------------

    def undone_chunks(self) -> list[ChunkOrder]:
        """Chunks without a final object, with the partial to start from."""
        orders: list[ChunkOrder] = []
        for number in range(len(self._rows_of)):
            stored = self._stored.get(number)
            if stored is None or stored.partial:
                orders.append(ChunkOrder(chunk=number, partial_key=stored.key if stored else None))
        return orders

    def unopened_chunks(self) -> list[int]:
        """Undone chunks that this attempt has not brought to an end of any kind."""
        return [order.chunk for order in self.undone_chunks() if order.chunk not in self._closed]

    def stored(self) -> list[Stored]:
        return [self._stored[number] for number in sorted(self._stored)]

    def statuses(self) -> dict[str, int]:
        return add(*(stored.statuses for stored in self._stored.values()))

    def retryable_rows(self) -> int:
        return sum(stored.retryable for stored in self._stored.values() if stored.partial)

    def poison(self) -> tuple[int, ...]:
        return tuple(sorted(self._poison))

    # --- judgement and figures --------------------------------------------------------------------------------------

    def verdict(self) -> Verdict:
        return judge(self.statuses(), sum(self._rows_of), self._tolerance, finalise=self._finalise)

    def raise_for(self, verdict: Verdict) -> None:
        statuses = ", ".join(f"{number} {status}" for status, number in self.statuses().items())
        if verdict is Verdict.BAD_DATA:
            raise BadData(f"over the tolerance of {self._tolerance:.0%} of {sum(self._rows_of)} rows: {statuses}")
        if verdict is Verdict.ALL_DENIED:
            raise ConfigError(f"every asset was denied ({statuses}): check the role's access to the source bucket")

    def isolating(self, chunk: int | None) -> None:
        """Name the chunk that is being searched as the open one."""
        self._isolated = chunk
        self._tell()
        self._report.nudge()

    def figures(self) -> Figures:
        """Summed over ranks, those that died included."""
        parts = [*self._lost, *self._latest.values()]
        total: dict[str, Any] = {}
        for name in Figures.model_fields:
            values = [getattr(part, name) for part in parts]
            known = [value for value in values if value is not None]
            if name == _UTILISATION:
                total[name] = sum(known) / len(known) if known else None
            else:
                total[name] = max(known, default=0) if name in _LARGEST else sum(known)
        return Figures(**total | {"chunks_reused": len(self._reused), "wall_seconds": time.monotonic() - self._began})

    def _tell(self) -> None:
        open_chunks = set[int]().union(*self._open.values())
        if self._isolated is not None:
            open_chunks = {self._isolated}
        self._report.update(self.figures(), open_chunks=open_chunks, chunks_left=len(self.undone_chunks()))
