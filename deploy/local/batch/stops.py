"""Orders to end a running attempt, and the handle through which they reach it.

An order is either gentle (SIGTERM, then SIGKILL after the grace) or forceful (the host is gone, the kernel killed
it). The first order decides how the attempt ends, unless a forceful one overtakes a gentle one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum

from deploy.local.batch.model import Job, Kind
from deploy.local.batch.processes import JobProcess


class StopCause(StrEnum):
    TERMINATED = "terminated"
    TIMED_OUT = "timed_out"
    MAIN_NODE_ENDED = "main_node_ended"
    RECLAIMED = "reclaimed"
    OUT_OF_MEMORY = "out_of_memory"
    FORCED_EXIT = "forced_exit"


GENTLE = frozenset({StopCause.TERMINATED, StopCause.TIMED_OUT, StopCause.MAIN_NODE_ENDED})


@dataclass(frozen=True, slots=True)
class StopOrder:
    cause: StopCause
    text: str | None = None  # what the operator said
    exit_code: int | None = None  # of a forced exit


@dataclass(slots=True, eq=False)
class LiveAttempt:
    order: StopOrder | None = None
    ordered: asyncio.Event = field(default_factory=asyncio.Event)
    process: JobProcess | None = None
    ended: bool = False

    def stop(self, order: StopOrder) -> bool:
        """Accept the order unless the attempt has ended or a stronger one is under way."""
        if self.ended or (self.order is not None and (order.cause in GENTLE or self.order.cause not in GENTLE)):
            return False
        self.order = order
        self.ordered.set()
        if order.cause not in GENTLE and self.process is not None:
            self.process.kill()
        return True


def stop_running(job: Job, order: StopOrder) -> bool:
    """Give the order to every live container of the job; False when there was none to take it."""
    targets = job.members if job.kind is Kind.MULTI_NODE else [job]
    taken = [target.live is not None and target.live.stop(order) for target in targets]  # all, not up to the first
    return any(taken)
