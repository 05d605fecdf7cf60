"""Who may call: deny by default, before any route is looked up.

With a token, every call needs it, apart from the health checks and the page itself (it holds no data; its script
asks for the token). Without one the API serves loopback only, and then guards against what a browser can be talked
into: a name that resolves to 127.0.0.1 (the Host header must be a loopback name) and posts from other sites.
"""

from __future__ import annotations

import hmac
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from controller.api.problems import Problem, ProblemCode, response

#: Matched exactly, never as a prefix.
OPEN_PATHS = frozenset({"/livez", "/readyz", "/"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def is_loopback(host: str) -> bool:
    """A loopback address or `localhost`."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_bind(host: str, token: str | None) -> None:
    """ValueError when the API would be open to the network without a token."""
    if token is not None and not token.strip():
        raise ValueError("api.token is empty: set a real token, or leave it out and bind 127.0.0.1")
    if token is None and not is_loopback(host):
        raise ValueError(
            f"api.host {host!r} is not a loopback address and api.token is not set: "
            "set REEMBED_API__TOKEN, or bind 127.0.0.1"
        )


class Gate:
    """ASGI middleware; answers 401 or 403 itself, else passes on."""

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._objection(scope) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
            return
        headers = {"WWW-Authenticate": "Bearer"} if problem.document.status == 401 else None
        await response(problem, headers)(scope, receive, send)

    def _objection(self, scope: Scope) -> Problem | None:
        headers = Headers(scope=scope)
        if self._token is None and not is_loopback(_host_name(headers.get("host", ""))):
            fix = "call it as 127.0.0.1 or localhost, or configure api.token"
            return Problem(403, ProblemCode.FORBIDDEN_ORIGIN, "without a token only loopback names are served", fix)
        if scope["method"] not in _SAFE_METHODS and headers.get("sec-fetch-site", "none") not in (
            "same-origin",
            "none",
        ):
            fix = "call the API from its own page or from a script"
            return Problem(403, ProblemCode.FORBIDDEN_ORIGIN, "a page of another site may not change anything", fix)
        if self._token is None or scope["path"] in OPEN_PATHS:
            return None
        return self._unless_known(headers.get("authorization"))

    def _unless_known(self, header: str | None) -> Problem | None:
        assert self._token is not None
        scheme, _, given = (header or "").partition(" ")
        known = hmac.compare_digest(given.strip().encode(), self._token.encode())
        if scheme.lower() == "bearer" and known:
            return None
        detail = "the token is not the right one" if header else "a bearer token is needed"
        return Problem(401, ProblemCode.UNAUTHORIZED, detail, "send `Authorization: Bearer <api.token>`")


def _host_name(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
