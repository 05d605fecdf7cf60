"""Loading committed shards: real S3 protocol, real Postgres with pgvector."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psycopg
import pytest
from psycopg.sql import Identifier

from schema.exit_codes import ExitCode
from schema.states import RowStatus
from tests.produced import BAD, KEYS, MakeOutput, Produced, indexed, ledger, run, unit_vector
from worker.context import ConfigError, Ending, Interrupted
from worker.index import job, pgvector
from worker.index.committed import ahead
from worker.index.search import UnknownAlias, nearest
from worker.index.sql import VECTOR_TYPE


def test_ok_rows_are_loaded_and_others_are_not(produced: Produced, index_database: psycopg.Connection) -> None:
    ending = run(produced, "load")
    assert ending.code is ExitCode.OK
    assert ending.loaded == {number: shard.marker_digest for number, shard in produced.markers.items()}
    found = indexed(index_database, produced.table)
    assert set(found) == set(KEYS) - set(BAD)
    for key, (shard, vector) in found.items():
        assert shard == KEYS.index(key) // 10
        np.testing.assert_allclose(vector, unit_vector(key), atol=1e-3)
    assert [rows for _, rows in ledger(index_database, produced.table).values()] == [8, 10, 4]


def test_loading_again_reads_no_chunk(produced: Produced, index_database: psycopg.Connection) -> None:
    run(produced, "load")
    before = indexed(index_database, produced.table)
    produced.client.delete_object(
        Bucket=produced.bucket, Key=produced.output.join(produced.marker(0).chunks[0].key).key
    )
    assert run(produced, "load").code is ExitCode.OK
    assert indexed(index_database, produced.table) == before


def test_shards_come_in_any_order_and_number(produced: Produced, index_database: psycopg.Connection) -> None:
    for number in (2, 0, 1):
        run(produced, "load", shards=[produced.markers[number]])
    assert set(indexed(index_database, produced.table)) == set(KEYS) - set(BAD)


def test_two_jobs_may_load_the_same_shards_at_once(produced: Produced, index_database: psycopg.Connection) -> None:
    with ThreadPoolExecutor(4) as pool:
        endings = list(pool.map(lambda _: run(produced, "load"), range(4)))
    assert {ending.code for ending in endings} == {ExitCode.OK}
    assert set(indexed(index_database, produced.table)) == set(KEYS) - set(BAD)


def test_a_newer_commit_replaces_the_rows_of_its_shard(produced: Produced, index_database: psycopg.Connection) -> None:
    run(produced, "load")
    produced.bad = {KEYS[0]: RowStatus.MISSING}
    produced.commit(0, generation=2)
    run(produced, "load", shards=[produced.markers[0]])
    assert set(indexed(index_database, produced.table)) == set(KEYS) - {KEYS[0], KEYS[23]}
    assert ledger(index_database, produced.table)[0] == (produced.markers[0].marker_digest, 9)


def test_a_load_that_breaks_off_changes_nothing(produced: Produced, index_database: psycopg.Connection) -> None:
    last = produced.marker(1).chunks[-1]
    produced.put(produced.bucket, produced.output.join(last.key).key, b"spoiled")
    with pytest.raises(ConfigError, match="has sha256"):
        run(produced, "load")
    assert {shard for shard, _ in indexed(index_database, produced.table).values()} == {0}
    assert set(ledger(index_database, produced.table)) == {0}


def test_a_marker_of_another_digest_is_refused(produced: Produced) -> None:
    stale = produced.markers[0]
    produced.commit(0, attempt_id="another")
    with pytest.raises(ConfigError, match="asked for was shard 0"):
        run(produced, "load", shards=[stale])


def test_a_stop_is_obeyed_between_chunks(produced: Produced, index_database: psycopg.Connection) -> None:
    stop = threading.Event()
    assignment = produced.assignment("load")
    context = produced.context(assignment, stop)
    context.report.update = lambda *_, **__: stop.set()  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        job.run(assignment, assignment.entries[0], context)
    assert ledger(index_database, produced.table) == {}


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


def test_a_shard_without_ok_rows_is_loaded(make_output: MakeOutput, index_database: psycopg.Connection) -> None:
    produced = make_output(bad=dict.fromkeys(KEYS, RowStatus.MISSING))
    run(produced, "load")
    assert indexed(index_database, produced.table) == {}
    assert [rows for _, rows in ledger(index_database, produced.table).values()] == [0, 0, 0]


@pytest.mark.parametrize(
    ("dtype", "dimensions", "column"),
    [("float16", 8, "halfvec(8)"), ("float32", 8, "vector(8)"), ("float32", 2001, "halfvec(2001)")],
)
def test_the_column_suits_the_vectors(
    dtype: str, dimensions: int, column: str, make_output: MakeOutput, index_database: psycopg.Connection
) -> None:
    produced = make_output(keys=KEYS[:3], dtype=dtype, dimensions=dimensions, bad={})
    run(produced, "load")
    found = index_database.execute(
        VECTOR_TYPE, {"table": Identifier(produced.table).as_string(index_database)}
    ).fetchone()
    assert found == (column,)
    vector = indexed(index_database, produced.table)[KEYS[0]][1]
    np.testing.assert_allclose(vector, unit_vector(KEYS[0], dimensions), atol=1e-3)


def test_a_table_of_other_vectors_is_refused(make_output: MakeOutput) -> None:
    run(one := make_output(), "load")
    other = make_output(dtype="float32")
    with pytest.raises(ConfigError, match=r"holds halfvec\(8\); this output has vector\(8\)"):
        run(other, "load", index_table=one.table)


def test_without_an_alias_nothing_is_loaded(produced: Produced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(pgvector.URL_VARIABLE)
    assert run(produced, "load", index=None) == Ending(ExitCode.OK)


def test_a_missing_url_is_said(produced: Produced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(pgvector.URL_VARIABLE)
    with pytest.raises(ConfigError, match="REEMBED_INDEX_URL is not set"):
        run(produced, "load")


# --- search ----------------------------------------------------------------------------------------------------


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
    make_output: MakeOutput,
    index_url: str,
    index_database: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    produced = make_output(dtype=dtype)
    run(produced, "load")
    definition = "SELECT indexdef FROM pg_indexes WHERE tablename = %s AND indexdef LIKE '%%hnsw%%'"
    writer = pgvector.PgvectorWriter(index_url, hnsw_rows=23)
    writer.build(produced.table)
    assert index_database.execute(definition, [produced.table]).fetchall() == []
    writer.close()
    writer = pgvector.PgvectorWriter(index_url, hnsw_rows=22)
    writer.build(produced.table)
    writer.build(produced.table)
    writer.close()
    (found,) = index_database.execute(definition, [produced.table]).fetchall()
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
