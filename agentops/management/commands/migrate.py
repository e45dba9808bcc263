"""`manage.py migrate`: Django's, made to change a database on which workers are at work."""

import time
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from django.core.management.base import CommandError, CommandParser
from django.core.management.commands import migrate
from django.db import DatabaseError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

log = structlog.get_logger(__name__)

#: Who holds this advisory lock migrates. It belongs to the session: whoever is killed gives it back.
LOCK = 0x6167656E746F7073
#: lock_not_available and deadlock_detected: the migration that stumbled was rolled back, or can be run again.
AGAIN = frozenset({"55P03", "40P01"})
PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0


class Command(migrate.Command):
    help = (
        f"{migrate.Command.help} Waits for each lock for a short time only, since whoever comes later waits behind it, and"
        " tries again until its patience is at an end. Connect directly to PostgreSQL, not through a pooler."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--lock-timeout",
            type=_seconds,
            default=1.0,
            metavar="SECONDS",
            help="how long one statement waits for a lock, and workers behind it (default: %(default)g)",
        )
        parser.add_argument(
            "--patience",
            type=_seconds,
            default=300.0,
            metavar="SECONDS",
            help="how long it goes on trying, and waits for another migrate (default: %(default)g)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        connection = connections[options["database"]]
        end = time.monotonic() + options["patience"]
        with _alone(connection, end):
            pause = PAUSE_S
            while True:
                try:
                    with _settings(connection, options["lock_timeout"]):
                        super().handle(*args, **options)
                    return
                except OperationalError as error:
                    if getattr(error.__cause__, "sqlstate", None) not in AGAIN:
                        raise
                    if time.monotonic() + pause > end:
                        raise CommandError(
                            f"The tables are in use ({str(error).strip()}); what was applied stays. Look for long"
                            f" transactions in pg_stat_activity, then migrate again.{_others(connection)}"
                        ) from error
                    log.warning("migrate.again", error=str(error).strip(), pause_s=pause)
                time.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 < number < 1e6:
        raise ArgumentTypeError(f"{text} is not a number of seconds greater than 0")
    return number


@contextmanager
def _alone(connection: BaseDatabaseWrapper, end: float) -> Iterator[None]:
    """Hold the lock of migrations on a session of its own. Raises CommandError when another one does not end."""
    guard = connection.copy()
    try:
        with guard.cursor() as cursor:
            while True:
                cursor.execute("SELECT pg_try_advisory_lock(%s)", [LOCK])
                if cursor.fetchone()[0]:
                    break
                if time.monotonic() > end:
                    raise CommandError(f"Another migrate is at work on this database.{_holder(guard)}")
                time.sleep(PAUSE_S)
        yield
    finally:
        guard.close()


@contextmanager
def _settings(connection: BaseDatabaseWrapper, lock_timeout_s: float) -> Iterator[None]:
    """Bounded waits for locks; no bound on work, since to validate or to build an index of a large table takes its time.

    PostgreSQL looks whether the migrator still lives, or a killed one would go on and hold its locks.
    """
    wanted = {
        "lock_timeout": f"{max(1, int(lock_timeout_s * 1000))}ms",
        "statement_timeout": "0",
        "idle_in_transaction_session_timeout": "0",
        "client_connection_check_interval": "2s",
    }
    with connection.cursor() as cursor:
        for name, value in wanted.items():
            try:
                cursor.execute("SELECT set_config(%s, %s, false)", [name, value])
            except DatabaseError as error:
                # Not every system that PostgreSQL runs on can notice that a client is gone.
                log.info("migrate.setting", name=name, error=str(error).strip())
    try:
        yield
    finally:
        # The connection may go on to be used, by tests for one; where it broke, its settings are gone with it.
        if connection.connection is not None and not connection.connection.closed:
            with connection.cursor() as cursor:
                for name in wanted:
                    cursor.execute(f"RESET {name}")


def _others(connection: BaseDatabaseWrapper) -> str:
    """The oldest transaction of this database, as a sentence; empty if there is none."""
    return _told(
        connection,
        "SELECT pid, round(extract(epoch FROM statement_timestamp() - xact_start)), left(query, 80) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
        " ORDER BY xact_start LIMIT 1",
        [],
        "The oldest transaction is that of process {0}, {1} s old: {2}",
    )


def _holder(connection: BaseDatabaseWrapper) -> str:
    return _told(
        connection,
        "SELECT l.pid, round(extract(epoch FROM statement_timestamp() - a.backend_start)) FROM pg_locks l"
        " JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' AND l.granted"
        " AND (l.classid::bigint << 32) + l.objid::bigint = %s LIMIT 1",
        [LOCK],
        "It is PostgreSQL's process {0}, connected for {1} s.",
    )


def _told(connection: BaseDatabaseWrapper, question: str, parameters: list[int], sentence: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(question, parameters)
        row = cursor.fetchone()
    return "" if row is None else " " + sentence.format(*row)
