"""A throw-away PostgreSQL server that tests may stop, kill and start again."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
from psycopg import sql

from agentops.embedded import PostgresServer
from agentops.embedded.server import StopMode

# The pages that a killed server has written survive in the system's cache, so that only a power cut would need fsync.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "log_min_messages": "warning",
}


class ThrowAwayServer(PostgresServer):
    """A server of the tests' own: fast, not durable against power cuts, with faults on demand."""

    def __init__(
        self, folder: Path, *, settings: Mapping[str, str] | None = None, binaries: Path | None = None
    ) -> None:
        super().__init__(folder, settings={**SETTINGS, **(settings or {})}, binaries=binaries)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop (`immediate`: without checkpoint, as after a crash) and start; returns when connections are accepted."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Kill the main process with SIGKILL and wait until all processes of the server are gone; start() recovers."""
        postmaster = self.postmaster()
        assert postmaster is not None, f"no server runs in {self.folder}"
        family = [postmaster, *postmaster.children(recursive=True)]
        postmaster.kill()
        # The others notice within moments; the wait also ends for zombies that nobody reaps.
        _, alive = psutil.wait_procs(family, timeout=0.2)
        for process in alive:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                process.kill()
        _wait_until_gone(alive)

    @contextmanager
    def stopped(self, mode: StopMode = "immediate") -> Iterator[None]:
        """The server is down inside the block, and accepts connections again after it."""
        self.stop(mode)
        try:
            yield
        finally:
            self.start()


def _wait_until_gone(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            while process.status() != psutil.STATUS_ZOMBIE:
                process.wait(timeout=0.2)
        except psutil.NoSuchProcess:
            continue
        except psutil.TimeoutExpired:
            continue


def remove_left_overs() -> None:
    """Stop the servers of test runs that were killed, and remove their folders."""
    for folder in Path(tempfile.gettempdir()).glob("agentops-tests-*-*"):
        pid = folder.name.split("-")[2]
        if not pid.isdecimal() or psutil.pid_exists(int(pid)):
            continue
        # Several runs, or several processes of one, may come by at the same moment: another one was faster.
        with suppress(FileNotFoundError):
            if folder.stat().st_uid == os.geteuid():
                ThrowAwayServer(folder / "postgres").stop("immediate")
                shutil.rmtree(folder, ignore_errors=True)


class Databases:
    """Databases of one server that are made from a template: one file copy instead of a run of migrations."""

    def __init__(self, maintenance_url: str) -> None:
        self.maintenance_url = maintenance_url

    def copy(self, source: str, target: str) -> None:
        """Make `target` anew as a copy of `source`; sessions of both are ended."""
        with psycopg.connect(self.maintenance_url, autocommit=True) as connection:
            self._drop(connection, target)
            self._end_sessions(connection, source)
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                    sql.Identifier(target), sql.Identifier(source)
                )
            )

    def drop(self, name: str) -> None:
        """Drop a database if it exists, ending its sessions."""
        with psycopg.connect(self.maintenance_url, autocommit=True) as connection:
            self._drop(connection, name)

    def end_sessions(self, name: str) -> None:
        """End all sessions of a database; they may need a moment."""
        with psycopg.connect(self.maintenance_url, autocommit=True) as connection:
            self._end_sessions(connection, name)

    def _end_sessions(self, connection: psycopg.Connection, name: str) -> None:
        # A pooler keeps its own open after its clients have gone.
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )

    def _drop(self, connection: psycopg.Connection, name: str) -> None:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
