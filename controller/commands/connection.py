"""The REST API as the commands call it: one synchronous client whose failures are `CliError`s with an exit code."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import quote

import httpx
import typer

from controller.commands.exits import BY_STATUS, CliError, Exit, Unanswered

DEFAULT_URL = "http://127.0.0.1:8080"
TOKEN_VARIABLE = "REEMBED_API__TOKEN"
TIMEOUT_SECONDS = 30.0
PAGE = 500
_TOKEN_FIX = f"give the controller's api.token: a file with --token-file, or {TOKEN_VARIABLE}"

UrlOption = Annotated[str, typer.Option("--url", envvar="REEMBED_API_URL", help="Where the controller's API is.")]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file", help=f"File with the API token; without it {TOKEN_VARIABLE} is used. Never a flag of its own."
    ),
]
ActorOption = Annotated[
    str | None,
    typer.Option("--actor", envvar="REEMBED_ACTOR", help="Who orders this, for the audit trail; default: your login."),
]
ReasonOption = Annotated[
    str, typer.Option("--reason", help="Why; at least 5 characters, kept in the audit trail.", show_default=False)
]


class Api:
    """A context manager."""

    def __init__(self, url: str, token: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._url = url
        try:
            self._http = httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_SECONDS)
        except httpx.InvalidURL as error:
            raise _no_url(url) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, *parts: object, **query: Any) -> Any:
        """`parts` are path segments below /api/v1; a query parameter that is None is left out."""
        given = {name: value for name, value in query.items() if value is not None}
        return self._call("GET", parts, params=given)

    def post(self, *parts: object, body: Mapping[str, Any] | str, actor: str | None = None) -> Any:
        headers = {"Content-Type": "application/json"}
        if actor is not None:
            headers["X-Actor"] = actor
        if isinstance(body, str):
            return self._call("POST", parts, content=body.encode(), headers=headers)
        return self._call("POST", parts, json=dict(body), headers=headers)

    def every(self, *parts: object, cursor: str, limit: int | None, **query: Any) -> Iterator[Any]:
        """Rows of a paged list up to `limit`; `cursor` is the name of the parameter that takes `next`."""
        left = limit
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            page = self.get(*parts, limit=size, **query)
            yield from page["items"]
            left = None if left is None else left - len(page["items"])
            if page["next"] is None:
                return
            query[cursor] = page["next"]

    def _call(self, method: str, parts: tuple[object, ...], **options: Any) -> Any:
        path = "/api/v1/" + "/".join(quote(str(part), safe="") for part in parts)
        try:
            answer = self._http.request(method, path, **options)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise _no_url(self._url) from error
        except httpx.HTTPError as error:
            fix = "is a controller running there? --url or REEMBED_API_URL says where; `reembed local up` starts one"
            raise Unanswered(f"no answer from {self._url}: {_words(error)}", fix) from error
        if not answer.is_success:
            raise _problem(answer)
        try:
            return answer.json()
        except ValueError as error:
            fix = "--url or REEMBED_API_URL must name the controller's API"
            raise CliError(
                Exit.FAILED, f"{answer.url} is no API of a controller: its answer is no JSON", fix
            ) from error


def _problem(answer: httpx.Response) -> CliError:
    """The API's own words where it has any."""
    try:
        document = dict(answer.json())
    except (ValueError, TypeError):
        document = {}
    detail = str(document.pop("detail", f"{answer.url} answered {answer.status_code}"))
    fix = str(document.pop("fix", "is this the controller's URL?"))
    if answer.status_code == 401:
        fix = _TOKEN_FIX
    code = BY_STATUS.get(answer.status_code, Exit.FAILED)
    if code is Exit.FAILED:
        return Unanswered(detail, fix, **document)
    return CliError(code, detail, fix, **document)


def _no_url(text: str) -> CliError:
    return CliError(Exit.USAGE, f"not a URL: {text!r}", "write it as http://host:port, in --url or REEMBED_API_URL")


def connect(url: str, token_file: Path | None) -> Api:
    return Api(url, _token(token_file))


def _token(token_file: Path | None) -> str | None:
    if token_file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        token = token_file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise CliError(Exit.USAGE, f"cannot read --token-file: {error}", _TOKEN_FIX) from error
    if not token.isascii() or not token.isprintable() or not token:
        raise CliError(Exit.USAGE, f"--token-file {token_file} does not hold one line of plain text", _TOKEN_FIX)
    return token


def actor_name(given: str | None) -> str:
    """Without spaces and in ASCII, as the header wants it."""
    try:
        name = given or getpass.getuser()
    except (OSError, KeyError):
        name = "cli"
    return re.sub(r"[^\x21-\x7e]", "_", name)[:64]


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
