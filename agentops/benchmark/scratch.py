"""The scratch databases: made on the configured server, migrated, dropped at the end whatever happens."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from django.conf import settings
from django.core.management.base import CommandError
from django.db import connection
from psycopg import sql

from agentops import embedded
from runs.engine.database import connection_parameters

ENGINE, FLOOR = "agentops_benchmark", "agentops_benchmark_floor"
#: Settings without which figures say nothing.
DURABLE = ("fsync", "synchronous_commit")
#: One benchmark at a time on a server; any number that nobody else uses.
_ADVISORY_KEY = 0x_A6E7_0B5


@contextmanager
def scratch_databases() -> Iterator[psycopg.Connection]:
    """Make both databases, point this process at ENGINE, and drop them at the end.

    Yields a session of the configured database that may look at the whole server. Raises CommandError when the server is
    not durable, when another benchmark is at work, and when the user may not create databases.
    """
    with psycopg.connect(**connection_parameters(), autocommit=True) as server:
        _refuse_unless_durable(server)
        row = server.execute("SELECT pg_try_advisory_lock(%s)", [_ADVISORY_KEY]).fetchone()
        if not (row and row[0]):
            raise CommandError("Another benchmark is at work on this server: wait until it has ended.")
        configured = dict(connection.settings_dict)
        try:
            for name in (ENGINE, FLOOR):
                _drop(server, name)  # what an earlier one left that was killed
                _create(server, name)
            connection.close()
            # The scratch database belongs to whoever migrates it: roles of the installation have no rights there.
            options = {k: v for k, v in configured["OPTIONS"].items() if k != "assume_role"}
            connection.settings_dict.update(NAME=ENGINE, OPTIONS=options)
            _migrate()
            yield server
        finally:
            connection.close()
            connection.settings_dict.update(configured)
            for name in (ENGINE, FLOOR):
                _drop(server, name)


def url(database: str) -> str:
    """A libpq URL of one of the scratch databases, for other processes."""
    configured = settings.AGENTOPS_DATABASE_URL
    if not configured:
        folder = embedded.server_folder(settings.AGENTOPS_DATA_DIR)
        return embedded.PostgresServer(folder).url(database)
    return urlunsplit(urlsplit(configured)._replace(path=f"/{quote(database)}"))


def environment() -> dict[str, str]:
    """The environment of children on ENGINE: this process's, with the engine's default settings."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("AGENTOPS_WORKER_") and name not in _LEFT_AT_DEFAULT
    }
    return ours | {
        "DATABASE_URL": url(ENGINE),
        "AGENTOPS_APPS": ",".join([*settings.AGENTOPS_APPS, "agentops.benchmark"]),
        "PYTHONUNBUFFERED": "1",
    }


_LEFT_AT_DEFAULT = frozenset(
    {
        "AGENTOPS_BEAT_SECONDS",
        "AGENTOPS_DB_ROLE",
        "AGENTOPS_FAILPOINTS",
        "AGENTOPS_GRACE_SECONDS",
        "AGENTOPS_LEASE_SECONDS",
        "AGENTOPS_POLL_SECONDS",
        "AGENTOPS_SEND_MARGIN_SECONDS",
        "DATABASE_URL_FILE",
    }
)


def _refuse_unless_durable(server: psycopg.Connection) -> None:
    for name in DURABLE:
        row = server.execute("SELECT current_setting(%s)", [name]).fetchone()
        if row and row[0] == "off":
            raise CommandError(
                f"The server runs with {name} = off: what it commits is not durable, so figures mean nothing."
            )


def _create(server: psycopg.Connection, name: str) -> None:
    try:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except psycopg.errors.InsufficientPrivilege as error:
        raise CommandError(
            f"The benchmark needs a database of its own: grant CREATEDB to the user ({error})."
        ) from error


def _drop(server: psycopg.Connection, name: str) -> None:
    server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _migrate() -> None:
    result = subprocess.run(
        [sys.executable, "manage.py", "migrate", "--no-input", "--skip-checks", "--verbosity", "0"],
        cwd=settings.BASE_DIR,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise CommandError(f"The scratch database could not be migrated:\n{result.stderr.strip()}")
