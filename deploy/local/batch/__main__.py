"""`python -m deploy.local.batch`: compose the stand-in, serve on loopback until SIGTERM or SIGINT, kill every job.

Prints one line, its URL, to stdout once it serves; the log goes to stderr. `--port 0` takes a free port.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from aiohttp import web

from deploy.local.batch import registration
from deploy.local.batch.attempts import Attempts
from deploy.local.batch.clock import Clock
from deploy.local.batch.config import StandInConfig
from deploy.local.batch.delivery import SqsDelivery
from deploy.local.batch.events import Events
from deploy.local.batch.faults import Faults
from deploy.local.batch.lifecycle import Lifecycle
from deploy.local.batch.operations import Operations
from deploy.local.batch.processes import Processes
from deploy.local.batch.registry import Registry
from deploy.local.batch.scheduler import Scheduler
from deploy.local.batch.server import Server
from deploy.local.batch.validation import load_service_model

_LOOPBACK = "127.0.0.1"


async def serve(config: StandInConfig, log_dir: Path, port: int) -> None:
    """Run until a signal; every part is created and connected here and nowhere else."""
    clock, faults = Clock(config.time_scale), Faults()
    registry = Registry(clock, config.account_id, config.region, config.retention_seconds)
    registration.install(registry, config)
    delivery = SqsDelivery(config.events, clock, faults) if config.events is not None else None
    events = Events(clock, config.account_id, config.region, delivery)
    lifecycle = Lifecycle(clock, registry, events)
    scheduler = Scheduler(clock, registry, lifecycle, faults, config.blocked_after_seconds, events.queue_blocked)
    processes = Processes(config.working_directory, config.sigterm_whole_group)
    attempts = Attempts(config, log_dir, clock, registry, lifecycle, processes, faults, scheduler.release)
    lifecycle.connect(scheduler)
    scheduler.connect(attempts.launch)
    operations = Operations(config, clock, registry, lifecycle, scheduler)
    server = Server(load_service_model(), operations, faults, registry, scheduler, config.requests_per_second)

    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    if delivery is not None:
        delivery.start()
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=1.0)
    try:
        await runner.setup()
        await web.TCPSite(runner, _LOOPBACK, port).start()
        print(f"http://{_LOOPBACK}:{runner.addresses[0][1]}", flush=True)  # noqa: T201 - the ready signal
        await stopped.wait()
    finally:
        await attempts.close()
        processes.close()
        if delivery is not None:
            await delivery.close()
        await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.local.batch", description="A stand-in for AWS Batch.")
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--config", type=Path, required=True, help="JSON file, see deploy.local.batch.config")
    parser.add_argument("--log-dir", type=Path, required=True, help="one file an attempt, named by logStreamName")
    arguments = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    config = StandInConfig.model_validate_json(arguments.config.read_bytes())
    asyncio.run(serve(config, arguments.log_dir, arguments.port))


if __name__ == "__main__":
    main()
