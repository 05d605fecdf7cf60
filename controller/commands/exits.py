"""Exit codes, documented and tested, and the one exception that carries one."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """What a script may rely on."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    FORBIDDEN = 4
    CONFLICT = 5
    PARTIAL = 6
    TIMEOUT = 7
    INTERRUPTED = 130


MEANINGS: Mapping[Exit, str] = {
    Exit.OK: "done",
    Exit.FAILED: "failed: the request or the check failed, or the controller did not answer",
    Exit.USAGE: "the command, the message or the settings are wrong, or `--yes` is needed where nobody can be asked",
    Exit.NOT_FOUND: "there is no such request, shard, attempt, operation, index or asset",
    Exit.FORBIDDEN: "no token, a wrong one, or the tenant may not do that",
    Exit.CONFLICT: "the present state does not allow it",
    Exit.PARTIAL: "done in part: some shards were skipped, or the output has accepted gaps",
    Exit.TIMEOUT: "not over yet when the time given to a wait was",
    Exit.INTERRUPTED: "interrupted with Ctrl-C; what was ordered goes on",
}

#: HTTP status → exit code. Any other is no usable answer.
BY_STATUS: Mapping[int, Exit] = {
    401: Exit.FORBIDDEN,
    403: Exit.FORBIDDEN,
    404: Exit.NOT_FOUND,
    409: Exit.CONFLICT,
    413: Exit.USAGE,
    415: Exit.USAGE,
    422: Exit.USAGE,
}


class CliError(Exception):
    """Ends the command with `code`; said on stderr, with what to do about it."""

    def __init__(self, code: Exit, detail: str, fix: str = "", /, **more: Any) -> None:
        super().__init__(detail)
        self.code = code
        self.document: dict[str, Any] = {"detail": detail, **({"fix": fix} if fix else {}), **more}


class Unanswered(CliError):
    """No usable answer from the controller; a wait may go on."""

    def __init__(self, detail: str, fix: str, /, **more: Any) -> None:
        super().__init__(Exit.FAILED, detail, fix, **more)
