"""A PgBouncer in transaction mode in front of a server; the program comes from Debian's package `pgbouncer`."""

import os
import shutil
import subprocess
from pathlib import Path
from urllib.parse import quote

import psycopg

from agentops.embedded import PostgresServer
from tests.harness.waiting import wait_until

PORT = 6432


def program() -> Path | None:
    """Where PgBouncer is; Debian puts it where only root's PATH leads."""
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return Path(found) if found else None


class PgBouncer:
    """Listens on a socket in `folder`; sessions of the server are shared by all clients of a login and database."""

    def __init__(
        self, folder: Path, server: PostgresServer, logins: list[str], *, pool_size: int = 8
    ) -> None:
        self.folder, self.server = folder, server
        folder.mkdir()
        (folder / "users.txt").write_text("".join(f'"{login}" ""\n' for login in logins))
        (folder / "pgbouncer.ini").write_text(
            f"""[databases]
* = host={server.socket_folder} port=5432

[pgbouncer]
listen_port = {PORT}
unix_socket_dir = {folder}
auth_type = trust
auth_file = {folder}/users.txt
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 500
server_fast_close = 1
"""
        )
        command = [str(program()), str(folder / "pgbouncer.ini")]
        # It refuses to run as root, and whoever reaches the server's socket is let in.
        owner = server.socket_folder.stat()
        own = os.geteuid() == 0
        if own:
            os.chown(folder, owner.st_uid, owner.st_gid)
        with (folder / "log").open("ab") as log:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                user=owner.st_uid if own else None,
                group=owner.st_gid if own else None,
                extra_groups=[] if own else None,
            )
        wait_until(lambda: (folder / f".s.PGSQL.{PORT}").exists(), 20, "PgBouncer listens", evidence=self.log)

    def url(self, login: str, database: str) -> str:
        return f"postgresql://{login}@/{database}?host={quote(str(self.folder), safe='')}&port={PORT}"

    def ask(self, command: str) -> list[dict[str, object]]:
        """What PgBouncer's console answers, such as to SHOW POOLS."""
        console = self.url("pgbouncer", "pgbouncer")
        with psycopg.connect(console, autocommit=True, cursor_factory=psycopg.ClientCursor) as raw:
            answer = raw.execute(command.encode())
            names = [column.name for column in answer.description or ()]
            return [dict(zip(names, row, strict=True)) for row in answer] if names else []

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def stop(self) -> None:
        self._popen.terminate()
        self._popen.wait(timeout=20)
