"""Leadership: one replica writes what only one may (dispatch, index, tend, operations).

A lease row with an epoch. The epoch joins each leader-only transaction (`fence`), so a deposed leader writes
nothing; and calls to AWS, which cannot be fenced, are made only before a local monotonic deadline that ends well
before the lease does.
"""

from __future__ import annotations

from datetime import datetime

from controller.loops.context import Context, log
from controller.ports import Fenced, Lease, Transaction

LEASE_NAME = "leader"


class Leadership:
    """Shared by the leader-only loops of one replica; each asks `hold` at the start of its step."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lease: Lease | None = None
        self._deadline = 0.0
        self._renew_at = 0.0

    async def hold(self, now: datetime) -> Lease | None:
        """The lease if we lead now, renewed when a third of it has passed."""
        started = self._context.clock.monotonic()
        if self._lease is not None and started < self._renew_at:
            return self._lease
        seconds = self._context.settings.loops.lease_seconds
        async with self._context.store.transaction() as tx:
            lease = await tx.leases.acquire(LEASE_NAME, self._context.holder, now, seconds)
        if lease is None:
            self._lease = None
            self._context.recorder.withdraw()
            return None
        if self._lease is None or lease.epoch != self._lease.epoch:
            log.info("leading", epoch=lease.epoch)
        self._lease, self._renew_at, self._deadline = lease, started + seconds / 3, started + seconds * 0.8
        return lease

    async def fence(self, tx: Transaction) -> Lease:
        """Join the lease to this transaction; Fenced when we do not lead."""
        if self._lease is None:
            raise Fenced("not the leader")
        await tx.leases.fence(LEASE_NAME, self._lease)
        return self._lease

    def check(self) -> None:
        """Just before a call to AWS: Fenced when the lease may have run out meanwhile."""
        if self._lease is None or self._context.clock.monotonic() >= self._deadline:
            raise Fenced("the lease may have run out")
