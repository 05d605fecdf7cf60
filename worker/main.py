"""The worker's entry point: read the assignment, run its job, report, exit with the code that says how it ended.

`python -m worker.main [--ranks N]`. Owns the process: signals, logs, the mapping of whatever happens to one `ExitCode`.
What it must not do: decide anything about a shard.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import sys
import threading
from typing import Any

from pydantic import ValidationError

from schema import assignment as assignments
from schema.assignment import Common, Entry, InferAssignment
from schema.exit_codes import ExitCode
from schema.layout import Location
from worker import logs
from worker.aws import REFUSALS, expect_owners, s3_client, sqs_client
from worker.context import ConfigError, Context, Ending, Stopped, Voided
from worker.reporting import Reporter
from worker.settings import Settings

JOBS = {"prepare": "worker.prepare", "infer": "worker.infer", "index": "worker.index.job"}

log = logging.getLogger(__name__)


class Mismatch(Stopped):
    """Batch runs us as another job than the assignment was written for."""

    code = ExitCode.ASSIGNMENT_MISMATCH


def read_assignment(s3: Any, uri: str) -> Common:
    """The assignment object; ConfigError when there is none for us, while an S3 out of order only passes through."""
    place = Location.parse(uri)
    try:
        return assignments.parse(s3.get_object(Bucket=place.bucket, Key=place.key)["Body"].read())
    except s3.exceptions.ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] not in REFUSALS:
            raise
        raise ConfigError(f"assignment {uri} cannot be read: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"{uri} is no assignment: {error}") from error


def pick_entry(assignment: Common, settings: Settings) -> Entry:
    """Our entry by array or node index; `Mismatch` when the job has another shape than the assignment."""
    batch = settings.batch
    nodes = assignment.nodes if isinstance(assignment, InferAssignment) else None
    if batch.num_nodes != nodes:
        raise Mismatch(f"the job has {batch.num_nodes} nodes, the assignment is for {nodes}")
    if not 0 <= batch.entry_index < len(assignment.entries):
        raise Mismatch(f"index {batch.entry_index} of an assignment with {len(assignment.entries)} entries")
    if assignment.void:
        raise Voided("the assignment was withdrawn")
    return assignment.entries[batch.entry_index]


def run_job(assignment: Common, entry: Entry, context: Context) -> Ending:
    """Whatever happens becomes an `Ending`."""
    try:
        job = importlib.import_module(JOBS[str(getattr(assignment, "kind", ""))])
        return job.run(assignment, entry, context)
    except Stopped as stopped:
        return stopped.ending
    except MemoryError:
        return Ending(ExitCode.OUT_OF_MEMORY, "the worker ran out of memory")
    except Exception as error:
        log.error("job failed", exc_info=True)
        code = ExitCode.CONFIG_ERROR if _denied(error) else ExitCode.CRASHED
        return Ending(code, f"{type(error).__name__}: {error}")


def _denied(error: Exception) -> bool:
    """An AWS answer that will be the same next time: access, a missing bucket, another region."""
    response = getattr(error, "response", None)
    detail = response.get("Error", {}) if isinstance(response, dict) else {}
    return detail.get("Code") in ("AccessDenied", "403", "NoSuchBucket", "PermanentRedirect", "InvalidAccessKeyId")


def work(settings: Settings, stop: threading.Event) -> Ending:
    """From the assignment to the `ended` report."""
    s3 = s3_client()
    assignment = read_assignment(s3, settings.assignment_uri)
    expect_owners(s3, assignment.bucket_owners)
    logs.configure(request_id=assignment.request_id, job_id=assignment.job_id)
    entry = pick_entry(assignment, settings)
    logs.configure(
        request_id=assignment.request_id, job_id=assignment.job_id, attempt_id=entry.attempt_id, shard=entry.shard
    )
    reporter = Reporter(sqs_client(), assignment, entry, settings.batch)
    reporter.start()
    ending = run_job(assignment, entry, Context(s3, reporter, stop, settings, settings.assignment_uri))
    log.info("ended", extra={"exit_code": ending.code.name, "error": ending.error})
    reporter.end(ending)
    return ending


def main() -> None:
    # numpy's BLAS would start a thread for each CPU in each of our processes: 0.07 s of CPU a process on two CPUs.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(description="Run one attempt as REEMBED_ASSIGNMENT says.")
    parser.add_argument("--ranks", type=int, default=None, help="engines of this node; default: one for each GPU")
    arguments = parser.parse_args()
    logs.configure()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        ending = work(Settings.from_environment(ranks=arguments.ranks), stop)
    except Stopped as stopped:
        log.error("not started", extra={"exit_code": stopped.code.name, "error": str(stopped)})
        ending = stopped.ending
    except ValueError as error:
        log.error("not started: bad environment", extra={"error": str(error)})
        ending = Ending(ExitCode.CONFIG_ERROR)
    except Exception:
        log.error("not started", exc_info=True)
        ending = Ending(ExitCode.CRASHED)
    sys.exit(int(ending.code))


if __name__ == "__main__":
    main()
