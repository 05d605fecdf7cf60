"""docs/reading-the-output.md, executed: every block runs, in order, against an output of the real code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from schema.states import RowStatus
from tests.produced import Produced
from worker.index import job, pgvector

DOCUMENT = Path(__file__).parents[2] / "docs" / "reading-the-output.md"
KEYS = [b"images/%03d.jpg" % number for number in range(25)]
BAD = {KEYS[3]: RowStatus.MISSING, KEYS[4]: RowStatus.UNREADABLE}
TABLE, ALIAS = "e_0011223344556677", "photos"
BLOCK = re.compile(r"^## (?P<section>[^\n]+)$|^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(section: str, language: str) -> list[str]:
    """The code blocks below a heading."""
    found, current = [], ""
    for match in BLOCK.finditer(DOCUMENT.read_text()):
        current = match["section"] or current
        if match["language"] == language and current == section:
            found.append(match["code"])
    assert found, f"no {language} below {section}"
    return found


@pytest.fixture
def produced(s3_client: Any, index_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Produced]:
    """A finished request, copied to `out/` of the working directory; another one had the alias before."""
    monkeypatch.setenv(pgvector.URL_VARIABLE, index_url)
    for table, keys in (("e_before", KEYS[:5]), (TABLE, KEYS)):
        produced = Produced(s3_client, keys, BAD)
        produced.alias, produced.table = ALIAS, table
        assignment = produced.assignment("finalise")
        job.run(assignment, assignment.entries[0], produced.context(assignment))
    for item in s3_client.list_objects_v2(Bucket=produced.bucket, Prefix=produced.output.key)["Contents"]:
        name = item["Key"].removeprefix(produced.output.key)
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_bytes(produced.get(name))
    (tmp_path / "out/chunks/0000000/00000/lost-a-race.parquet").write_bytes(b"not named by the manifest")
    monkeypatch.chdir(tmp_path)
    yield produced
    with psycopg.connect(index_url, autocommit=True) as connection:
        connection.execute(f"DROP TABLE e_before, {TABLE}".encode())
        for table in ("reembed_aliases", "reembed_alias_changes"):
            connection.execute(f"DELETE FROM {table} WHERE alias = '{ALIAS}'".encode())
        connection.execute(b"DELETE FROM reembed_ledger WHERE index_table IN ('e_before', %s)", [TABLE])


@pytest.mark.usefixtures("produced")
def test_the_duckdb_examples() -> None:
    with duckdb.connect() as connection:
        view, statuses, failures, nearest = blocks("DuckDB", "sql")
        connection.execute(view)
        assert connection.execute(statuses).fetchall() == [("missing", 1), ("ok", 23), ("unreadable", 1)]
        assert connection.execute(failures).fetchall() == [
            ("images/003.jpg", 0, "missing", 404, "it is missing"),
            ("images/004.jpg", 0, "unreadable", None, "it is unreadable"),
        ]
        rows = connection.execute(nearest).fetchall()
    assert len(rows) == 5
    assert rows[0][0] == "images/007.jpg"
    assert rows[0][1] == pytest.approx(0, abs=1e-3)


@pytest.mark.usefixtures("produced")
def test_the_python_examples(index_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"index_url": index_url}
    for block in [*blocks("pandas", "python"), *blocks("pgvector", "python")]:
        exec(compile(block, str(DOCUMENT), "exec"), names)
    assert len(names["assets"]) == names["manifest"]["assets"] == 25
    assert names["matrix"].shape == (23, 8)
    assert names["nearest"]["key"].iloc[0] == b"images/007.jpg"
    assert [hit.key for hit in names["nearest_in_index"](index_url, ALIAS, names["query"].tolist(), 5)] == list(
        names["nearest"]["key"]
    )
    assert (tmp_path / "missing.csv").read_text() == "key\nimages/003.jpg\n"
    assert "images/007.jpg" in capsys.readouterr().out


def test_the_pgvector_examples(index_url: str, produced: Produced) -> None:
    alias, nearest, ledger, roll_back = blocks("pgvector", "sql")
    with psycopg.connect(index_url, autocommit=True) as connection:
        assert connection.execute(alias.encode()).fetchall()[0][:3] == (TABLE, "e_before", produced.request_id)
        rows = connection.execute(nearest.encode()).fetchall()
        assert [rows[0][0], len(rows)] == ["images/007.jpg", 5]
        assert [rows for _, _, rows in connection.execute(ledger.encode()).fetchall()] == [8, 10, 5]
        connection.execute(roll_back.encode())
        assert connection.execute(alias.encode()).fetchall()[0][:2] == ("e_before", TABLE)
        last = "SELECT index_table, previous FROM reembed_alias_changes ORDER BY id DESC LIMIT 1"
        assert connection.execute(last).fetchone() == ("e_before", TABLE)


def test_every_status_and_column_is_documented() -> None:
    from worker.chunks import table_schema

    text = DOCUMENT.read_text()
    for name in [*RowStatus, *table_schema(8, "float16").names]:
        assert f"`{name}`" in text
