"""Short statements of a worker on a pool of its own: autocommit, prepared, one round trip each.

Colder moves go through Django's connection of the thread (`cold`), which is given back after each transaction.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import django.db
import psycopg
import structlog
from django.conf import settings
from django.db import connection, transaction
from psycopg import sql
from psycopg_pool import ConnectionPool, PoolTimeout

from runs.engine.lease import Lease
from runs.errors import LeaseLost

log = structlog.get_logger(__name__)

#: The connection is gone, or the server told this transaction to try again; the statement may or may not have committed.
UNSURE = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout)
UNSURE_DJANGO = (django.db.OperationalError, django.db.InterfaceError, PoolTimeout)
PAUSE = 0.1  # s between two tries of a statement
#: Classes of SQLSTATE that another try can help: connection, conflict, resources, locks, shutdown, input and output.
PASSING = ("08", "40", "53", "55", "57", "58")


def passes(error: BaseException) -> bool:
    """Whether this error, one of UNSURE or UNSURE_DJANGO, may be gone at the next try; without a SQLSTATE it may.

    Others (54: a value is too large for an index, say) would come back for ever.
    """
    state = getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None)
    return state is None or state[:2] in PASSING


def connection_parameters() -> dict[str, Any]:
    """libpq parameters of the default database."""
    parameters = dict(connection.get_connection_params())
    for name in (
        "cursor_factory",
        "context",
        "pool",
        "assume_role",
        "server_side_binding",
        "isolation_level",
    ):
        parameters.pop(name, None)
    # Django turns them off for its own connections; planning would take as long as executing.
    parameters["prepare_threshold"] = 5 if settings.AGENTOPS_PREPARED_STATEMENTS else None
    return parameters


def configure(raw: psycopg.Connection[Any]) -> None:
    """What Django would do after connecting (time zone, the role of web and workers), and plans that are kept.

    Every statement here finds its rows by an index whatever its parameters are: one plan for all of them costs no more to
    execute, and a claim is not planned anew each time.
    """
    raw.autocommit = True
    raw.execute(
        "SELECT set_config('TimeZone', 'UTC', false), set_config('plan_cache_mode', 'force_generic_plan', false)"
    )
    if settings.AGENTOPS_DB_ROLE:
        raw.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(settings.AGENTOPS_DB_ROLE)))


def connect_directly() -> psycopg.Connection[Any]:
    """A connection outside the pool, for LISTEN and beats."""
    raw = psycopg.connect(**connection_parameters(), autocommit=True)
    configure(raw)
    return raw


class Database:
    """Opened after the fork, never before: a forked pool would share sessions."""

    def __init__(self, size: int) -> None:
        self.pool = ConnectionPool(
            kwargs=connection_parameters() | {"autocommit": True},
            configure=configure,
            min_size=1,
            max_size=size,
            timeout=10,
            max_idle=60,
            name="agentops-engine",
            open=True,
        )

    def close(self) -> None:
        self.pool.close(timeout=1)

    def forget_idle(self) -> None:
        """Replace what the pool holds: its connections are not worth trying."""
        self.pool.drain()

    def once(self, statement: str, parameters: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Run one statement; its first row. Raises one of UNSURE if the answer was lost."""
        with self.pool.connection() as raw:
            cursor = raw.execute(statement, parameters, prepare=True)
            return cursor.fetchone() if cursor.description else None

    def all(self, statement: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with self.pool.connection() as raw:
            return raw.execute(statement, parameters, prepare=True).fetchall()

    def until_sure(
        self, statement: str, parameters: Mapping[str, Any], lease: Lease
    ) -> tuple[tuple[Any, ...] | None, bool]:
        """Repeat a fenced (so repeatable) statement until its answer arrives.

        Returns its first row and whether an earlier answer was lost (then no row may mean: it had already been applied).
        Raises LeaseLost when the lease ends first.
        """
        unsure = False
        while True:
            try:
                return self.once(statement, parameters), unsure
            except UNSURE as error:
                if not passes(error):
                    raise
                unsure = True
                log.warning("statement.repeat", error=str(error))
                if lease.remaining <= 0:
                    raise LeaseLost("the database did not answer before the lease ended") from error
                time.sleep(PAUSE)


def cold[T](work: Callable[[bool], T], lease: Lease | None = None, *, tries: int = 5) -> T:
    """Run `work(unsure)` in a transaction of this thread's Django connection and give the connection back.

    `unsure` is True when an earlier commit's answer was lost. With a lease it is repeated until that ends (LeaseLost);
    without one, `tries` times, then the last error is raised.
    """
    unsure = False
    while True:
        try:
            with transaction.atomic():
                return work(unsure)
        except UNSURE_DJANGO as error:
            if not passes(error):
                raise
            unsure = True
            tries -= 1
            log.warning("transaction.repeat", error=str(error))
            if lease is not None and lease.remaining <= 0:
                raise LeaseLost("the database did not answer before the lease ended") from error
            if lease is None and tries <= 0:
                raise
            time.sleep(PAUSE)
        finally:
            if not connection.in_atomic_block:
                connection.close()
