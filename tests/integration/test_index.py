"""The index job against a real S3 protocol and a real Postgres with pgvector."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psycopg
import pyarrow.parquet as pq
import pytest
from psycopg.sql import SQL, Identifier

from schema import layout
from schema.exit_codes import ExitCode
from schema.plan import Manifest
from schema.states import RowStatus
from tests.produced import Produced, unit_vector
from worker.context import ConfigError, Ending, Interrupted, Voided
from worker.index import job, pgvector
from worker.index.committed import ahead
from worker.index.search import UnknownAlias, nearest
from worker.index.sql import VECTOR_TYPE

KEYS = [*(b"images/%03d.jpg" % number for number in range(24)), b"odd/\0\n//\xc3\xa9"]
BAD = {KEYS[3]: RowStatus.MISSING, KEYS[4]: RowStatus.UNREADABLE, KEYS[23]: RowStatus.DENIED}
Make = Callable[..., Produced]


@pytest.fixture
def make(s3_client: Any, index_url: str, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setenv(pgvector.URL_VARIABLE, index_url)
    return lambda **changes: Produced(s3_client, **({"keys": KEYS, "bad": BAD} | changes))


@pytest.fixture
def produced(make: Make) -> Produced:
    return make()


@pytest.fixture
def database(index_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(index_url, autocommit=True) as connection:
        yield connection


def run(produced: Produced, action: str, stop: threading.Event | None = None, **changes: Any) -> Ending:
    assignment = produced.assignment(action, **changes)
    return job.run(assignment, assignment.entries[0], produced.context(assignment, stop))


def indexed(database: psycopg.Connection, table: str) -> dict[bytes, tuple[int, list[float]]]:
    """Key → shard and vector."""
    rows = database.execute(SQL("SELECT key, shard, embedding::text FROM {}").format(Identifier(table))).fetchall()
    return {key: (shard, [float(value) for value in text.strip("[]").split(",")]) for key, shard, text in rows}


def ledger(database: psycopg.Connection, table: str) -> dict[int, tuple[str, int]]:
    found = database.execute("SELECT shard, marker_digest, rows FROM reembed_ledger WHERE index_table = %s", [table])
    return {shard: (digest, rows) for shard, digest, rows in found.fetchall()}


def changes(database: psycopg.Connection, alias: str) -> list[tuple[str, str | None, str]]:
    statement = "SELECT index_table, previous, request_id FROM reembed_alias_changes WHERE alias = %s ORDER BY id"
    return database.execute(statement, [alias]).fetchall()


def failures(produced: Produced) -> list[dict[str, Any]]:
    return pq.read_table(io.BytesIO(produced.get(layout.FAILURES))).to_pylist()


def manifest(produced: Produced) -> Manifest:
    return Manifest.model_validate_json(produced.get(layout.MANIFEST))


# --- load --------------------------------------------------------------------------------------------------------


def test_ok_rows_are_loaded_and_others_are_not(produced: Produced, database: psycopg.Connection) -> None:
    ending = run(produced, "load")
    assert ending.code is ExitCode.OK
    assert ending.loaded == {number: shard.marker_digest for number, shard in produced.markers.items()}
    found = indexed(database, produced.table)
    assert set(found) == set(KEYS) - set(BAD)
    for key, (shard, vector) in found.items():
        assert shard == KEYS.index(key) // 10
        np.testing.assert_allclose(vector, unit_vector(key), atol=1e-3)
    assert [rows for _, rows in ledger(database, produced.table).values()] == [8, 10, 4]


def test_loading_again_reads_no_chunk(produced: Produced, database: psycopg.Connection) -> None:
    run(produced, "load")
    before = indexed(database, produced.table)
    produced.client.delete_object(
        Bucket=produced.bucket, Key=produced.output.join(produced.marker(0).chunks[0].key).key
    )
    assert run(produced, "load").code is ExitCode.OK
    assert indexed(database, produced.table) == before


def test_shards_come_in_any_order_and_number(produced: Produced, database: psycopg.Connection) -> None:
    for number in (2, 0, 1):
        run(produced, "load", shards=[produced.markers[number]])
    assert set(indexed(database, produced.table)) == set(KEYS) - set(BAD)


def test_two_jobs_may_load_the_same_shards_at_once(produced: Produced, database: psycopg.Connection) -> None:
    with ThreadPoolExecutor(4) as pool:
        endings = list(pool.map(lambda _: run(produced, "load"), range(4)))
    assert {ending.code for ending in endings} == {ExitCode.OK}
    assert set(indexed(database, produced.table)) == set(KEYS) - set(BAD)


def test_a_newer_commit_replaces_the_rows_of_its_shard(produced: Produced, database: psycopg.Connection) -> None:
    run(produced, "load")
    produced.bad = {KEYS[0]: RowStatus.MISSING}
    produced.commit(0, generation=2)
    run(produced, "load", shards=[produced.markers[0]])
    assert set(indexed(database, produced.table)) == set(KEYS) - {KEYS[0], KEYS[23]}
    assert ledger(database, produced.table)[0] == (produced.markers[0].marker_digest, 9)


def test_a_load_that_breaks_off_leaves_the_shard_as_it_was(produced: Produced, database: psycopg.Connection) -> None:
    last = produced.marker(1).chunks[-1]
    produced.put(produced.bucket, produced.output.join(last.key).key, b"spoiled")
    with pytest.raises(ConfigError, match="has sha256"):
        run(produced, "load")
    assert {shard for shard, _ in indexed(database, produced.table).values()} == {0}
    assert set(ledger(database, produced.table)) == {0}


def test_a_marker_of_another_digest_is_refused(produced: Produced) -> None:
    stale = produced.markers[0]
    produced.commit(0, attempt_id="another")
    with pytest.raises(ConfigError, match="asked for was shard 0"):
        run(produced, "load", shards=[stale])


def test_a_stop_is_obeyed_between_chunks(produced: Produced, database: psycopg.Connection) -> None:
    stop = threading.Event()
    assignment = produced.assignment("load")
    context = produced.context(assignment, stop)
    context.report.update = lambda *_, **__: stop.set()  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        job.run(assignment, assignment.entries[0], context)
    assert ledger(database, produced.table) == {}


def test_the_rate_is_waited_for(produced: Produced) -> None:
    """The wait is what a stop ends; no clock is needed to see that there is one."""

    class Waits(threading.Event):
        seconds: list[float] = []

        def wait(self, timeout: float | None = None) -> bool:
            self.seconds.append(timeout or 0.0)
            return False

    stop = Waits()
    run(produced, "load", stop, rows_per_second=1)
    assert max(stop.seconds) > 10
    Waits.seconds.clear()
    produced.table += "_fast"
    run(produced, "load", stop)
    assert max(stop.seconds) == 0


def test_a_shard_without_any_ok_row_is_loaded_as_none(make: Make, database: psycopg.Connection) -> None:
    produced = make(bad=dict.fromkeys(KEYS, RowStatus.MISSING))
    run(produced, "load")
    assert indexed(database, produced.table) == {}
    assert [rows for _, rows in ledger(database, produced.table).values()] == [0, 0, 0]


@pytest.mark.parametrize(
    ("dtype", "dimensions", "column"),
    [("float16", 8, "halfvec(8)"), ("float32", 8, "vector(8)"), ("float32", 2001, "halfvec(2001)")],
)
def test_the_column_suits_the_vectors(
    dtype: str, dimensions: int, column: str, make: Make, database: psycopg.Connection
) -> None:
    produced = make(keys=KEYS[:3], dtype=dtype, dimensions=dimensions, bad={})
    run(produced, "load")
    found = database.execute(VECTOR_TYPE, {"table": Identifier(produced.table).as_string(database)}).fetchone()
    assert found == (column,)
    vector = indexed(database, produced.table)[KEYS[0]][1]
    np.testing.assert_allclose(vector, unit_vector(KEYS[0], dimensions), atol=1e-3)


def test_a_table_of_other_vectors_is_refused(make: Make) -> None:
    run(one := make(), "load")
    other = make(dtype="float32")
    with pytest.raises(ConfigError, match=r"holds halfvec\(8\); this output has vector\(8\)"):
        run(other, "load", index_table=one.table)


def test_without_an_alias_nothing_is_loaded(produced: Produced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(pgvector.URL_VARIABLE)
    assert run(produced, "load", index=None) == Ending(ExitCode.OK)


def test_a_missing_url_is_said(produced: Produced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(pgvector.URL_VARIABLE)
    with pytest.raises(ConfigError, match="REEMBED_INDEX_URL is not set"):
        run(produced, "load")


# --- finalise ----------------------------------------------------------------------------------------------------


def test_finalising_writes_manifest_failures_and_alias(
    produced: Produced, index_url: str, database: psycopg.Connection
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
    assert changes(database, produced.alias) == [(produced.table, None, produced.request_id)]
    hits = nearest(index_url, produced.alias, unit_vector(KEYS[7]).tolist(), 5)
    assert hits[0].key == KEYS[7]
    assert hits[0].distance == pytest.approx(0, abs=1e-3)
    assert [hit.distance for hit in hits] == sorted(hit.distance for hit in hits)
    assert len(hits) == 5


def test_finalising_again_changes_nothing(produced: Produced, database: psycopg.Connection) -> None:
    run(produced, "finalise")
    written = produced.get(layout.MANIFEST), produced.get(layout.FAILURES)
    run(produced, "finalise")
    assert (produced.get(layout.MANIFEST), produced.get(layout.FAILURES)) == written
    assert len(changes(database, produced.alias)) == 1


def test_finalising_loads_what_the_ledger_lacks(produced: Produced, database: psycopg.Connection) -> None:
    run(produced, "load", shards=[produced.markers[1]])
    run(produced, "finalise")
    assert set(indexed(database, produced.table)) == set(KEYS) - set(BAD)


def test_an_accepted_gap_is_in_the_manifest_and_not_in_the_index(
    produced: Produced, database: psycopg.Connection
) -> None:
    run(produced, "load")
    del produced.markers[1]
    run(produced, "finalise", gaps=[1])
    found = manifest(produced)
    assert (found.assets, found.ok + found.bad, found.gaps) == (25, 15, [1])
    assert {shard for shard, _ in indexed(database, produced.table).values()} == {0, 2}


def test_without_an_alias_there_is_only_parquet(produced: Produced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(pgvector.URL_VARIABLE)
    ending = run(produced, "finalise", index=None)
    assert (ending.code, ending.loaded, manifest(produced).index) == (ExitCode.OK, {}, None)


def test_a_request_without_failures_has_an_empty_failures_file(make: Make) -> None:
    produced = make(bad={})
    run(produced, "finalise")
    assert failures(produced) == []
    assert manifest(produced).bad == 0


def test_a_like_request_keeps_the_earlier_manifest(produced: Produced, database: psycopg.Connection) -> None:
    run(produced, "finalise")
    written = produced.get(layout.MANIFEST)
    plan = produced.client.get_object(Bucket=produced.control, Key=layout.plan_key(produced.request_id))["Body"].read()
    produced.put(produced.control, layout.plan_key("like"), plan)
    ending = run(produced, "finalise", request_id="like", index=produced.alias + "-2")
    assert ending.code is ExitCode.OK
    assert produced.get(layout.MANIFEST) == written
    assert changes(database, produced.alias + "-2") == [(produced.table, None, "like")]


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
    make: Make, index_url: str, database: psycopg.Connection
) -> None:
    first, second = make(), make(keys=KEYS[:5], bad={})
    second.alias = first.alias
    run(first, "finalise")
    run(second, "finalise")
    run(first, "finalise")
    assert changes(database, first.alias) == [
        (first.table, None, first.request_id),
        (second.table, first.table, second.request_id),
    ]
    assert len(nearest(index_url, first.alias, [1.0] * 8, 50)) == 5


def test_a_withdrawn_assignment_publishes_nothing(produced: Produced, database: psycopg.Connection) -> None:
    assignment = produced.assignment("finalise")
    context = produced.context(assignment)
    key = layout.assignment_key(assignment.job_id)
    produced.put(produced.control, key, assignment.model_copy(update={"void": True}).to_bytes())
    with pytest.raises(Voided):
        job.run(assignment, assignment.entries[0], context)
    assert changes(database, produced.alias) == []
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
    spoil: Callable[[Produced], None], text: str, produced: Produced, database: psycopg.Connection
) -> None:
    spoil(produced)
    with pytest.raises(ConfigError, match=text):
        run(produced, "finalise")
    assert changes(database, produced.alias) == []
    with pytest.raises(produced.client.exceptions.NoSuchKey):
        produced.get(layout.MANIFEST)


@pytest.mark.parametrize("gaps", [[], [0], [0, 1, 1], [7]])
def test_shards_and_gaps_must_be_the_plans(gaps: list[int], produced: Produced) -> None:
    del produced.markers[1]
    with pytest.raises(ConfigError, match=r"I11: .* shards and gaps were given for the plan's 3"):
        run(produced, "finalise", gaps=gaps)


# --- search ------------------------------------------------------------------------------------------------------


def test_an_unknown_alias_is_said(index_url: str) -> None:
    with pytest.raises(UnknownAlias, match="no index 'nothing-yet'"):
        nearest(index_url, "nothing-yet", [1.0], 5)


def test_a_vector_of_another_model_is_refused(produced: Produced, index_url: str) -> None:
    run(produced, "finalise")
    with pytest.raises(ValueError, match="does not fit index"):
        nearest(index_url, produced.alias, [1.0, 2.0], 5)


@pytest.mark.parametrize(("dtype", "operators"), [("float16", "halfvec_cosine_ops"), ("float32", "vector_cosine_ops")])
def test_a_large_table_gets_an_hnsw_index(
    dtype: str,
    operators: str,
    make: Make,
    index_url: str,
    database: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    produced = make(dtype=dtype)
    run(produced, "load")
    definition = "SELECT indexdef FROM pg_indexes WHERE tablename = %s AND indexdef LIKE '%%hnsw%%'"
    writer = pgvector.PgvectorWriter(index_url, hnsw_rows=23)
    writer.build(produced.table)
    assert database.execute(definition, [produced.table]).fetchall() == []
    writer.close()
    writer = pgvector.PgvectorWriter(index_url, hnsw_rows=22)
    writer.build(produced.table)
    writer.build(produced.table)
    writer.close()
    (found,) = database.execute(definition, [produced.table]).fetchall()
    assert operators in found[0]
    run(produced, "finalise")
    assert nearest(index_url, produced.alias, unit_vector(KEYS[7]).tolist(), 3)[0].key == KEYS[7]


def test_reading_ahead_keeps_the_order_and_passes_errors() -> None:
    assert list(ahead(lambda number: number * 2, range(20), depth=3)) == list(range(0, 40, 2))

    def work(number: int) -> int:
        if number == 5:
            raise KeyError(number)
        return number

    found = ahead(work, range(20), depth=3)
    assert [next(found) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError):
        next(found)
