"""Short statements of a worker on a pool of its own: autocommit, prepared, one round trip each, several runs in one of them.

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
from psycopg_pool import ConnectionPool, PoolTimeout

from agentops.postgresql.base import assume_role
from runs.engine.batches import Batches
from runs.engine.lease import Lease
from runs.engine.statements import Fenced
from runs.errors import LeaseLost

log = structlog.get_logger(__name__)

#: The connection is gone, or the server told this transaction to try again; the statement may or may not have committed.
#: Errors of class 25 come as InternalError: a standby takes no writes until it is promoted, and a time-out ends sessions
#: that do nothing inside a transaction.
UNSURE = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, PoolTimeout)
UNSURE_DJANGO = (django.db.OperationalError, django.db.InterfaceError, django.db.InternalError, PoolTimeout)
PAUSE = 0.1  # s between two tries of a statement
#: SQLSTATEs, or classes of them, that another try can help: connection, conflict, resources, locks, shutdown, input and
#: output; read-only server, idle in transaction, transaction too long.
PASSING = ("08", "25006", "25P03", "25P04", "40", "53", "55", "57", "58")
#: Connection, read-only server, resources, shutdown.
AWAY = ("08", "25006", "53", "57P")


def passes(error: BaseException) -> bool:
    """Whether this error, one of UNSURE or UNSURE_DJANGO, may be gone at the next try; without a SQLSTATE it may.

    Others (54: a value is too large for an index, say) would come back for ever.
    """
    state = _state(error)
    return state is None or state.startswith(PASSING)


def is_away(error: BaseException) -> bool:
    """Whether the database could not be reached or takes no writes: nobody's fault, and no reason to count anything."""
    if not isinstance(error, (*UNSURE, *UNSURE_DJANGO)):
        return False
    state = _state(error)
    return state is None or state.startswith(AWAY)


def _state(error: BaseException) -> str | None:
    state: str | None = getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None)
    return state


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

    A database may have been given another isolation level; the fences are written for READ COMMITTED, and would come back
    with serialization failures under a stricter one.

    Every statement here finds its rows by an index whatever its parameters are: one plan for all of them costs no more to
    execute, and a claim is not planned anew each time.
    """
    raw.autocommit = True
    (*_, server_pid) = raw.execute(
        "SELECT set_config('TimeZone', 'UTC', false), set_config('plan_cache_mode', 'force_generic_plan', false),"
        " set_config('default_transaction_isolation', 'read committed', false), pg_backend_pid()"
    ).fetchall()[0]
    # A pooler hands the session on to others, who want all kinds of plans.
    if server_pid == raw.info.backend_pid:
        raw.execute(_NESTED_LOOPS)
    if settings.AGENTOPS_DB_ROLE:
        assume_role(raw, settings.AGENTOPS_DB_ROLE)


#: A plan that was made while a table was small must not read all of it once it is large. JIT: before PostgreSQL 18 a plan
#: that cannot do without what is switched off counts as so expensive that it would be compiled.
_NESTED_LOOPS = (
    "SELECT set_config(name, 'off', false)"
    " FROM unnest('{enable_seqscan,enable_hashjoin,enable_mergejoin,jit}'::text[]) AS name"
)


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
            # And with it the plans, which know how large the tables were.
            max_lifetime=300,
            # Its pauses double, and a database that is back must be noticed soon: then the next caller tries anew.
            reconnect_timeout=5,
            name="agentops-engine",
            open=True,
        )
        self.batches = Batches(self.together)

    def close(self) -> None:
        self.pool.close(timeout=1)

    def forget_idle(self) -> None:
        """Replace what the pool holds: its connections are not worth trying."""
        self.pool.drain()

    def once(self, statement: str | Fenced, parameters: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Run one statement; its first row. Raises one of UNSURE if the answer was lost."""
        keys = 0
        if isinstance(statement, Fenced):
            keys, parameters = len(statement.key), statement.parameters([statement.row(parameters)])
            statement = statement.alone
        rows = self.all(statement, parameters)
        return rows[0][keys:] if rows else None

    def all(self, statement: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with self.pool.connection() as raw:
            return raw.execute(statement, parameters, prepare=True).fetchall()

    def together(self, statement: Fenced, rows: list[str]) -> list[tuple[Any, ...]]:
        """Run one statement for all of these rows. Raises one of UNSURE if the answer was lost."""
        return self.all(statement.together, statement.parameters(rows))

    def until_sure(
        self, statement: str | Fenced, parameters: Mapping[str, Any], lease: Lease
    ) -> tuple[tuple[Any, ...] | None, bool]:
        """Repeat a fenced (so repeatable) statement until its answer arrives.

        Returns its first row and whether an earlier answer was lost (then no row may mean: it had already been applied).
        Raises LeaseLost when the lease ends first.
        """
        unsure = False
        if isinstance(statement, Fenced):
            row, unsure = self.batches.write(statement, parameters)
            if row is not None:
                return row, False
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
