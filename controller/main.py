"""The composition root: the only place that knows every part. `python -m controller.main` runs one replica.

It opens the store and the AWS clients, builds the loops on top of them, and serves the API in the same event loop.
SIGTERM and SIGINT finish the steps in hand and stop; no Batch job is touched. Any number of replicas may run on one
database: message loops and claims are shared, leader-only loops follow the lease.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from socket import AF_INET, AF_INET6

import structlog
import uvicorn
from botocore.exceptions import BotoCoreError
from fastapi import FastAPI

from controller import logs, version
from controller.api.app import Deployment, check_bind, create_app
from controller.api.health import ReplicaHealth, WatchedInbox
from controller.aws.batch import AwsBatch
from controller.aws.clients import ClientOptions, Clients
from controller.aws.rates import RateBudget
from controller.aws.s3 import S3Objects
from controller.aws.sqs import SqsInbox, SqsOutbox
from controller.clock import SystemClock, SystemEntropy
from controller.loops.batch_events import BatchEvents
from controller.loops.context import Context, Inboxes, Outboxes
from controller.loops.dispatch import Dispatch
from controller.loops.finish import Finish
from controller.loops.index import IndexLoop
from controller.loops.intake import Intake
from controller.loops.leader import LEASE_NAME, Leadership
from controller.loops.notify import Notify
from controller.loops.operations import Operations
from controller.loops.plan import PlanLoop
from controller.loops.reconcile import Reconcile
from controller.loops.reports import Reports
from controller.loops.runner import Loop, Runner
from controller.loops.tend import Tend
from controller.metrics import Metrics
from controller.ports import PortError
from controller.settings import Settings, problems
from controller.store.store import PostgresStore
from schema.migrations import run as migrations

log = structlog.get_logger("reembed.controller")

#: A step of a loop that does not end by then is cut off at shutdown; every step is safe to repeat.
SHUTDOWN_SECONDS = 20.0


@asynccontextmanager
async def open_context(settings: Settings, metrics: Metrics) -> AsyncIterator[Context]:
    """The ports on real adapters."""
    clock = SystemClock()
    url = settings.database.url.get_secret_value()
    if settings.database.migrate_on_start:
        await asyncio.to_thread(migrations.upgrade, url)
    store = PostgresStore.connect(url, pool_size=settings.database.pool_size)
    try:
        async with Clients(
            ClientOptions(batch_read_timeout_seconds=settings.reconcile.call_timeout_seconds)
        ) as clients:
            yield Context(
                settings=settings,
                store=store,
                clock=clock,
                entropy=SystemEntropy(),
                batch=AwsBatch(clients.batch_submit, clients.batch_query, RateBudget(clock)),
                objects=S3Objects(clients.s3, settings.storage.bucket_owners, once_client=clients.s3_once),
                inboxes=Inboxes(
                    requests=WatchedInbox(SqsInbox(clients.sqs, settings.sqs.requests)),
                    reports=WatchedInbox(SqsInbox(clients.sqs, settings.sqs.reports)),
                    batch_events=WatchedInbox(SqsInbox(clients.sqs, settings.sqs.batch_events)),
                ),
                outboxes=Outboxes(
                    requests=SqsOutbox(clients.sqs, settings.sqs.requests),
                    rejects=SqsOutbox(clients.sqs, settings.sqs.rejects),
                    status=SqsOutbox(clients.sqs, settings.sqs.status),
                ),
                recorder=metrics,
                holder=settings.replica or f"{socket.gethostname()}-{os.getpid()}",
                policy=settings.policy(),
            )
    finally:
        await store.close()


def loops(context: Context) -> list[Loop]:
    """Every loop of a replica; the last four act only under the leader."""
    leadership = Leadership(context)
    return [
        Intake(context),
        PlanLoop(context),
        Reports(context),
        BatchEvents(context),
        Reconcile(context),
        Finish(context),
        Notify(context),
        Dispatch(context, leadership),
        IndexLoop(context, leadership),
        Operations(context, leadership),
        Tend(context, leadership),
    ]


class PortTakenError(RuntimeError):
    """The API's address cannot be had."""


