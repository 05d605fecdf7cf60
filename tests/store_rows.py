"""Puts records into a store in the order that their references need."""

from __future__ import annotations

from controller.core.records import Attempt, Job, Request, Shard
from controller.ports import Store


async def fill(store: Store, *records: Request | Shard | Job | Attempt) -> None:
    """In one transaction; with records of `tests.builders`, ids are the caller's to keep apart."""
    async with store.transaction() as tx:
        for request in records:
            if isinstance(request, Request):
                assert await tx.requests.insert(request)
        await tx.shards.insert_many([record for record in records if isinstance(record, Shard)])
        for job in records:
            if isinstance(job, Job):
                await tx.jobs.insert(job)
        await tx.attempts.insert_many([record for record in records if isinstance(record, Attempt)])
