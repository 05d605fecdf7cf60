"""Hands capacity to the heads of the queues, in order, whenever something could have changed.

Event-driven: a wake-up (new job, freed slot, shortage over) runs one pass over a queue in the next turn of the
loop, and wake-ups in between are merged. A pass costs the jobs it starts, not the jobs that wait.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from deploy.local.batch import capacity, container
from deploy.local.batch.backlog import Backlog
from deploy.local.batch.blocking import HeadWatch
from deploy.local.batch.capacity import Grant, Refusal, Verdict
from deploy.local.batch.clock import Clock
from deploy.local.batch.faults import Faults
from deploy.local.batch.lifecycle import Lifecycle
from deploy.local.batch.model import Job, JobQueue, Status
from deploy.local.batch.registry import Registry

SNAPSHOT_JOBS = 100


class Scheduler:
    def __init__(
        self,
        clock: Clock,
        registry: Registry,
        lifecycle: Lifecycle,
        faults: Faults,
        blocked_after_seconds: float,
        announce_blocked: Callable[[Job], None],
    ) -> None:
        self._clock = clock
        self._registry = registry
        self._lifecycle = lifecycle
        self._faults = faults
        self._launch: Callable[[Job, Grant], None] | None = None
        self._backlogs: dict[str, Backlog] = {}
        self._awake: set[str] = set()
        self._refused: set[tuple[str, int]] = set()  # (job, shortage) pairs already counted
        self._watch = HeadWatch(clock, blocked_after_seconds, announce_blocked, self._cancel_head)

    def connect(self, launch: Callable[[Job, Grant], None]) -> None:
        self._launch = launch

    def enqueue(self, job: Job) -> None:
        self.backlog(job.spec.queue).push(job)
        self.wake(job.spec.queue)

    def withdraw(self, job: Job) -> None:
        self.backlog(job.spec.queue).remove(job)
        self.wake(job.spec.queue)

    def release(self, job: Job, grant: Grant, lost: list[str]) -> None:
        self.backlog(job.spec.queue).ended(job)
        capacity.give_back(grant, lost)
        for queue in self._registry.queues_sharing(grant.environment):
            self.wake(queue)

    def backlog(self, queue: JobQueue) -> Backlog:
        if queue.name not in self._backlogs:
            self._backlogs[queue.name] = Backlog(queue)
        return self._backlogs[queue.name]

    def wake(self, queue: JobQueue) -> None:
        if queue.name not in self._awake:
            self._awake.add(queue.name)
            asyncio.get_running_loop().call_soon(self._pass, queue)

    def wake_all(self) -> None:
        for queue in self._registry.queues.values():
            self.wake(queue)

    def front(self, queue: JobQueue) -> list[Job]:
        return list(itertools.islice(self.backlog(queue).in_order(), SNAPSHOT_JOBS))

    def _pass(self, queue: JobQueue) -> None:
        """Start heads until one cannot start; that one is watched."""
        self._awake.discard(queue.name)
        backlog = self.backlog(queue)
        while (head := backlog.head()) is not None:
            if head.head_since_ms is None:
                head.head_since_ms = self._clock.now_ms()
            # The limit is enforced here, at dispatch, and not by SubmitJob: no attempt, no log.
            if container.overrides_characters(head, queue.environments[0].name) > container.MAX_OVERRIDES_CHARACTERS:
                self._lifecycle.finish(head, Status.FAILED, container.OVERRIDES_TOO_LONG)
                continue
            answer = capacity.ask(queue, head, self._faults.dry)
            if isinstance(answer, Verdict):
                self._count_refusal(head, answer)
                self._watch.observe(queue, head, answer)
                return
            self._watch.clear(queue)
            backlog.remove(head)
            backlog.started(head)
            assert self._launch is not None, "connect() comes first"
            self._launch(head, answer)
        self._watch.clear(queue)

    def _count_refusal(self, head: Job, verdict: Verdict) -> None:
        """Once for each job that meets a shortage, however often the pass looks again."""
        spell = verdict.dry_spell
        if verdict.refusal is Refusal.DRY and spell is not None and (head.job_id, spell.number) not in self._refused:
            self._refused.add((head.job_id, spell.number))
            self._faults.count("refused")

    def _cancel_head(self, job: Job, text: str) -> None:
        if job.status is Status.RUNNABLE:
            job.is_cancelled = True
            self._lifecycle.finish(job, Status.FAILED, text)
