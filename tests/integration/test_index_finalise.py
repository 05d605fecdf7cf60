"""Finalising a request: the output audited against the plan (I11), manifest, failures, and the change of the alias."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest

from schema import layout
from schema.exit_codes import ExitCode
from schema.plan import Manifest
from tests.produced import BAD, KEYS, MakeOutput, Produced, indexed, run, unit_vector
from worker.context import ConfigError, Voided
from worker.index import job, pgvector
from worker.index.search import nearest


def changes(database: psycopg.Connection, alias: str) -> list[tuple[str, str | None, str]]:
    statement = "SELECT index_table, previous, request_id FROM reembed_alias_changes WHERE alias = %s ORDER BY id"
    return database.execute(statement, [alias]).fetchall()


def failures(produced: Produced) -> list[dict[str, Any]]:
    return pq.read_table(io.BytesIO(produced.get(layout.FAILURES))).to_pylist()


def manifest(produced: Produced) -> Manifest:
    return Manifest.model_validate_json(produced.get(layout.MANIFEST))


def test_finalising_writes_manifest_failures_and_alias(
    produced: Produced, index_url: str, index_database: psycopg.Connection
) -> None:
    run(produced, "load")
    ending = run(produced, "finalise")
    assert ending.manifest_uri == produced.output.uri + "manifest.json"
    assert ending.failures_uri == produced.output.uri + "failures.parquet"
    assert set(ending.loaded) == {0, 1, 2}
    found = manifest(produced)
    assert (found.assets, found.ok, found.bad) == (25, 22, 3)
    assert found.statuses == {"denied": 1, "missing": 1, "ok": 22, "unreadable": 1}
    assert [(shard.shard, shard.rows, shard.ok, len(shard.chunks)) for shard in found.shards] == [
        (0, 10, 8, 3),
        (1, 10, 10, 3),
        (2, 5, 4, 2),
    ]
    columns = ("key", "shard", "chunk", "status", "http_status")
    assert [tuple(row[column] for column in columns) for row in failures(produced)] == [
        (KEYS[3], 0, 0, "missing", 404),
        (KEYS[4], 0, 1, "unreadable", None),
        (KEYS[23], 2, 0, "denied", 403),
    ]
    assert changes(index_database, produced.alias) == [(produced.table, None, produced.request_id)]
    hits = nearest(index_url, produced.alias, unit_vector(KEYS[7]).tolist(), 5)
    assert hits[0].key == KEYS[7]
    assert hits[0].distance == pytest.approx(0, abs=1e-3)
    assert [hit.distance for hit in hits] == sorted(hit.distance for hit in hits)
    assert len(hits) == 5


def test_finalising_again_changes_nothing(produced: Produced, index_database: psycopg.Connection) -> None:
    run(produced, "finalise")
    written = produced.get(layout.MANIFEST), produced.get(layout.FAILURES)
    run(produced, "finalise")
    assert (produced.get(layout.MANIFEST), produced.get(layout.FAILURES)) == written
    assert len(changes(index_database, produced.alias)) == 1


def test_finalising_loads_what_the_ledger_lacks(produced: Produced, index_database: psycopg.Connection) -> None:
    run(produced, "load", shards=[produced.markers[1]])
    run(produced, "finalise")
    assert set(indexed(index_database, produced.table)) == set(KEYS) - set(BAD)


def test_an_accepted_gap_is_in_the_manifest_and_not_in_the_index(
    produced: Produced, index_database: psycopg.Connection
) -> None:
    run(produced, "load")
    del produced.markers[1]
    run(produced, "finalise", gaps=[1])
    found = manifest(produced)
    assert (found.assets, found.ok + found.bad, found.gaps) == (25, 15, [1])
    assert {shard for shard, _ in indexed(index_database, produced.table).values()} == {0, 2}


def test_without_an_alias_there_is_only_parquet(produced: Produced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(pgvector.URL_VARIABLE)
    ending = run(produced, "finalise", index=None)
    assert (ending.code, ending.loaded, manifest(produced).index) == (ExitCode.OK, {}, None)


def test_a_request_without_failures_has_an_empty_failures_file(make_output: MakeOutput) -> None:
    produced = make_output(bad={})
    run(produced, "finalise")
    assert failures(produced) == []
    assert manifest(produced).bad == 0


def test_a_like_request_keeps_the_earlier_manifest(produced: Produced, index_database: psycopg.Connection) -> None:
    run(produced, "finalise")
    written = produced.get(layout.MANIFEST)
    plan = produced.client.get_object(Bucket=produced.control, Key=layout.plan_key(produced.request_id))["Body"].read()
    produced.put(produced.control, layout.plan_key("like"), plan)
    ending = run(produced, "finalise", request_id="like", index=produced.alias + "-2")
    assert ending.code is ExitCode.OK
    assert produced.get(layout.MANIFEST) == written
    assert changes(index_database, produced.alias + "-2") == [(produced.table, None, "like")]


def test_a_redone_shard_replaces_the_manifest_and_an_older_one_never_does(produced: Produced) -> None:
    earlier = dict(produced.markers)
    run(produced, "finalise")
    produced.bad = {}
    produced.commit(0, generation=2)
    run(produced, "finalise")
    assert (manifest(produced).bad, len(failures(produced))) == (1, 1)
    produced.markers = earlier
    with pytest.raises(ConfigError, match="names later commits"):
        run(produced, "finalise")
    assert manifest(produced).bad == 1


def test_an_alias_moves_on_and_a_repetition_does_not_move_it_back(
    make_output: MakeOutput, index_url: str, index_database: psycopg.Connection
) -> None:
    first, second = make_output(), make_output(keys=KEYS[:5], bad={})
    second.alias = first.alias
    run(first, "finalise")
    run(second, "finalise")
    run(first, "finalise")
    assert changes(index_database, first.alias) == [
        (first.table, None, first.request_id),
        (second.table, first.table, second.request_id),
    ]
    assert len(nearest(index_url, first.alias, [1.0] * 8, 50)) == 5


def test_a_withdrawn_assignment_publishes_nothing(produced: Produced, index_database: psycopg.Connection) -> None:
    assignment = produced.assignment("finalise")
    context = produced.context(assignment)
    key = layout.assignment_key(assignment.job_id)
    produced.put(produced.control, key, assignment.model_copy(update={"void": True}).to_bytes())
    with pytest.raises(Voided):
        job.run(assignment, assignment.entries[0], context)
    assert changes(index_database, produced.alias) == []
    with pytest.raises(produced.client.exceptions.NoSuchKey):
        produced.get(layout.MANIFEST)


# --- I11: the output is what the plan listed ------------------------------------------------------------------------


def spoil_lost_key(produced: Produced) -> None:
    produced.commit(0, keys=[*KEYS[:9], KEYS[8]])


def spoil_order(produced: Produced) -> None:
    produced.commit(0, keys=[KEYS[1], KEYS[0], *KEYS[2:10]])


def spoil_extra_row(produced: Produced) -> None:
    produced.commit(2, keys=[*KEYS[20:25], b"zzz"])


def spoil_missing_chunk(produced: Produced) -> None:
    marker = produced.marker(1)
    produced.publish_marker(marker.model_copy(update={"chunks": marker.chunks[:-1]}))


def spoil_chunk_twice(produced: Produced) -> None:
    marker = produced.marker(1)
    produced.publish_marker(marker.model_copy(update={"chunks": [*marker.chunks, marker.chunks[0]]}))


def spoil_claimed_counts(produced: Produced) -> None:
    marker = produced.marker(0)
    first = marker.chunks[0].model_copy(update={"ok": 4, "bad": 0})
    produced.publish_marker(marker.model_copy(update={"chunks": [first, *marker.chunks[1:]]}))


def spoil_claimed_statuses(produced: Produced) -> None:
    produced.commit(1, statuses={"ok": 9, "missing": 1})


def spoil_bytes(produced: Produced) -> None:
    produced.put(produced.bucket, produced.output.join(produced.marker(0).chunks[1].key).key, b"PAR1")


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (spoil_lost_key, "I11: .*/00002/.* from row 1 on"),
        (spoil_order, "I11: .*/00000/.* from row 0 on"),
        (spoil_extra_row, "I11: .* from row 1 on"),
        (spoil_missing_chunk, "does not name each of the shard's chunks once"),
        (spoil_chunk_twice, "does not name each of the shard's chunks once"),
        (spoil_claimed_counts, "its commit says 4 ok"),
        (spoil_claimed_statuses, "its chunks hold ok 10"),
        (spoil_bytes, "has sha256"),
    ],
)
def test_an_output_that_is_not_the_plan_is_not_published(
    spoil: Callable[[Produced], None], text: str, produced: Produced, index_database: psycopg.Connection
) -> None:
    spoil(produced)
    with pytest.raises(ConfigError, match=text):
        run(produced, "finalise")
    assert changes(index_database, produced.alias) == []
    with pytest.raises(produced.client.exceptions.NoSuchKey):
        produced.get(layout.MANIFEST)


@pytest.mark.parametrize("gaps", [[], [0], [0, 1, 1], [7]])
def test_shards_and_gaps_must_be_the_plans(gaps: list[int], produced: Produced) -> None:
    del produced.markers[1]
    with pytest.raises(ConfigError, match=r"I11: .* shards and gaps were given for the plan's 3"):
        run(produced, "finalise", gaps=gaps)
