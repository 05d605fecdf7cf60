"""What each operation of the API does: a request in, an answer out, or an error of `errors`.

Thin: rules are in `validation`, `listing`, `stopping` and `registration`, shapes in `views`. Requests have passed
the service model's types already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deploy.local.batch import registration, stopping
from deploy.local.batch.clock import Clock
from deploy.local.batch.config import ComputeEnvironmentConfig, StandInConfig
from deploy.local.batch.errors import ClientError
from deploy.local.batch.lifecycle import Lifecycle
from deploy.local.batch.listing import list_jobs
from deploy.local.batch.model import Job, JobQueue, Kind, Status
from deploy.local.batch.registry import Registry
from deploy.local.batch.scheduler import Scheduler
from deploy.local.batch.submission import build_tree
from deploy.local.batch.validation import (
    MAX_DESCRIBE_IDS,
    MAX_REASON_CHARACTERS,
    check_submit,
    refuse_unless,
)
from deploy.local.batch.views import (
    compute_environment,
    job_definition,
    job_detail,
    job_queue,
    job_summary,
    refresh_summary,
)

Request = Mapping[str, Any]
Answer = dict[str, Any]
QUEUE_DELETED = "JobQueue deleted"


class Operations:
    def __init__(
        self,
        config: StandInConfig,
        clock: Clock,
        registry: Registry,
        lifecycle: Lifecycle,
        scheduler: Scheduler,
    ) -> None:
        self._config = config
        self._clock = clock
        self._registry = registry
        self._lifecycle = lifecycle
        self._scheduler = scheduler
        self.by_name: dict[str, Callable[[Request], Answer]] = {
            "SubmitJob": self._submit_job,
            "DescribeJobs": self._describe_jobs,
            "ListJobs": self._list_jobs,
            "CancelJob": self._cancel_job,
            "TerminateJob": self._terminate_job,
            "GetJobQueueSnapshot": self._get_job_queue_snapshot,
            "CreateComputeEnvironment": self._create_compute_environment,
            "DescribeComputeEnvironments": self._describe_compute_environments,
            "CreateJobQueue": self._create_job_queue,
            "UpdateJobQueue": self._update_job_queue,
            "DeleteJobQueue": self._delete_job_queue,
            "DescribeJobQueues": self._describe_job_queues,
            "RegisterJobDefinition": self._register_job_definition,
            "DeregisterJobDefinition": self._deregister_job_definition,
            "DescribeJobDefinitions": self._describe_job_definitions,
            "TagResource": self._tag_resource,
            "ListTagsForResource": self._list_tags_for_resource,
        }

    # jobs

    def _submit_job(self, request: Request) -> Answer:
        queue = self._registry.queue(request["jobQueue"])
        definition = self._registry.definition(request["jobDefinition"])
        ids = [entry["jobId"] for entry in request.get("dependsOn", ()) if entry.get("jobId")]
        shares = self._scheduler.backlog(queue).shares() if queue is not None and queue.fair_share else set()
        check_submit(request, queue, definition, {job_id: self._registry.job(job_id) for job_id in ids}, shares)
        assert queue is not None, "check_submit refuses the unknown"
        assert definition is not None, "check_submit refuses the unknown"
        tree = build_tree(self._registry, self._clock, request, queue, definition)
        refresh_summary(tree, self._clock.now_ms())
        self._clock.call_later(self._config.evaluate_seconds, self._lifecycle.admit, tree)
        return {"jobArn": tree.arn, "jobName": tree.spec.name, "jobId": tree.job_id}

    def _describe_jobs(self, request: Request) -> Answer:
        ids = request["jobs"]
        refuse_unless(len(ids) <= MAX_DESCRIBE_IDS, f"At most {MAX_DESCRIBE_IDS} jobs can be described at once")
        found = [job for job in map(self._registry.job, dict.fromkeys(ids)) if job is not None]
        self._refresh_summaries(found)
        return {"jobs": [job_detail(job) for job in found]}

    def _list_jobs(self, request: Request) -> Answer:
        lag_ms = int(self._clock.real(self._config.list_lag_seconds) * 1000)
        page, token = list_jobs(request, self._registry, self._clock.now_ms() - lag_ms)
        self._refresh_summaries(page)
        return {"jobSummaryList": [job_summary(job) for job in page]} | ({"nextToken": token} if token else {})

    def _refresh_summaries(self, jobs: list[Job]) -> None:
        now_ms = self._clock.now_ms()
        stale_ms = self._clock.real(self._config.summary_refresh_seconds) * 1000
        for job in jobs:
            if job.kind is Kind.ARRAY and now_ms - job.summary_ms >= stale_ms:
                refresh_summary(job, now_ms)

    def _cancel_job(self, request: Request) -> Answer:
        stopping.cancel(self._lifecycle, self._job_to_stop(request), request["reason"])
        return {}

    def _terminate_job(self, request: Request) -> Answer:
        stopping.terminate(self._lifecycle, self._job_to_stop(request), request["reason"])
        return {}

    def _job_to_stop(self, request: Request) -> Job:
        job = self._registry.job(request["jobId"])
        if job is None:
            raise ClientError(f"Job {request['jobId']} does not exist")
        refuse_unless(
            len(request["reason"]) <= MAX_REASON_CHARACTERS,
            f"reason takes at most {MAX_REASON_CHARACTERS} characters",
        )
        return job

    def _get_job_queue_snapshot(self, request: Request) -> Answer:
        now_ms = self._clock.now_ms()
        front = [
            {"jobArn": job.arn, "earliestTimeAtPosition": job.head_since_ms or job.created_ms}
            for job in self._scheduler.front(self._queue(request["jobQueue"]))
        ]
        return {"frontOfQueue": {"jobs": front, "lastUpdatedAt": now_ms}}

    # compute environments and queues

    def _create_compute_environment(self, request: Request) -> Answer:
        delay_seconds = ComputeEnvironmentConfig(name="default").start_delay_seconds
        created = registration.create_environment(self._registry, request, delay_seconds)
        return {"computeEnvironmentName": created.name, "computeEnvironmentArn": created.arn}

    def _describe_compute_environments(self, request: Request) -> Answer:
        names = request.get("computeEnvironments")
        known = list(self._registry.environments.values())
        if names is not None:
            known = [found for found in map(self._registry.environment, names) if found is not None]
        return {"computeEnvironments": [compute_environment(found, self._registry) for found in known]}

    def _create_job_queue(self, request: Request) -> Answer:
        queue = registration.create_queue(self._registry, request)
        return {"jobQueueName": queue.name, "jobQueueArn": queue.arn}

    def _update_job_queue(self, request: Request) -> Answer:
        queue = self._queue(request["jobQueue"])
        registration.update_queue(self._registry, queue, request)
        self._scheduler.wake(queue)
        return {"jobQueueName": queue.name, "jobQueueArn": queue.arn}

    def _delete_job_queue(self, request: Request) -> Answer:
        queue = self._queue(request["jobQueue"])
        refuse_unless(not queue.enabled, "Cannot delete, resource is not DISABLED")
        for job in self._registry.everything():
            if job.spec.queue is queue and not job.terminal:
                stopping.terminate(self._lifecycle, job, QUEUE_DELETED)
        del self._registry.queues[queue.name]
        return {}

    def _describe_job_queues(self, request: Request) -> Answer:
        names = request.get("jobQueues")
        known = list(self._registry.queues.values())
        if names is not None:
            known = [found for found in map(self._registry.queue, names) if found is not None]
        return {"jobQueues": [job_queue(found) for found in known]}

    def _queue(self, name_or_arn: str) -> JobQueue:
        queue = self._registry.queue(name_or_arn)
        if queue is None:
            raise ClientError(f"JobQueue {name_or_arn} not found.")
        return queue

    # job definitions and tags

    def _register_job_definition(self, request: Request) -> Answer:
        created = registration.register_definition(self._registry, request)
        return {
            "jobDefinitionName": created.name,
            "jobDefinitionArn": created.arn,
            "revision": created.revision,
        }

    def _deregister_job_definition(self, request: Request) -> Answer:
        definition = self._registry.definition(request["jobDefinition"])
        if definition is None:
            raise ClientError(f"JobDefinition {request['jobDefinition']} not found")
        definition.active = False
        return {}

    def _describe_job_definitions(self, request: Request) -> Answer:
        known = [definition for revisions in self._registry.definitions.values() for definition in revisions]
        if "jobDefinitions" in request:
            wanted = {reference.rpartition("job-definition/")[2] for reference in request["jobDefinitions"]}
            known = [found for found in known if wanted & {found.name, f"{found.name}:{found.revision}"}]
        if "jobDefinitionName" in request:
            known = [found for found in known if found.name == request["jobDefinitionName"]]
        if "status" in request:
            known = [found for found in known if found.active == (request["status"] == "ACTIVE")]
        return {"jobDefinitions": [job_definition(found) for found in reversed(known)]}

    def _tag_resource(self, request: Request) -> Answer:
        self._tags(request["resourceArn"]).update(request["tags"])
        return {}

    def _list_tags_for_resource(self, request: Request) -> Answer:
        return {"tags": dict(self._tags(request["resourceArn"]))}

    def _tags(self, arn: str) -> dict[str, str]:
        """The tags of a job, queue or definition, to be read or written in place."""
        if job := self._registry.job(arn):
            return job.spec.tags
        if queue := self._registry.queue(arn):
            return queue.tags
        if definition := self._registry.definition(arn):
            tags: dict[str, str] = definition.request.setdefault("tags", {})
            return tags
        raise ClientError(f"Resource {arn} does not exist")

    # for tests

    def all_jobs(self) -> list[Answer]:
        """Every job the stand-in remembers, in the words of its own model."""
        return [
            {
                "job_id": job.job_id,
                "name": job.spec.name,
                "kind": job.kind.value,
                "status": job.status.value,
                "status_reason": job.status_reason,
                "queue": job.spec.queue.name,
                "array_size": len(job.members) if job.kind is Kind.ARRAY else None,
                "parent": job.parent.job_id if job.parent else None,
                "children": [member.job_id for member in job.members],
                "created_ms": job.created_ms,
                "started_ms": job.started_ms,
                "stopped_ms": job.stopped_ms,
                "exit_code": job.container.exit_code if job.container else None,
                "log_stream": job.container.log_stream if job.container else None,
                "launches": job.launches,
                "live": job.status in {Status.STARTING, Status.RUNNING},
            }
            for job in self._registry.everything()
        ]
