"""One run of one job on granted capacity: start delay, process, stop orders, time-out, the end and what it means.

One task a running job, so their number is bounded by the slots. It asks `lifecycle` for every status change and
gives the capacity back in all cases. An unexpected error here fails the job with a reason that says so.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from deploy.local.batch import container
from deploy.local.batch.capacity import Grant
from deploy.local.batch.clock import Clock
from deploy.local.batch.config import StandInConfig
from deploy.local.batch.faults import Faults
from deploy.local.batch.lifecycle import Lifecycle
from deploy.local.batch.model import Attempt, Container, Job, Kind, Status
from deploy.local.batch.processes import JobProcess, Processes
from deploy.local.batch.registry import Registry
from deploy.local.batch.retry import AttemptEnd, runs_again
from deploy.local.batch.stops import GENTLE, LiveAttempt, StopCause, StopOrder, stop_running

ESSENTIAL_CONTAINER_EXITED = "Essential container in task exited"
TASK_FAILED_TO_START = "Task failed to start"
TIMED_OUT = "Job attempt duration exceeded timeout"
OUT_OF_MEMORY = "OutOfMemoryError: Container killed due to memory usage"
_KILLED_EXIT_CODE = 137
_LOG_STREAM_NAME_CHARACTERS = 200

_log = logging.getLogger(__name__)


class Attempts:
    def __init__(
        self,
        config: StandInConfig,
        log_dir: Path,
        clock: Clock,
        registry: Registry,
        lifecycle: Lifecycle,
        processes: Processes,
        faults: Faults,
        release: Callable[[Job, Grant, list[str]], None],
    ) -> None:
        self._config = config
        self._log_dir = log_dir
        self._clock = clock
        self._registry = registry
        self._lifecycle = lifecycle
        self._processes = processes
        self._faults = faults
        self._release = release
        self._tasks: set[asyncio.Task[None]] = set()

    def launch(self, job: Job, grant: Grant) -> None:
        targets = job.members if job.kind is Kind.MULTI_NODE else [job]
        for target, instance in zip(targets, grant.instances, strict=True):
            self._assign(target, grant, instance)
        job.launches += 1
        self._lifecycle.starting(job)
        for node in targets if job.kind is Kind.MULTI_NODE else ():
            node.launches = job.launches
            self._lifecycle.starting(node)
        task = asyncio.get_running_loop().create_task(self._run(job, grant))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _assign(self, job: Job, grant: Grant, instance: str) -> None:
        environment = grant.environment.name
        job.live = LiveAttempt()
        job.container = Container(
            task_arn=self._registry.ecs_arn("task", environment),
            instance_arn=self._registry.ecs_arn("container-instance", environment),
            instance_id=instance,
            environment_name=environment,
            instance_type=grant.environment.family,
        )

    async def _run(self, job: Job, grant: Grant) -> None:
        end = AttemptEnd("Internal error of the stand-in", retryable=False)
        lost: list[str] = []
        try:
            delay_seconds = grant.environment.start_delay_seconds
            if job.kind is Kind.MULTI_NODE:
                end = await self._run_nodes(job, delay_seconds)
            else:
                end = await self._run_container(job, delay_seconds)
            lost = [
                target.container.instance_id
                for target in (job, *job.members)
                if target.container and target.live and target.live.order
                if target.live.order.cause is StopCause.RECLAIMED
            ]
        except Exception:
            _log.exception("attempt of %s broke", job.job_id)
        self._conclude(job, end)
        self._release(job, grant, lost)

    async def _run_nodes(self, parent: Job, delay_seconds: float) -> AttemptEnd:
        """All nodes at once; when the main node ends the others are stopped, and its end is the job's."""
        runs = [asyncio.create_task(self._run_node(parent, node, delay_seconds)) for node in parent.members]
        try:
            end = await runs[parent.spec.main_node]
            for node in parent.members:
                if node.live is not None:
                    node.live.stop(StopOrder(StopCause.MAIN_NODE_ENDED))
            await asyncio.gather(*runs)
        finally:
            for run in runs:
                run.cancel()
        parent.container = None
        return end

    async def _run_node(self, parent: Job, node: Job, delay_seconds: float) -> AttemptEnd:
        end = await self._run_container(node, delay_seconds)
        self._record(node, end)
        if node.index == parent.spec.main_node and node.attempts:
            parent.attempts = list(node.attempts)
        self._lifecycle.finish_node(node, _status_of(end), end.status_reason)
        return end

    async def _run_container(self, job: Job, delay_seconds: float) -> AttemptEnd:
        live, facts = job.live, job.container
        assert live is not None, "launch() assigns it"
        assert facts is not None, "launch() assigns it"
        with suppress(TimeoutError):
            await asyncio.wait_for(live.ordered.wait(), self._clock.real(delay_seconds))
        if live.order is not None:
            live.ended = True
            return self._end_by(live.order, facts, exit_code=None, counted=False)
        started = await self._start_process(job, facts)
        if isinstance(started, AttemptEnd):
            live.ended = True
            return started
        live.process = started
        self._lifecycle.running(job)
        timer = self._arm_timeout(job)
        self._faults.job_runs(job)
        try:
            exit_code, order = await self._watch(live, started)
        finally:
            live.ended = True
            if timer is not None:
                timer.cancel()
        if order is None:
            return AttemptEnd(ESSENTIAL_CONTAINER_EXITED, exit_code=exit_code)
        return self._end_by(order, facts, exit_code, counted=True)

    async def _start_process(self, job: Job, facts: Container) -> JobProcess | AttemptEnd:
        properties = container.properties_of(job)
        image: str = properties["image"]
        prefix = self._config.images.get(image) or self._config.images.get(_bare_image(image))
        if prefix is None or self._faults.take_pull_failure(job):
            reason = f"CannotPullContainerError: Error response from daemon: pull access denied for {image}"
            return AttemptEnd(TASK_FAILED_TO_START, reason=reason)
        definition_name = job.spec.definition.name[:_LOG_STREAM_NAME_CHARACTERS]
        log_stream = f"{definition_name}/default/{facts.task_arn.rpartition('/')[2]}"
        inherited = {name: os.environ[name] for name in self._config.inherit_environment if name in os.environ}
        environment = {
            **inherited,
            **self._config.base_environment,
            **{variable["name"]: variable.get("value", "") for variable in properties["environment"]},
            **container.injected_variables(job, facts.environment_name, job.launches),
        }
        try:
            process = await self._processes.start(
                [*prefix, *properties["command"]], environment, self._log_dir / log_stream
            )
        except OSError as error:
            return AttemptEnd(TASK_FAILED_TO_START, reason=f"CannotStartContainerError: {error}"[:255])
        facts.log_stream = log_stream
        return process

    def _arm_timeout(self, job: Job) -> asyncio.TimerHandle | None:
        """The clock starts at RUNNING; for nodes it is the whole job's, started with the main node."""
        whole, parent = job, job.parent
        if job.kind is Kind.NODE and parent is not None:
            if job.index != job.spec.main_node:
                return None
            whole = parent
            self._lifecycle.running(parent)
        if job.spec.timeout_seconds is None:
            return None
        return self._clock.call_later(job.spec.timeout_seconds, stop_running, whole, StopOrder(StopCause.TIMED_OUT))

    async def _watch(self, live: LiveAttempt, process: JobProcess) -> tuple[int, StopOrder | None]:
        """Exit code, and the order that brought it about; None when the process ended by itself first."""
        waiting = asyncio.create_task(self._processes.wait(process))
        ordered = asyncio.create_task(live.ordered.wait())
        try:
            await asyncio.wait({waiting, ordered}, return_when=asyncio.FIRST_COMPLETED)
            order = live.order
            if order is None or (waiting.done() and order.cause in GENTLE):
                return await waiting, None
            if order.cause in GENTLE:
                process.terminate()
                await asyncio.wait({waiting}, timeout=self._clock.real(self._config.stop_grace_seconds))
            process.kill()
            return await waiting, live.order
        finally:
            ordered.cancel()

    def _end_by(self, order: StopOrder, facts: Container, exit_code: int | None, counted: bool) -> AttemptEnd:
        match order.cause:
            case StopCause.TERMINATED:
                return AttemptEnd(order.text or "", exit_code, retryable=False, counted=counted)
            case StopCause.TIMED_OUT:
                return AttemptEnd(TIMED_OUT, exit_code, retryable=False, counted=counted)
            case StopCause.MAIN_NODE_ENDED:
                return AttemptEnd(ESSENTIAL_CONTAINER_EXITED, exit_code, counted=counted)
            case StopCause.RECLAIMED:
                self._faults.count("reclaimed")
                return AttemptEnd(f"Host EC2 (instance {facts.instance_id}) terminated.", counted=counted)
            case StopCause.OUT_OF_MEMORY:
                self._faults.count("out_of_memory")
                return AttemptEnd(ESSENTIAL_CONTAINER_EXITED, _KILLED_EXIT_CODE, OUT_OF_MEMORY, counted=counted)
            case StopCause.FORCED_EXIT:
                self._faults.count("forced_exits")
                return AttemptEnd(ESSENTIAL_CONTAINER_EXITED, order.exit_code, counted=counted)

    def _conclude(self, job: Job, end: AttemptEnd) -> None:
        if job.kind is not Kind.MULTI_NODE:
            self._record(job, end)
        if not job.is_terminated and runs_again(end, job.launches, job.spec.max_attempts, job.spec.exit_rules):
            self._lifecycle.make_runnable(job)
        else:
            self._lifecycle.finish(job, _status_of(end), end.status_reason)

    def _record(self, job: Job, end: AttemptEnd) -> None:
        facts = job.container
        assert facts is not None, "launch() assigns it"
        facts.exit_code, facts.reason = end.exit_code, end.reason
        if end.counted:
            job.attempts.append(
                Attempt(
                    started_ms=job.started_ms,
                    stopped_ms=self._clock.now_ms(),
                    status_reason=end.status_reason,
                    exit_code=end.exit_code,
                    reason=end.reason,
                    task_arn=facts.task_arn,
                    instance_arn=facts.instance_arn,
                    log_stream=facts.log_stream,
                )
            )


def _status_of(end: AttemptEnd) -> Status:
    return Status.SUCCEEDED if end.succeeded else Status.FAILED


def _bare_image(image: str) -> str:
    """`registry/repository/name:tag` → `name`."""
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]