class _Server(uvicorn.Server):
    """Leaves the signals to us: the loops stop first, the API serves until they have."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def run(settings: Settings) -> None:
    """One replica until SIGTERM or SIGINT; PortTakenError, or what opening the ports raises, when it cannot start."""
    stopping = _stop_signals()
    metrics = Metrics(version=version(), queues=[queue.name for queue in settings.gpu_queues])
    async with open_context(settings, metrics) as context:
        runner = Runner(context, loops(context))
        listener = _listen(settings)
        server = _Server(
            uvicorn.Config(_application(context, runner, metrics), lifespan="off", log_config=None, access_log=False)
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        working = asyncio.create_task(runner.run())
        log.info("started", replica=context.holder, host=settings.api.host, port=settings.api.port)
        await asyncio.wait([serving, working, asyncio.ensure_future(stopping.wait())], return_when=FIRST_COMPLETED)
        log.info("stopping", replica=context.holder)
        await _finish_steps(runner, working)
        await _release_lease(context)
        server.should_exit = True
        await serving
        log.info("stopped", replica=context.holder)


def _application(context: Context, runner: Runner, metrics: Metrics) -> FastAPI:
    settings = context.settings
    inboxes = {name: inbox for name, inbox in vars(context.inboxes).items() if isinstance(inbox, WatchedInbox)}

    async def submit(body: str) -> None:
        # As an upstream service would: the same queue, the same checks, the same order.
        await context.outboxes.requests.send(body, {}, "")

    return create_app(
        store=context.store,
        clock=context.clock,
        entropy=context.entropy,
        submit=submit,
        health=ReplicaHealth(
            store=context.store,
            revision=migrations.head(),
            silence_seconds=runner.silence_seconds,
            limit_seconds=settings.loops.heartbeat_limit_seconds,
            inboxes=inboxes,
        ),
        metrics=metrics,
        deployment=Deployment.of(settings),
        token=_token(settings),
        version=version(),
    )


def _listen(settings: Settings) -> socket.socket:
    """Bound before anything runs: a second process on one port must end at once, not half work."""
    host, port = settings.api.host, settings.api.port
    try:
        return socket.create_server((host, port), family=AF_INET6 if ":" in host else AF_INET, backlog=128)
    except OSError as error:
        raise PortTakenError(f"cannot listen on {host}:{port}: {error.strerror}; set REEMBED_API__PORT") from error


def _stop_signals() -> asyncio.Event:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping


async def _finish_steps(runner: Runner, working: asyncio.Task[None]) -> None:
    runner.stop()
    _, unfinished = await asyncio.wait([working], timeout=SHUTDOWN_SECONDS)
    if unfinished:
        log.warning("steps_cut_off", seconds=SHUTDOWN_SECONDS)
        working.cancel()
        await asyncio.wait([working])


async def _release_lease(context: Context) -> None:
    """The next leader need not wait for the lease to run out."""
    try:
        async with context.store.transaction() as tx:
            await tx.leases.release(LEASE_NAME, context.holder, context.clock.now())
    except PortError as error:
        log.warning("lease_not_released", error=str(error))


def _token(settings: Settings) -> str | None:
    return settings.api.token.get_secret_value() if settings.api.token else None


def main() -> None:
    """Exit code 2 when the settings are wrong, 1 when this replica cannot start."""
    logs.configure(os.environ.get("REEMBED_LOG_LEVEL", "info"))
    try:
        settings = Settings()  # type: ignore[call-arg]
        check_bind(settings.api.host, _token(settings))
        settings.policy()
    except (ValueError, OSError) as error:
        log.error("settings", problems=problems(error))
        raise SystemExit(2) from None
    try:
        asyncio.run(run(settings))
    except (PortTakenError, BotoCoreError) as error:
        log.error("cannot_start", error=str(error))
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
