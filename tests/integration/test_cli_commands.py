"""What the commands do over a served API: lists, orders, messages; migrations on a database of their own."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.commands import connection
from controller.commands.exits import Exit
from controller.core.records import OperationKind
from schema.migrations.run import head
from schema.states import Outcome, RequestState, ShardState
from tests.builders import ago, attempt, job, request, shard
from tests.integration.api_site import payload
from tests.integration.cli_site import COMMAND, CliSite, environment, reembed, served
from tests.postgres import TestServer

REASON = ("--reason", "images were repaired")
TIMEOUT_SECONDS = 60


@pytest.fixture
def site(database_url: str) -> Iterator[CliSite]:
    with served(database_url) as running:
        yield running


@pytest.fixture
def failures(site: CliSite) -> CliSite:
    """r-1 in attention: shards 0 and 2 crashed, 1 bad_data, 3 succeeded, 4 pending; one live attempt at it."""
    crashed = {"state": ShardState.FAILED, "last_outcome": Outcome.CRASHED, "reason": "crashed: 4 failures"}
    site.put(
        request(state=RequestState.ATTENTION, shards=5, assets=200, reason="3 shards failed"),
        shard(0, **crashed),
        shard(1, state=ShardState.FAILED, last_outcome=Outcome.BAD_DATA),
        shard(2, **crashed),
        shard(3, state=ShardState.SUCCEEDED, last_outcome=Outcome.SUCCEEDED, ok=40, bad=0, statuses={"ok": 40}),
        shard(4),
        job(),
        attempt(4),
    )
    return site


READS = [
    ["request", "list"],
    ["request", "show", "r-1"],
    ["request", "events", "r-1"],
    ["request", "audit", "r-1"],
    ["shard", "list", "r-1"],
    ["shard", "show", "r-1", "4"],
    ["attempt", "show", "a-4"],
    ["attempt", "explain", "a-4"],
    ["queue", "list"],
]


@pytest.mark.parametrize("arguments", READS, ids=" ".join)
def test_a_read_prints_a_table_or_json_and_no_talk(failures: CliSite, arguments: list[str]) -> None:
    table, as_json = failures.reembed(*arguments), failures.reembed(*arguments, "-o", "json")
    assert (table.code, as_json.code) == (Exit.OK, Exit.OK)
    assert table.err == as_json.err == ""
    assert table.out
    assert as_json.json is not None


def test_an_empty_list_is_still_json(site: CliSite) -> None:
    assert site.reembed("request", "list", "-o", "json").out == "[]\n"
    assert site.reembed("request", "list").out.startswith("id  tenant  model  state")


def test_lists_are_filtered_and_go_over_pages(site: CliSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PAGE", 2)
    for number in range(5):
        state = RequestState.SUCCEEDED if number % 2 else RequestState.RUNNING
        site.put(request(id=f"r-{number}", idempotency_key=str(number), state=state, created_at=ago(number)))

    def ids(*arguments: object) -> list[str]:
        return [row["id"] for row in site.reembed("request", "list", *arguments, "-o", "json").json]

    assert ids() == ["r-0", "r-1", "r-2", "r-3", "r-4"]
    assert ids("--state", "succeeded") == ["r-1", "r-3"]
    assert ids("--tenant", "nobody") == []
    cut = site.reembed("request", "list", "--limit", 3)
    assert len(cut.out.splitlines()) == 4
    assert "--limit shows more" in cut.err


def test_shards_are_filtered_by_state_and_outcome(failures: CliSite) -> None:
    def numbers(*arguments: object) -> list[int]:
        return [row["shard"] for row in failures.reembed("shard", "list", "r-1", *arguments, "-o", "json").json]

    assert numbers("--state", "failed", "--state", "pending") == [0, 1, 2, 4]
    assert numbers("--outcome", "crashed") == [0, 2]
    assert numbers("--limit", 2) == [0, 1]
    assert numbers("--limit", 2, "--all") == [0, 1, 2, 3, 4]


# --- orders -------------------------------------------------------------------------------------------------------


def test_a_requeue_counts_first_and_writes_nothing_on_a_dry_run(failures: CliSite) -> None:
    ran = failures.reembed("shard", "requeue", "r-1", "--outcome", "crashed", *REASON, "--dry-run", "-o", "json")
    assert ran.code is Exit.OK
    assert ran.json.items() >= {"matched": 2, "eligible": 2, "skipped": {}, "exact": True}.items()
    assert failures.pending() == []


def test_without_a_terminal_nothing_is_asked_and_nothing_done(failures: CliSite) -> None:
    for order in (["shard", "requeue", "r-1", "--failed"], ["request", "cancel", "r-1"], ["request", "fail", "r-1"]):
        ran = failures.reembed(*order, *REASON, typed="y\n")
        assert ran.code is Exit.USAGE
        assert "add --yes" in ran.err
    assert failures.pending() == []


@pytest.mark.parametrize(
    ("selection", "selector"),
    [
        (["--failed"], {"state": "failed"}),
        (["--outcome", "crashed"], {"outcome": "crashed"}),
        (["--shard", "0", "--shard", "2", "--queue", "g6"], {"shards": [0, 2], "queue": "g6"}),
    ],
)
def test_a_requeue_is_written_down_with_who_and_why(failures: CliSite, selection: list[str], selector: Any) -> None:
    ran = failures.reembed("shard", "requeue", "r-1", *selection, *REASON, "--yes", "-o", "json")
    assert ran.code is Exit.OK
    (order,) = failures.pending()
    assert (order.id, order.kind) == (ran.json["id"], OperationKind.REQUEUE_SHARDS)
    assert (order.actor, order.reason, order.selector) == ("ada", REASON[1], selector)
    shown = failures.reembed("operation", "show", order.id, "-o", "json")
    assert (shown.code, shown.json["state"]) == (Exit.OK, "pending")


@pytest.mark.parametrize("selection", [[], ["--failed", "--shard", "0"], ["--outcome", "lost", "--failed"]])
def test_a_requeue_needs_exactly_one_selection(failures: CliSite, selection: list[str]) -> None:
    ran = failures.reembed("shard", "requeue", "r-1", *selection, *REASON, "--yes")
    assert ran.code is Exit.USAGE
    assert "exactly one of --shard, --outcome and --failed" in ran.err
    assert failures.pending() == []


@pytest.mark.parametrize(("answer", "code", "orders"), [("y", Exit.OK, 1), ("n", Exit.FAILED, 0), ("", Exit.FAILED, 0)])
def test_on_a_terminal_it_asks_with_the_count(failures: CliSite, answer: str, code: Exit, orders: int) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "w") as keyboard:
        process = subprocess.Popen(
            [*COMMAND, "shard", "requeue", "r-1", "--shard", "0", "--shard", "3", *REASON, "--queue", "g6"],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(REEMBED_API_URL=failures.url),
        )
        os.close(theirs)
        keyboard.write(f"{answer}\n")
        keyboard.flush()
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == code, err
    question = "Requeue 1 failed shards of request r-1, g6 first (skipped: 1 succeeded)? [y/N]"
    assert question in err
    assert question not in out
    assert len(failures.pending()) == orders


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("cancel", OperationKind.CANCEL_REQUEST),
        ("accept-failures", OperationKind.ACCEPT_FAILURES),
        ("fail", OperationKind.FAIL_REQUEST),
    ],
)
def test_orders_that_concern_a_request(failures: CliSite, action: str, kind: OperationKind) -> None:
    ran = failures.reembed("request", action, "r-1", *REASON, "--actor", "Bo B", "--yes", "-o", "json")
    assert ran.code is Exit.OK
    (order,) = failures.pending()
    assert (order.kind, order.actor, order.reason) == (kind, "Bo_B", REASON[1])


def test_resume_needs_a_paused_request(failures: CliSite) -> None:
    assert failures.reembed("request", "resume", "r-1", *REASON).code is Exit.CONFLICT
    failures.execute("UPDATE requests SET paused = true, state = 'running' WHERE id = 'r-1'")
    assert failures.reembed("request", "resume", "r-1", *REASON).code is Exit.OK


def test_a_reason_must_say_something(failures: CliSite) -> None:
    ran = failures.reembed("request", "cancel", "r-1", "--reason", "x", "--yes")
    assert ran.code is Exit.USAGE
    assert "(reason)" in ran.err
    assert failures.reembed("request", "cancel", "r-1", "--yes").code is Exit.USAGE


# --- messages -----------------------------------------------------------------------------------------------------


def test_submit_sends_the_payload_of_a_file_of_an_event_or_of_flags(site: CliSite, tmp_path: Path) -> None:
    file, event = tmp_path / "payload.json", tmp_path / "event.json"
    file.write_text(json.dumps(payload(labels={"team": "søk"})))
    head = {"specversion": "1.0", "id": "1", "source": "s", "type": "request.submit"}
    event.write_text(json.dumps({**head, "data": payload(labels={"team": "søk"})}))
    flags = ["--tenant", "stock", "--key", "k-1", "--source", "s3://photos/p/", "--model", "tiny@1"]
    flags += ["--to", "s3://embeddings/out", "--label", "team=søk"]
    answers = [site.reembed("submit", *given, "-o", "json") for given in ([file], [event], flags)]
    assert [ran.code for ran in answers] == [Exit.OK] * 3
    assert len({ran.json["request_id"] for ran in answers}) == 1
    assert [json.loads(body)["data"] for body in site.queue.bodies] == [payload(labels={"team": "søk"})] * 3


def test_submit_dry_run_sends_nothing(site: CliSite) -> None:
    ran = site.reembed("submit", "-", "--dry-run", "-o", "json", typed=json.dumps(payload()))
    assert ran.json.items() >= {"valid": True, "duplicate": False}.items()
    assert site.queue.bodies == []


def test_a_file_and_flags_together_are_refused(site: CliSite, tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text(json.dumps(payload()))
    for flags in (["--priority", "0"], ["--label", "a=b"], ["--tolerance", "0"]):
        assert site.reembed("submit", file, *flags).code is Exit.USAGE
    assert site.queue.bodies == []


def test_a_refusal_names_field_and_fix(site: CliSite) -> None:
    ran = site.reembed("submit", "-", typed=json.dumps(payload(model="other@1")))
    assert ran.code is Exit.USAGE
    assert "(data.model)" in ran.err
    assert "fix: check name and version" in ran.err


def test_a_queue_that_is_down_is_no_acceptance(site: CliSite) -> None:
    site.queue.down = True
    ran = site.reembed("submit", "-", typed=json.dumps(payload()))
    assert ran.code is Exit.FAILED
    assert "nothing is known to have happened" in ran.err


def test_a_request_that_never_appears_is_unknown(site: CliSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.commands.waiting.UNKNOWN_SECONDS", 0.1)
    ran = site.reembed("request", "wait", "r-none", "--interval", "0.05")
    assert ran.code is Exit.NOT_FOUND
    assert "reject queue" in ran.err


def test_waiting_through_attention_goes_on(failures: CliSite) -> None:
    stops = failures.reembed("request", "wait", "r-1")
    assert stops.code is Exit.FAILED
    assert "needs an operator: 3 shards failed" in stops.err
    goes_on = failures.reembed(
        "request", "wait", "r-1", "--through-attention", "--timeout", "0.2", "--interval", "0.05"
    )
    assert goes_on.code is Exit.TIMEOUT


def test_validate_needs_no_network_and_tells_every_fault() -> None:
    wrong = payload(tenant="Stock", model="tiny", priorty=1)
    ran = reembed("request", "validate", "-", "-o", "json", typed=json.dumps(wrong))
    assert ran.code is Exit.USAGE
    assert [fault["field"] for fault in ran.json["faults"]] == ["data.tenant", "data.model"]
    table = reembed("request", "validate", "-", typed=json.dumps(wrong))
    assert table.code is Exit.USAGE
    assert [line.split()[0] for line in table.out.splitlines()] == ["field", "data.tenant", "data.model"]
    fine = reembed("request", "validate", "-", typed=json.dumps(payload(priorty=1)))
    assert fine.code is Exit.OK
    assert "did you mean priority?" in fine.err


def test_validate_with_settings_knows_the_deployment() -> None:
    missing = reembed("request", "validate", "-", "--settings", typed=json.dumps(payload()))
    assert missing.code is Exit.USAGE
    assert "REEMBED_CONFIG" in missing.err
    settings = {
        "REEMBED_DATABASE__URL": "postgresql://nowhere/x",
        "REEMBED_STORAGE__CONTROL_BUCKET": "control",
        "REEMBED_CPU": json.dumps({"queue": "cpu", "prepare_definition": "p:1", "index_definition": "i:1"}),
        "REEMBED_SQS": json.dumps(dict.fromkeys(("requests", "reports", "batch_events", "rejects", "status"), "u")),
        "REEMBED_GPU_QUEUES": json.dumps([{"name": "g6e", "job_definition": "e:1"}]),
        "REEMBED_MODELS": '["tiny@1"]',
        "REEMBED_TENANTS": json.dumps({"stock": {"inputs": ["s3://photos/"], "outputs": ["s3://embeddings/"]}}),
    }
    for changes, code in [({}, Exit.OK), ({"tenant": "nobody"}, Exit.FORBIDDEN), ({"queues": ["p5"]}, Exit.USAGE)]:
        text = json.dumps(payload(**changes))
        assert reembed("request", "validate", "-", "--settings", typed=text, **settings).code is code


# --- the database ---------------------------------------------------------------------------------------------------


def test_db_upgrade_brings_a_new_database_up_to_date(postgres_server: TestServer) -> None:
    with postgres_server.database(migrated=False) as url:
        before = reembed("db", "current", "-o", "json", REEMBED_DATABASE__URL=url)
        assert (before.code, before.json) == (Exit.FAILED, {"revision": None, "head": head(), "up_to_date": False})
        first = reembed("db", "upgrade", "-o", "json", REEMBED_DATABASE__URL=url)
        assert (first.code, first.json) == (Exit.OK, {"before": None, "revision": head(), "changed": True})
        again = reembed("db", "upgrade", "-o", "json", REEMBED_DATABASE__URL=url)
        assert again.json["changed"] is False
        assert reembed("db", "current", REEMBED_DATABASE__URL=url).code is Exit.OK
        assert reembed("db", "upgrade", "no-such-revision", REEMBED_DATABASE__URL=url).code is Exit.FAILED


def test_a_database_that_is_away_or_not_named_says_which_setting() -> None:
    away = reembed("db", "upgrade", REEMBED_DATABASE__URL="postgresql://u:very-secret@127.0.0.1:9/x")
    assert away.code is Exit.FAILED
    assert "REEMBED_DATABASE__URL" in away.err
    assert "very-secret" not in away.err
    unnamed = reembed("db", "upgrade")
    assert unnamed.code is Exit.USAGE
    assert "REEMBED_DATABASE__URL" in unnamed.err
    assert reembed("db", "upgrade", REEMBED_CONFIG="/no/such/file").code is Exit.USAGE


def test_controller_run_without_settings_names_them() -> None:
    argv = [*COMMAND, "controller", "run"]
    ran = subprocess.run(argv, capture_output=True, text=True, env=environment(), timeout=TIMEOUT_SECONDS, check=False)
    assert ran.returncode == Exit.USAGE
    assert "database" in ran.stdout
    assert "Traceback" not in ran.stderr
