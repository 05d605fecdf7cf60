"""Everything that exists, and look-ups by name, ARN and id; the only place that mints ids and ARNs.

Terminal jobs leave after the retention time, a parent together with its members. A look-up that finds nothing
returns None; what that means (400, or simply absent) is the caller's business.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator

from deploy.local.batch.clock import Clock
from deploy.local.batch.model import ComputeEnvironment, Job, JobDefinition, JobQueue


class Registry:
    def __init__(self, clock: Clock, account_id: str, region: str, retention_seconds: float) -> None:
        self._clock = clock
        self._arn_prefix = f"arn:aws:batch:{region}:{account_id}:"
        self._ecs_prefix = f"arn:aws:ecs:{region}:{account_id}:"
        self._retention_seconds = retention_seconds
        self._sequence = itertools.count(1)
        self.environments: dict[str, ComputeEnvironment] = {}
        self.queues: dict[str, JobQueue] = {}
        self.definitions: dict[str, list[JobDefinition]] = {}  # by name, revisions ascending
        self._jobs: dict[str, Job] = {}
        self._top_level: dict[str, Job] = {}  # in order of creation

    # ids and ARNs

    def arn(self, resource: str, name: str) -> str:
        return f"{self._arn_prefix}{resource}/{name}"

    def ecs_arn(self, resource: str, environment: str) -> str:
        return f"{self._ecs_prefix}{resource}/AWSBatch-{environment}/{uuid.uuid4().hex}"

    def ecs_cluster_arn(self, environment: ComputeEnvironment) -> str:
        return f"{self._ecs_prefix}cluster/AWSBatch-{environment.name}-{environment.uuid}"

    def new_job_id(self) -> str:
        return str(uuid.uuid4())

    def next_sequence(self) -> int:
        return next(self._sequence)

    # look-ups

    def environment(self, name_or_arn: str) -> ComputeEnvironment | None:
        return self.environments.get(self._bare(name_or_arn, "compute-environment"))

    def queue(self, name_or_arn: str) -> JobQueue | None:
        return self.queues.get(self._bare(name_or_arn, "job-queue"))

    def definition(self, reference: str) -> JobDefinition | None:
        """`name`, `name:revision` or an ARN; without a revision the latest ACTIVE one."""
        name, _, revision = self._bare(reference, "job-definition").partition(":")
        revisions = [known for known in self.definitions.get(name, ()) if known.active]
        if revision:
            revisions = [known for known in revisions if str(known.revision) == revision]
        return revisions[-1] if revisions else None

    def queues_sharing(self, environment: ComputeEnvironment) -> list[JobQueue]:
        """Queues to wake when a slot frees, the most urgent first."""
        sharing = [queue for queue in self.queues.values() if environment in queue.environments]
        return sorted(sharing, key=lambda queue: -queue.priority)

    def _bare(self, name_or_arn: str, resource: str) -> str:
        return name_or_arn.removeprefix(f"{self._arn_prefix}{resource}/")

    # jobs

    def add(self, tree: Job) -> None:
        self._top_level[tree.job_id] = tree
        for job in (tree, *tree.members):
            self._jobs[job.job_id] = job

    def job(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id.rpartition(":job/")[2])

    def top_level(self) -> Iterator[Job]:
        """Newest first."""
        return iter(list(reversed(self._top_level.values())))

    def everything(self) -> Iterator[Job]:
        return iter(list(self._jobs.values()))

    def age_later(self, tree: Job) -> None:
        self._clock.call_later(self._retention_seconds, self.forget, tree)

    def forget(self, tree: Job) -> bool:
        """Drop a finished top-level job as if its retention had passed; False while it is live."""
        if not tree.terminal or tree.job_id not in self._top_level:
            return False
        del self._top_level[tree.job_id]
        for job in (tree, *tree.members):
            del self._jobs[job.job_id]
        return True
