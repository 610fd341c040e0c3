"""A real PostgreSQL for the tests: a server of their own on a free port, its data in a temporary folder.

with PostgreSQL() as database:
    database.jdbc_url, database.user, database.password
    database.rows("SELECT count(*) FROM sales")     # through psycopg, so not by Spark
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from compat_tests import processes

USER = "shop"
PASSWORD = "secret word"
DATABASE = "shop"
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30
START_ATTEMPTS = 3
# The data need not survive a crash of the machine, so fsync is off. A killed server loses nothing.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "shared_buffers": "64MB",
    "max_connections": "60",
    "timezone": "America/New_York",
    "log_min_messages": "error",
}


class PostgreSQLError(RuntimeError):
    """PostgreSQL is missing or does not start. The message has the remedy."""


def programs() -> Path:
    """The folder with initdb and postgres. Raises PostgreSQLError."""
    candidates = [Path(found).parent for found in [shutil.which("initdb")] if found]
    if (config := shutil.which("pg_config")) is not None:
        answer = subprocess.run([config, "--bindir"], capture_output=True, text=True, timeout=60)
        candidates.append(Path(answer.stdout.strip()))
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parts[-2:], reverse=True)
    for folder in candidates:
        # A folder with both programs has no wrappers: those of Debian use the clusters of the system.
        if (folder / "initdb").is_file() and (folder / "postgres").is_file():
            return folder
    raise PostgreSQLError(
        "The tests of databases need PostgreSQL's server programs (initdb, postgres): on Debian and Ubuntu "
        "`apt-get install postgresql`, elsewhere put its bin folder into PATH."
    )


class PostgreSQL:
    """One server process. PostgreSQL refuses to run as root; root starts it as `postgres` or `nobody`."""

    def __init__(self) -> None:
        self._programs = programs()
        self._folder = Path(tempfile.mkdtemp(prefix="odradek-pg-"))
        self._owner = None
        if os.geteuid() == 0:
            self._owner = next(_users("postgres", "nobody"))
            os.chown(self._folder, self._owner.pw_uid, self._owner.pw_gid)
        self._data = self._folder / "data"
        self._log = self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.user, self.password, self.database = USER, PASSWORD, DATABASE

    @property
    def jdbc_url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/{self.database}"

    def start(self) -> Self:
        """Start the server and wait until it answers; data and port survive `kill`. Raises PostgreSQLError."""
        if not self._data.exists():
            self._initialise()
        is_first = self.port == 0
        for _ in range(START_ATTEMPTS):
            if is_first:
                self.port = processes.lasting_port()
            settings = {**SETTINGS, "port": str(self.port), "unix_socket_directories": str(self._folder)}
            command = [str(self._programs / "postgres"), "-D", str(self._data)]
            command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
            with self._log.open("ab") as log:
                self._process = processes.start(command, stdout=log, stderr=log, **self._as_owner())
            if self._answers():
                return self
        raise PostgreSQLError(f"PostgreSQL does not start: {self._log.read_text()[-2000:]}")

    def _initialise(self) -> None:
        password = self._folder / "password"
        password.write_text(PASSWORD + "\n")
        if self._owner is not None:
            os.chown(password, self._owner.pw_uid, self._owner.pw_gid)
        command: list[str | Path] = [
            self._programs / "initdb",
            "-D",
            self._data,
            "--username",
            USER,
            "--pwfile",
            password,
        ]
        command += ["--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync"]
        made = subprocess.run(command, capture_output=True, text=True, timeout=120, **self._as_owner())
        if made.returncode != 0:
            raise PostgreSQLError(f"initdb failed: {made.stderr[-2000:]}")

    def _as_owner(self) -> dict[str, Any]:
        options: dict[str, Any] = {"cwd": self._folder, "env": {**os.environ, "LC_ALL": "C", "TZ": "UTC"}}
        if self._owner is not None:
            options |= {"user": self._owner.pw_uid, "group": self._owner.pw_gid, "extra_groups": []}
        return options

    def _answers(self) -> bool:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        assert self._process is not None
        while self._process.poll() is None and time.monotonic() < give_up_at:
            try:
                with self.connect("postgres") as connection:
                    if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
                        connection.execute(f"CREATE DATABASE {DATABASE}")
                return True
            except psycopg.OperationalError:
                time.sleep(0.05)
        self.kill()
        return False

    def connect(self, database: str | None = None) -> "psycopg.Connection[Any]":
        """A connection in autocommit mode."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=PASSWORD,
            dbname=database or DATABASE,
            autocommit=True,
            connect_timeout=START_TIMEOUT_S,
        )

    def execute(self, *statements: str) -> None:
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(query).fetchall()

    def value(self, query: str) -> Any:
        [[value]] = self.rows(query)
        return value

    def tables(self) -> list[str]:
        """The names of all tables, sorted."""
        system = "('pg_catalog', 'information_schema')"
        found = self.rows(f"SELECT tablename FROM pg_tables WHERE schemaname NOT IN {system}")
        return sorted(name for (name,) in found)

    def kill(self) -> None:
        """End the server at once, with SIGQUIT to its first process. It recovers at its next start."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _users(*names: str) -> Any:
    for name in names:
        with contextlib.suppress(KeyError):
            yield pwd.getpwnam(name)
