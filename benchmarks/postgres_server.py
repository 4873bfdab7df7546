"""A real PostgreSQL server of one's own: a temporary folder, a free port on loopback, gone afterwards."""

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

_FAST = ("fsync=off", "full_page_writes=off", "max_connections=60", "shared_buffers=64MB")
"""The data need not outlive the machine; a killed server recovers all the same."""


def binaries() -> Path | None:
    """The folder of the newest server that is installed."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    on_path = shutil.which("initdb")
    found += [Path(on_path).resolve().parent] if on_path else []
    return max(found, key=lambda path: float(path.parent.name or 0), default=None)


class PostgresServer:
    """Starts, kills and removes a server.

    with PostgresServer() as server:
        Ingester(server.url("statistics"))
    """

    password = "a-password-for-tests"

    def __init__(self) -> None:
        found = binaries()
        assert found is not None, "PostgreSQL is not installed"
        self.binaries = found
        # directly below the temporary folder: its user must be able to enter every folder above
        self.folder = Path(tempfile.mkdtemp(prefix="metta-postgres-", dir="/tmp"))
        # initdb refuses to work as root
        self.user = "postgres" if os.getuid() == 0 else None
        if self.user is not None:
            shutil.chown(self.folder, self.user)
        secret = self.folder / "password"
        secret.write_text(self.password)
        secret.chmod(0o644)
        self._run(
            "initdb", "-D", self.data, "-U", "metta", "-A", "scram-sha-256", "--no-sync",
            "-E", "UTF8", "--locale=C", f"--pwfile={secret}",
        )  # fmt: skip
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://metta:{self.password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start it, and wait until it answers; a killed one recovers first."""
        settings = [f"port={self.port}", "listen_addresses=127.0.0.1", "unix_socket_directories="]
        options = " ".join(f"-c {setting}" for setting in (*settings, *_FAST))
        log = str(self.folder / "server.log")
        self._run("pg_ctl", "start", "-w", "-D", self.data, "-l", log, "-o", options)

    def kill(self) -> None:
        """End it at once, as a crash would: connections break and transactions are lost."""
        self._run("pg_ctl", "stop", "-m", "immediate", "-D", self.data)

    def create_database(self, name: str) -> str:
        """A new, empty database; returns its URL."""
        self._query(f"CREATE DATABASE {name}")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        self._query(f"DROP DATABASE {name} WITH (FORCE)")

    def _query(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement.encode())

    def __enter__(self) -> "PostgresServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Stop it, where it runs, and remove its folder."""
        self._run("pg_ctl", "stop", "-m", "immediate", "-D", self.data, check=False)
        shutil.rmtree(self.folder)

    def _run(self, command: str, *arguments: str, check: bool = True) -> None:
        done = subprocess.run(
            [str(self.binaries / command), *arguments],
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
            cwd="/tmp",
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if command == "initdb" else subprocess.DEVNULL,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"{command} failed: {done.stderr}")
