"""The command line beside the whole system: send, wait, search, ask why, order, and a doctor that knows what is ill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.commands.exits import Exit
from deploy.local.environment import TENANT
from deploy.local.resources import BucketName
from tests.e2e.site import ASSETS, BAD, MODEL, PREFIX, SHARDS, Site, eventually, pictures
from tests.integration.cli_site import Ran, reembed

INDEX = "photos"
KEY = f"{PREFIX}000.jpg"


class Stack:
    """A site with one controller, and a request that the command line sent and waited for."""

    def __init__(self, site: Site) -> None:
        self.site = site
        url = site.stack.start_controller("cli")
        self.environment = site.stack.environment() | {"REEMBED_API_URL": url}
        self.submitted = self.submit("cli", "--index", INDEX, "--wait", "--interval", "0.1", "-o", "json")

    def reembed(self, *arguments: object, **changes: str | None) -> Ran:
        return reembed(*arguments, **{**self.environment, **changes})

    def submit(self, key: str, *more: str) -> Ran:
        source, output = f"s3://{BucketName.PHOTOS}/{PREFIX}", f"s3://{BucketName.EMBEDDINGS}/{key}"
        flags = ["--tenant", TENANT, "--key", key, "--source", source, "--model", MODEL, "--to", output]
        return self.reembed("submit", *flags, "--tolerance", "0.5", *more)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Site.build(tmp_path_factory.mktemp("stack")) as site:
        yield Stack(site)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """The file behind KEY."""
    file = tmp_path / "query.jpg"
    file.write_bytes(pictures()[KEY])
    return file


def hits(ran: Ran) -> list[str]:
    assert ran.code is Exit.OK, ran.err
    assert [row["rank"] for row in ran.json] == list(range(1, len(ran.json) + 1))
    assert [row["distance"] for row in ran.json] == sorted(row["distance"] for row in ran.json)
    return [row["key"] for row in ran.json]


def test_submit_waits_to_the_end_with_progress_on_stderr(stack: Stack) -> None:
    ran = stack.submitted
    assert ran.code is Exit.OK, ran.err
    assert ran.json["state"] == "succeeded"
    assert ran.json["progress"]["done"] == ASSETS
    assert ran.json["progress"]["bad"] == len(BAD)
    assert f"waiting for request {ran.json['id']}" in ran.err
    assert f"succeeded: {ASSETS}/{ASSETS} assets, {len(BAD)} bad, {SHARDS}/{SHARDS} shards" in ran.err


def test_a_picture_finds_itself_by_alias_and_by_request(stack: Stack, picture: Path) -> None:
    for index in (INDEX, stack.submitted.json["id"]):
        ran = stack.reembed("search", index, picture, "-o", "json")
        assert len(hits(ran)) == 5
        assert hits(ran)[0] == KEY
        assert ran.json[0]["distance"] < 0.001
    assert len(hits(stack.reembed("search", INDEX, picture, "-k", ASSETS, "-o", "json"))) == ASSETS - len(BAD)


def test_a_search_in_a_table_for_people(stack: Stack, picture: Path) -> None:
    ran = stack.reembed("search", INDEX, picture, "-k", 2)
    assert [line.split()[0] for line in ran.out.splitlines()] == ["rank", "1", "2"]
    assert ran.err == ""


def test_an_asset_of_the_index_finds_its_neighbours_without_api_or_model(stack: Stack, picture: Path) -> None:
    by_picture = hits(stack.reembed("search", INDEX, picture, "-k", 4, "-o", "json"))
    by_key = stack.reembed("search", INDEX, "--key", KEY, "-k", 3, "-o", "json", REEMBED_API_URL="http://127.0.0.1:9")
    assert hits(by_key) == by_picture[1:]


def test_a_search_names_what_is_wrong(stack: Stack, picture: Path, tmp_path: Path) -> None:
    none = tmp_path / "none.jpg"
    page = tmp_path / "page.jpg"
    page.write_text("<html>")
    away = {"REEMBED_INDEX_URL": "postgresql://u:very-secret@127.0.0.1:9/x"}
    cases: list[tuple[list[object], dict[str, str | None], Exit, str]] = [
        (["nothing", picture], {}, Exit.NOT_FOUND, "no index 'nothing'"),
        ([INDEX, "--key", "none.jpg"], {}, Exit.NOT_FOUND, "no vector for 'none.jpg'"),
        ([INDEX, "--key", sorted(BAD)[0]], {}, Exit.NOT_FOUND, "not an ok one"),
        ([INDEX, none], {}, Exit.USAGE, f"cannot read {none}"),
        ([INDEX, page], {}, Exit.USAGE, f"{page} is no picture"),
        ([INDEX], {}, Exit.USAGE, "either a PICTURE or --key"),
        ([INDEX, picture, "--key", KEY], {}, Exit.USAGE, "either a PICTURE or --key"),
        ([INDEX, picture, "--model", "none@1"], {}, Exit.FAILED, "no model 'none@1'"),
        ([INDEX, picture, "--model", "efficientnet-lite0@1"], {}, Exit.FAILED, "does not fit"),
        ([INDEX, picture], {"REEMBED_INDEX_URL": None}, Exit.USAGE, "REEMBED_INDEX_URL is not set"),
        ([INDEX, picture], away, Exit.FAILED, "check REEMBED_INDEX_URL"),
        ([INDEX, picture], {"REEMBED_API_URL": "http://127.0.0.1:9"}, Exit.FAILED, "--model"),
    ]
    for arguments, changes, code, words in cases:
        ran = stack.reembed("search", *arguments, **changes)
        assert ran.code is code, (arguments, ran)
        assert words in ran.err
        assert "  fix: " in ran.err
        assert "very-secret" not in ran.err
        assert ran.out == ""


def test_a_search_that_would_prepare_pictures_otherwise_is_refused(stack: Stack, picture: Path) -> None:
    name = stack.submitted.json["id"]
    stack.site.rows("UPDATE requests SET preprocessing_digest = 'another' WHERE id = %(id)s RETURNING id", id=name)
    ran = stack.reembed("search", INDEX, picture)
    stack.site.rows(
        "UPDATE requests SET preprocessing_digest = %(was)s WHERE id = %(id)s RETURNING id",
        id=name,
        was=stack.submitted.json["preprocessing_digest"],
    )
    assert ran.code is Exit.FAILED
    assert "unlike" in ran.err


def test_why_is_told_from_request_to_attempt(stack: Stack) -> None:
    name = stack.submitted.json["id"]
    shards = stack.reembed("shard", "list", name, "-o", "json").json
    assert len(shards) == SHARDS
    detail = stack.reembed("shard", "show", name, 0, "-o", "json").json
    attempt = detail["attempts"][-1]["id"]
    facts = stack.reembed("attempt", "explain", attempt, "-o", "json").json["facts"]
    assert {"controller", "worker"} <= {fact["source"] for fact in facts}
    assert any("SubmitJob" in fact["fact"] for fact in facts)
    assert stack.reembed("queue", "list", "-o", "json").json[0]["name"] == "g6e"
    types = [event["type"] for event in stack.reembed("request", "events", name, "-o", "json").json]
    assert {"status.accepted", "status.succeeded"} <= set(types)


def test_an_order_is_carried_out_while_we_wait(stack: Stack) -> None:
    name = stack.submit("cancelled", "-o", "json").json["request_id"]
    eventually(lambda: stack.reembed("request", "show", name).code is Exit.OK, "intake read the message")
    ran = stack.reembed("request", "cancel", name, "--reason", "changed our minds", "--yes", "--wait", "-o", "json")
    assert ran.code is Exit.OK, ran.err
    assert ran.json["state"] == "done"
    end = stack.reembed("request", "wait", name, "--interval", "0.1", "-o", "json")
    assert (end.code, end.json["state"]) == (Exit.FAILED, "cancelled")
    (line,) = stack.reembed("request", "audit", name, "-o", "json").json
    assert line["reason"] == "changed our minds"


def test_a_healthy_deployment_passes_the_doctor(stack: Stack) -> None:
    ran = stack.reembed("doctor", "-o", "json")
    assert ran.code is Exit.OK, ran.out
    checks = {finding["check"]: finding for finding in ran.json}
    wanted = {"settings", "database", "api", "sqs requests", "sqs status", f"s3 {BucketName.CONTROL}"}
    definition = json.loads(stack.environment["REEMBED_GPU_QUEUES"])[0]["job_definition"]
    assert wanted | {"batch queue g6e", f"job definition {definition}"} <= set(checks)
    assert not any(finding["verdict"] == "FAIL" for finding in ran.json)


def _sick(environment: dict[str, str]) -> dict[str, tuple[dict[str, str | None], str]]:
    """Check → what is broken, and words of the fix."""
    queues = json.loads(environment["REEMBED_GPU_QUEUES"])
    queues[0] |= {"name": "p5", "job_definition": "infer:99"}
    return {
        "database": ({"REEMBED_DATABASE__URL": "postgresql://u:very-secret@127.0.0.1:9/x"}, "REEMBED_DATABASE__URL"),
        # A database of ours, but without our tables.
        "database ": ({"REEMBED_DATABASE__URL": environment["REEMBED_INDEX_URL"]}, "reembed db upgrade"),
        "settings": ({"REEMBED_MODELS": None}, "REEMBED_CONFIG"),
        "sqs rejects": ({"REEMBED_SQS__REJECTS": environment["REEMBED_SQS__REJECTS"] + "x"}, "REEMBED_SQS__REJECTS"),
        "s3 nowhere": ({"REEMBED_STORAGE__CONTROL_BUCKET": "nowhere"}, "s3:ListBucket"),
        "batch queue p5": ({"REEMBED_GPU_QUEUES": json.dumps(queues)}, "REEMBED_GPU_QUEUES"),
        "job definition infer:99": ({"REEMBED_GPU_QUEUES": json.dumps(queues)}, "register it"),
        "api": ({"REEMBED_API_URL": "http://127.0.0.1:9"}, "reembed controller run"),
        "aws": ({"AWS_ENDPOINT_URL_SQS": "nonsense"}, "AWS SDK"),
    }


def test_the_doctor_names_what_is_ill_and_the_cure(stack: Stack) -> None:
    for check, (changes, cure) in _sick(stack.environment).items():
        ran = stack.reembed("doctor", "-o", "json", **changes)
        assert ran.code is Exit.FAILED, (check, ran.out)
        failed = {finding["check"]: finding for finding in ran.json if finding["verdict"] == "FAIL"}
        assert check.strip() in failed, (check, ran.out)
        assert cure in failed[check.strip()]["fix"]
        assert "very-secret" not in ran.out
        assert f"{len(failed)} of {len(ran.json)} checks failed" in ran.err


def test_local_up_is_a_command_of_ours(stack: Stack) -> None:
    ran = reembed("local", "up", "--controllers", "0", "--state-dir", stack.site.stack.directory)
    assert "in use by process" in ran.err
    assert int(ran.code) == 3
