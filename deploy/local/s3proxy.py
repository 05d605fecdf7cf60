"""A reverse proxy before S3 that misbehaves on demand: throttling, delay, resets, lost answers, 409 and 412.

Owns fault injection for the object store, and nothing else: without rules each request and answer passes
through as bytes (the raw path, so that `//`, `+` and `%2B` stay three different things; all end-to-end
headers, so that signatures still match; bodies as streams).

Rules are set with `POST /_faults` (a JSON list, see `Rule`; it replaces those before), counted by
`GET /_faults`, and dropped, counts too, with `DELETE /_faults`. No bucket can be called `_faults`. The first
rule that matches and fires decides.

Run as `python -m deploy.local.s3proxy --port P --target URL`; binds 127.0.0.1. When S3 is away it answers
502, which clients retry.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import unquote
from xml.sax.saxutils import escape

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, hdrs, web
from multidict import CIMultiDict
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from yarl import URL

CONTROL_PATH = "/_faults"
PIECE_BYTES = 256 * 1024
HOP_BY_HOP = frozenset(
    name.lower()
    for name in (
        "Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "TE", "Trailer",
        "Transfer-Encoding", "Upgrade", "Expect",
    )
)  # fmt: skip
ADDED_BY_THE_CLIENT = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE, hdrs.USER_AGENT)


class Action(StrEnum):
    """What a rule does to a request; also the names of the counters."""

    THROTTLE = "throttled"  # 503 SlowDown
    CONFLICT = "conflicted"  # 409 ConditionalRequestConflict: two conditional writes at once
    PRECONDITION = "precondition_failed"  # 412 PreconditionFailed
    RESET = "reset"  # the connection breaks before S3 sees the request
    LOSE_ANSWER = "answer_lost"  # S3 does it, the connection breaks before the answer
    DELAY = "delayed"  # waits, then passes through


class Rule(BaseModel):
    """One fault: which requests for objects it may hit, and how many of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Action
    prefix: str = Field("", description="Start of `bucket/key`, decoded, as in `photos/demo/`.")
    methods: frozenset[str] = Field(frozenset({"GET"}), description="Upper case.")
    at_most: int | None = Field(None, ge=0, description="Fires this often, then no more. None: no limit.")
    share: float = Field(1.0, ge=0, le=1, description="Probability that a matching request is hit.")
    seconds: float = Field(0.0, ge=0, description="How long a request waits before the action.")


class Refusal(NamedTuple):
    """An S3 error answer."""

    status: int
    code: str
    message: str


REFUSALS = {
    Action.THROTTLE: Refusal(503, "SlowDown", "Please reduce your request rate."),
    Action.CONFLICT: Refusal(
        409, "ConditionalRequestConflict", "A conflicting operation occurred during this request."
    ),
    Action.PRECONDITION: Refusal(
        412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold"
    ),
}
_RULES = TypeAdapter(list[Rule])


class Faults:
    """The rules in force, how often each has fired, and the dice (seeded: a run can be repeated)."""

    def __init__(self, seed: int = 0) -> None:
        self._dice = random.Random(seed)
        self._rules: list[Rule] = []
        self._fired: Counter[int] = Counter()
        self.counts: Counter[Action] = Counter()

    def replace(self, rules: list[Rule]) -> None:
        """Put these rules in force; counters go on."""
        self._rules = rules
        self._fired.clear()

    def clear(self) -> None:
        """No rules, all counters zero."""
        self.replace([])
        self.counts.clear()

    def choose(self, method: str, raw_path: str) -> Rule | None:
        """The rule that hits this request, counted as fired."""
        bucket_and_key = unquote(raw_path.partition("?")[0]).removeprefix("/")
        bucket, _, key = bucket_and_key.partition("/")
        if not bucket or not key:
            return None
        for position, rule in enumerate(self._rules):
            matches = method in rule.methods and bucket_and_key.startswith(rule.prefix)
            spent = rule.at_most is not None and self._fired[position] >= rule.at_most
            if matches and not spent and self._dice.random() < rule.share:
                self._fired[position] += 1
                self.counts[rule.action] += 1
                return rule
        return None

    def report(self) -> dict[str, int]:
        """Every counter, fired or not."""
        return {action.value: self.counts[action] for action in Action}


class Proxy:
    """The aiohttp application: one control resource, everything else goes to S3."""

    def __init__(self, target: str, faults: Faults) -> None:
        self._target = target.rstrip("/")
        self._faults = faults
        self._session: ClientSession | None = None

    def application(self) -> web.Application:
        """The application, with no limit on body sizes."""
        app = web.Application(client_max_size=0)
        app.cleanup_ctx.append(self._open_session)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        return app

    async def _open_session(self, _: web.Application) -> AsyncIterator[None]:
        self._session = ClientSession(
            connector=TCPConnector(limit=0),
            timeout=ClientTimeout(total=None, sock_connect=10),
            auto_decompress=False,
            cookie_jar=DummyCookieJar(),
            skip_auto_headers=ADDED_BY_THE_CLIENT,
        )
        yield
        await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.raw_path.partition("?")[0] == CONTROL_PATH:
            return await self._control(request)
        rule = self._faults.choose(request.method, request.raw_path)
        if rule is None:
            return await self._forward(request)
        await asyncio.sleep(rule.seconds)
        if rule.action in REFUSALS:
            return _refuse(REFUSALS[rule.action], request)
        if rule.action is Action.RESET:
            return _break_connection(request)
        return await self._forward(request, lose_answer=rule.action is Action.LOSE_ANSWER)

    async def _control(self, request: web.Request) -> web.Response:
        if request.method == hdrs.METH_POST:
            try:
                self._faults.replace(_RULES.validate_json(await request.read()))
            except ValueError as error:
                return web.Response(status=422, text=str(error))
        elif request.method == hdrs.METH_DELETE:
            self._faults.clear()
        return web.json_response(self._faults.report())

    async def _forward(self, request: web.Request, *, lose_answer: bool = False) -> web.StreamResponse:
        assert self._session is not None
        url = URL(self._target + request.raw_path, encoded=True)
        body = request.content if request.body_exists else None
        headers = _end_to_end(request.headers)
        try:
            async with self._session.request(
                request.method, url, headers=headers, data=body, allow_redirects=False
            ) as answer:
                if lose_answer:
                    await answer.read()
                    return _break_connection(request)
                response = web.StreamResponse(status=answer.status, reason=answer.reason)
                response.headers.extend(_end_to_end(answer.headers))
                await response.prepare(request)
                async for piece in answer.content.iter_chunked(PIECE_BYTES):
                    await response.write(piece)
                await response.write_eof()
                return response
        except (ClientError, TimeoutError) as error:
            return web.Response(status=502, text=f"S3 is away: {error}")


def _end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP)


def _refuse(refusal: Refusal, request: web.Request) -> web.Response:
    resource = escape(unquote(request.raw_path.partition("?")[0]))
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{refusal.code}</Code><Message>{refusal.message}</Message>"
        f"<Resource>{resource}</Resource><RequestId>FAULT</RequestId></Error>"
    )
    return web.Response(status=refusal.status, body=body.encode(), content_type="application/xml")


def _break_connection(request: web.Request) -> web.Response:
    """Drop the connection without a byte of answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="S3 reverse proxy with faults on demand")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--target", required=True, help="base URL of S3")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    proxy = Proxy(arguments.target, Faults(arguments.seed))
    web.run_app(proxy.application(), host="127.0.0.1", port=arguments.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
