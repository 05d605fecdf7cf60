"""What every job kind of the worker is given, and what it gives back.

`worker.main` builds one `Context`, hands it to the job named by the assignment's kind, and turns the `Ending` that
comes back into the `ended` report and the exit code. A job ends early by raising `Stopped`; anything else that
escapes it is a crash. Errors:

    Stopped                an expected end that is not success; carries the `Ending`
    ├── ConfigError        will fail again anywhere: model, access, region, digest
    ├── HostSick           this host's GPU or driver is unusable; another may do
    ├── OutOfMemory        the model does not fit on this host's device
    ├── Voided             the assignment was withdrawn; nothing may be written any more
    └── Interrupted        SIGTERM was obeyed
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from schema.exit_codes import ExitCode

if TYPE_CHECKING:
    from worker.reporting import Reporter
    from worker.settings import Settings


@dataclass(frozen=True)
class Ending:
    """How the job ended; every field but `code` goes into the `ended` report as it is."""

    code: ExitCode
    error: str | None = None
    poison: tuple[int, ...] = ()
    retryable_rows: int = 0
    loaded: Mapping[int, str] = field(default_factory=dict)
    manifest_uri: str | None = None
    failures_uri: str | None = None


@dataclass(frozen=True)
class Context:
    """Shared by all job kinds.

    `s3` is a boto3 client with SDK retries on, for the few control objects (assignments, plan, markers); assets are
    fetched by `worker.fetch`, which owns its retries. `stop` is set by SIGTERM: stop taking new work and raise
    `Interrupted` once what is open has ended or `settings.stop_seconds` are over.
    """

    s3: Any
    report: Reporter
    stop: threading.Event
    settings: Settings
    assignment_uri: str


class Stopped(Exception):
    """An expected end that is not success."""

    code = ExitCode.CRASHED

    @property
    def ending(self) -> Ending:
        return Ending(self.code, error=str(self) or None)


class ConfigError(Stopped):
    """Would fail alike on any host; the message tells the operator what to change."""

    code = ExitCode.CONFIG_ERROR


class HostSick(Stopped):
    """This host cannot compute."""

    code = ExitCode.HOST_SICK


class OutOfMemory(Stopped):
    """The model does not fit."""

    code = ExitCode.OUT_OF_MEMORY


class Voided(Stopped):
    """The controller withdrew the assignment."""

    code = ExitCode.VOID


class Interrupted(Stopped):
    """SIGTERM was obeyed."""

    code = ExitCode.INTERRUPTED
