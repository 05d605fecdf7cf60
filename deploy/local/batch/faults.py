"""What has been asked to go wrong, what did, and choosing the victims.

Faults are armed over HTTP (`fault_requests`) and consulted by the parts they concern. A fault that needs a running
job waits for one: it counts as fired only when the attempt really ended that way, and looks for another victim when
the first one escaped by ending.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from deploy.local.batch.capacity import DrySpell
from deploy.local.batch.errors import ServerError, Throttled
from deploy.local.batch.model import Job, Kind, Status
from deploy.local.batch.stops import StopOrder

COUNTERS = (
    "reclaimed",
    "out_of_memory",
    "forced_exits",
    "pull_failures",
    "refused",
    "lost_responses",
    "server_errors",
    "slow_answers",
    "throttled",
    "aged_out",
    "events_sent",
    "events_dropped",
    "events_doubled",
    "events_late",
)
ANY_OPERATION = "*"


@dataclass(eq=False, slots=True)
class Ambush:
    """A stop order for a running job, by id or the next one on a queue (or anywhere)."""

    order: StopOrder
    queue: str | None = None
    job_id: str | None = None
    after_real_seconds: float = 0.0

    def wants(self, job: Job) -> bool:
        if self.job_id is not None:
            whole = job.parent if job.kind is Kind.NODE and job.index == job.spec.main_node else None
            return self.job_id == job.job_id or (whole is not None and self.job_id == whole.job_id)
        return self.queue is None or self.queue == job.spec.queue.name


@dataclass(slots=True)
class Faults:
    dry: dict[str, DrySpell] = field(default_factory=dict)  # by queue or compute environment
    lost_responses: int = 0
    drop_events: int = 0
    _fired: Counter[str] = field(default_factory=Counter)
    _errors: Counter[str] = field(default_factory=Counter)  # by operation
    _throttles: Counter[str] = field(default_factory=Counter)
    _slow: dict[str, list[float]] = field(default_factory=dict)  # real seconds, one entry a call
    _pull_failures: list[str | None] = field(default_factory=list)  # queue, or None for any
    _ambushes: list[Ambush] = field(default_factory=list)
    _running: dict[str, Job] = field(default_factory=dict)
    _spells: itertools.count[int] = field(default_factory=itertools.count)

    def count(self, counter: str) -> None:
        self._fired[counter] += 1

    def fired(self) -> dict[str, int]:
        return {counter: self._fired[counter] for counter in COUNTERS}

    # calls

    def before_call(self, operation: str) -> None:
        """Raise the error that this call was chosen for."""
        for name in (operation, ANY_OPERATION):
            if self._errors[name] > 0:
                self._errors[name] -= 1
                self.count("server_errors")
                raise ServerError("Internal server error (injected)")
            if self._throttles[name] > 0:
                self._throttles[name] -= 1
                self.count("throttled")
                raise Throttled("Too Many Requests")

    def delay_real_seconds(self, operation: str) -> float:
        for name in (operation, ANY_OPERATION):
            if waits := self._slow.get(name):
                self.count("slow_answers")
                return waits.pop()
        return 0.0

    def take_lost_response(self) -> bool:
        if self.lost_responses == 0:
            return False
        self.lost_responses -= 1
        self.count("lost_responses")
        return True

    def fail_calls(self, operation: str, count: int) -> None:
        self._errors[operation] = count

    def throttle_calls(self, operation: str, count: int) -> None:
        self._throttles[operation] = count

    def slow_calls(self, operation: str, count: int, real_seconds: float) -> None:
        self._slow[operation] = [real_seconds] * count

    # capacity

    def start_shortage(self, place: str, silent: bool, reason: str | None) -> DrySpell:
        spell = self.dry[place] = DrySpell(next(self._spells), silent, reason)
        return spell

    def end_shortage(self, place: str, spell: DrySpell | None = None) -> None:
        """End a shortage; a timer passes the spell it belongs to, so that it cannot end a later one."""
        if spell is None or self.dry.get(place) == spell:
            self.dry.pop(place, None)

    # jobs

    def fail_pulls(self, queue: str | None, count: int) -> None:
        self._pull_failures += [queue] * count

    def take_pull_failure(self, job: Job) -> bool:
        for queue in self._pull_failures:
            if queue is None or queue == job.spec.queue.name:
                self._pull_failures.remove(queue)
                self.count("pull_failures")
                return True
        return False

    def lay(self, ambush: Ambush) -> None:
        """Take the longest-running fitting job, or wait for the next one to run."""
        for job in self._candidates():
            if ambush.wants(job):
                self._spring_later(ambush, job)
                return
        self._ambushes.append(ambush)

    def job_runs(self, job: Job) -> None:
        self._running[job.job_id] = job
        for ambush in self._ambushes:
            if ambush.wants(job):
                self._ambushes.remove(ambush)
                self._spring_later(ambush, job)
                return

    def _candidates(self) -> Iterable[Job]:
        self._running = {job_id: job for job_id, job in self._running.items() if job.status is Status.RUNNING}
        unharmed = [job for job in self._running.values() if job.live is not None and not job.live.ordered.is_set()]
        return sorted(unharmed, key=lambda job: job.started_ms or 0)

    def _spring_later(self, ambush: Ambush, job: Job) -> None:
        asyncio.get_running_loop().call_later(ambush.after_real_seconds, self._spring, ambush, job, job.launches)

    def _spring(self, ambush: Ambush, job: Job, launch: int) -> None:
        same_run = job.live is not None and job.launches == launch
        if not (same_run and job.live is not None and job.live.stop(ambush.order)):
            self.lay(ambush)
