"""AWS Batch as the `Batch` port: submit, look at and stop jobs, within the rate budget, without SDK retries.

It never repeats a call. A submission whose answer is lost or a 5xx is Ambiguous, since the job may exist and SubmitJob
has no client token; the caller looks it up by name. The same failure of any other call is Unavailable. A 429 is
Throttled and lowers the budget's ceiling.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import structlog

from controller.aws.clients import SdkClient
from controller.aws.errors import translated
from controller.aws.rates import Call, RateBudget
from controller.aws.submission import submit_parameters
from controller.core.job_views import job_view
from controller.ports import Ambiguous, JobView, SubmitSpec, Throttled

MOST_DESCRIBED = 100  # ids a DescribeJobs
MOST_PAGES = 200  # of a listing, 100 jobs each, newest first
MOST_REASON_CHARACTERS = 1024
NO_REASON = "stopped by reembed"  # the API insists on a reason

_BEGINNING = datetime.min.replace(tzinfo=UTC)
_log = structlog.get_logger(__name__)


class AwsBatch:
    """`submit_client` must not retry by itself; `query_client` serves everything else."""

    def __init__(self, submit_client: SdkClient, query_client: SdkClient, budget: RateBudget) -> None:
        self._submit_client = submit_client
        self._query_client = query_client
        self._budget = budget

    async def submit(self, spec: SubmitSpec) -> str:
        """The Batch job id. Ambiguous: the job may exist under `spec.name`."""
        parameters = submit_parameters(spec)
        async with self._call(Call.SUBMIT, ambiguous=True):
            answer = await self._submit_client.submit_job(**parameters)
        job_id = answer.get("jobId")
        if not job_id:
            raise Ambiguous(f"SubmitJob of {spec.name} was answered without a job id")
        return str(job_id)

    async def describe(self, batch_job_ids: Sequence[str]) -> Mapping[str, JobView]:
        """Views by id of parents, children (`id:3`) and nodes (`id#3`); what Batch does not know is absent."""
        views: dict[str, JobView] = {}
        wanted = list(dict.fromkeys(batch_job_ids))
        for start in range(0, len(wanted), MOST_DESCRIBED):
            async with self._call(Call.DESCRIBE):
                answer = await self._query_client.describe_jobs(jobs=wanted[start : start + MOST_DESCRIBED])
            for detail in answer.get("jobs", ()):
                view = job_view(detail)
                if view is not None:
                    views[view.batch_job_id] = view
        return views

    async def find(self, queue: str, name: str) -> Sequence[JobView]:
        """Jobs of exactly this name, oldest first. Batch's own filter ignores case, so it may find more."""
        found = [view async for view in self._listed(queue, name) if view.name == name]
        return sorted(found, key=_created_at)

    async def list_named(self, queue: str, prefix: str) -> Sequence[JobView]:
        """Jobs whose name starts with `prefix`, newest first; beyond the bound of pages the oldest are left out."""
        found = [view async for view in self._listed(queue, f"{prefix}*") if view.name.startswith(prefix)]
        return sorted(found, key=_created_at, reverse=True)

    async def cancel(self, batch_job_id: str, reason: str) -> None:
        """CancelJob: a job that has started runs on, and the answer does not say so."""
        async with self._call(Call.CANCEL):
            await self._query_client.cancel_job(jobId=batch_job_id, reason=_reason(reason))

    async def terminate(self, batch_job_id: str, reason: str) -> None:
        """TerminateJob: stops a job in any state, some time later."""
        async with self._call(Call.CANCEL):
            await self._query_client.terminate_job(jobId=batch_job_id, reason=_reason(reason))

    async def _listed(self, queue: str, name_filter: str) -> AsyncIterator[JobView]:
        """Every page of a listing by name, all states. Summaries name no queue, so it is filled in."""
        token: str | None = None
        for _ in range(MOST_PAGES):
            more = {"nextToken": token} if token else {}
            filters = [{"name": "JOB_NAME", "values": [name_filter]}]
            async with self._call(Call.DESCRIBE):
                answer: Mapping[str, Any] = await self._query_client.list_jobs(jobQueue=queue, filters=filters, **more)
            for summary in answer.get("jobSummaryList", ()):
                view = job_view(summary, queue=queue)
                if view is not None:
                    yield view
            token = answer.get("nextToken")
            if not token:
                return
        _log.warning("listing_cut", queue=queue, name_filter=name_filter, pages=MOST_PAGES)

    @asynccontextmanager
    async def _call(self, call: Call, *, ambiguous: bool = False) -> AsyncGenerator[None, None]:
        """One call: its token, the ports' errors, and the ceiling lowered by a 429."""
        await self._budget.acquire(call)
        try:
            with translated(ambiguous=ambiguous):
                yield
        except Throttled:
            self._budget.throttled()
            raise


def _created_at(view: JobView) -> datetime:
    return view.created_at or _BEGINNING


def _reason(reason: str) -> str:
    return reason[:MOST_REASON_CHARACTERS] or NO_REASON
