"""Copies of a running server: one that goes its own way, and one that follows until it is promoted."""

import shutil
from pathlib import Path

from agentops.embedded import PostgresServer
from tests.harness.server import ThrowAwayServer


class CopiedServer(ThrowAwayServer):
    """A server made by pg_basebackup from `source`, which must run; not started yet."""

    def __init__(self, folder: Path, source: PostgresServer, *, follow: bool = False) -> None:
        super().__init__(folder)
        self._copy(source, follow)

    def _copy(self, source: PostgresServer, follow: bool) -> None:
        binaries = self._programs()
        self._prepare_folders(binaries)
        made = self._run(
            [
                *(binaries / "pg_basebackup", "--pgdata", self.pgdata, "--dbname", source.url("postgres")),
                *("--checkpoint=fast", "--wal-method=stream", "--no-sync"),
                *(["--write-recovery-conf"] if follow else []),
            ]
        )
        assert made.returncode == 0, made.stderr

    def _make_database(self) -> None:
        """It came with the copy; a standby could not make one."""

    def promote(self) -> None:
        """Have a standby take writes from now on; returns when it does."""
        done = self._run([self._programs() / "pg_ctl", "promote", "-D", self.pgdata, "-w"])
        assert done.returncode == 0, done.stderr

    def remove(self) -> None:
        """Stop it and delete its data."""
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)


class Address:
    """What clients connect to: a folder whose name stays while the server behind it changes."""

    def __init__(self, path: Path, server: PostgresServer) -> None:
        self.path = path
        self.lead_to(server)

    def lead_to(self, server: PostgresServer) -> None:
        """New connections reach `server` from now on."""
        draft = self.path.with_suffix(".new")
        draft.symlink_to(server.socket_folder)
        draft.replace(self.path)

    def url(self, login: str, database: str) -> str:
        return f"postgresql://{login}@/{database}?host={self.path}&port=5432"
