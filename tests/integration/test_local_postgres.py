"""The embedded Postgres: two databases kept apart, pgvector, crash recovery, and a clean end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psutil
import psycopg
import pytest

from deploy.local.postgres import SYSTEM_USER_FOR_ROOT, Database, Driver, PostgresCluster

CONTROL, INDEX = Database.CONTROL, Database.INDEX


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresCluster]:
    """Shared: a test may stop it, and starts it again."""
    directory = tmp_path_factory.mktemp("shared")
    server = PostgresCluster(directory / "postgres", log_path=directory / "postgres.log")
    server.start()
    yield server
    server.stop()


def connect(cluster: PostgresCluster, database: Database = CONTROL) -> psycopg.Connection:
    return psycopg.connect(cluster.url(database, Driver.PSYCOPG), autocommit=True)


def postmasters(directory: Path) -> list[psutil.Process]:
    """Living Postgres processes whose command line names a path below `directory`."""
    found = []
    for process in psutil.process_iter(["name", "cmdline", "status"]):
        command_line = " ".join(process.info["cmdline"] or [])
        if "postgres" in (process.info["name"] or "") and str(directory) in command_line:
            found.append(process)
    return found


async def test_urls_suit_both_drivers(cluster: PostgresCluster) -> None:
    assert cluster.url().startswith("postgresql+asyncpg://")
    connection = await asyncpg.connect(cluster.url().replace("+asyncpg", ""))
    assert await connection.fetchval("SHOW server_version_num") >= "180000"
    await connection.close()


def test_the_index_database_has_pgvector_and_its_owner_may_create_tables(cluster: PostgresCluster) -> None:
    with connect(cluster, INDEX) as connection:
        connection.execute("CREATE TABLE items (embedding vector(3))")
        connection.execute("INSERT INTO items VALUES ('[1,2,3]')")
        nearest = connection.execute("SELECT embedding <=> '[2,4,6]' FROM items").fetchone()
    assert nearest == (0.0,)


@pytest.mark.parametrize(("owner", "other"), [(CONTROL, INDEX), (INDEX, CONTROL)])
def test_an_owner_cannot_enter_the_other_database(owner: Database, other: Database, cluster: PostgresCluster) -> None:
    own_url = cluster.url(owner, Driver.PSYCOPG)
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(own_url.removesuffix(f"/{owner}") + f"/{other}")


def test_no_password_no_entry(cluster: PostgresCluster) -> None:
    url = cluster.url(CONTROL, Driver.PSYCOPG)
    address = url.rsplit("@", 1)[1]
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(f"postgresql://postgres@{address}")


def test_committed_rows_survive_an_immediate_stop(cluster: PostgresCluster) -> None:
    url = cluster.url()
    with connect(cluster) as connection:
        connection.execute("CREATE TABLE survivor AS SELECT 42 AS answer")
        cluster.stop(immediate=True)
    assert not cluster.running
    cluster.start()
    assert cluster.url() == url
    with connect(cluster) as connection:
        assert connection.execute("SELECT answer FROM survivor").fetchone() == (42,)


def test_an_empty_start_forgets_and_a_plain_start_keeps(cluster: PostgresCluster) -> None:
    with connect(cluster) as connection:
        connection.execute("CREATE TABLE kept (answer int)")
    cluster.stop()
    cluster.start()
    with connect(cluster) as connection:
        assert connection.execute("SELECT to_regclass('kept')").fetchone() == ("kept",)
    cluster.stop()
    cluster.start(empty=True)
    with connect(cluster) as connection:
        assert connection.execute("SELECT to_regclass('kept')").fetchone() == (None,)


def test_a_stop_leaves_no_process(tmp_path: Path) -> None:
    server = PostgresCluster(tmp_path / "postgres", log_path=tmp_path / "postgres.log")
    server.start()
    assert postmasters(tmp_path)
    server.stop()
    assert not postmasters(tmp_path)


def test_a_cluster_of_a_killed_supervisor_is_taken_over(tmp_path: Path) -> None:
    """Stopped by SIGSTOP, the old postmaster cannot obey its parent-death signal: it is still there."""
    program = (
        "from pathlib import Path; from deploy.local.postgres import PostgresCluster; import time\n"
        "server = PostgresCluster(Path('postgres'), log_path=Path('postgres.log')); server.start()\n"
        "print('up', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        supervisor.stdout.readline()
        old = int((tmp_path / "postgres" / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(old, signal.SIGSTOP)
        supervisor.kill()
    server = PostgresCluster(tmp_path / "postgres", log_path=tmp_path / "postgres.log")
    server.start()
    with connect(server) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert not psutil.pid_exists(old) or psutil.Process(old).status() == psutil.STATUS_ZOMBIE
    server.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another user to run Postgres")
def test_root_without_namespaces_runs_it_as_another_user(tmp_path: Path) -> None:
    server = PostgresCluster(tmp_path / "postgres", log_path=tmp_path / "postgres.log")
    server.__dict__["_identity"] = SYSTEM_USER_FOR_ROOT  # as found where unshare is refused
    server.start()
    owner = (tmp_path / "postgres" / "data").owner()
    server.stop()
    assert owner == SYSTEM_USER_FOR_ROOT


def test_an_unfinished_creation_is_redone(tmp_path: Path) -> None:
    half_made = tmp_path / "postgres" / "data"
    half_made.mkdir(parents=True)
    (half_made / "PG_VERSION").write_text("18\n")
    server = PostgresCluster(tmp_path / "postgres", log_path=tmp_path / "postgres.log")
    server.start()
    assert server.running
    server.stop()
