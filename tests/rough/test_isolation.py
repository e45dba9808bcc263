"""A database whose default is a stricter isolation level, and transactions that PostgreSQL asks to try again."""

import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from django.conf import settings
from django.db import connection, transaction

from agentops.sandbox.client import SandboxLedger
from runs.engine.database import Database
from runs.errors import StateMismatch
from runs.lifecycle import Actor
from runs.models import Operation, Run, Signal
from runs.models.operation import OpStatus
from runs.services import cancel, receive_signal
from tests import factories
from tests.harness.processes import Processes
from tests.races import Caller
from tests.rough.conftest import Cluster, Login, assert_nothing_lost_or_repeated, begin, left

pytestmark = pytest.mark.django_db(transaction=True)

# Every 13th statement that writes is refused as PostgreSQL refuses what it cannot put into an order. A sequence is not rolled
# back, so that the next try passes.
CONFLICTS = """
CREATE SEQUENCE rough_writes;
CREATE SEQUENCE rough_conflicts;
CREATE FUNCTION rough_conflict() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF nextval('rough_writes') % 13 = 0 THEN
        PERFORM nextval('rough_conflicts');
        RAISE EXCEPTION 'could not serialize access' USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN NULL;
END $$;
"""
TABLES = ("runs_run", "runs_operation", "runs_attempt", "runs_event", "runs_signal", "runs_worker")


@pytest.fixture(params=["repeatable read", "serializable"])
def strict(request: pytest.FixtureRequest) -> Iterator[str]:
    """The level that sessions of the test database begin with."""
    set_default(request.param)
    yield request.param
    set_default("read committed")


def set_default(level: str) -> None:
    name = settings.DATABASES["default"]["NAME"]
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")
    connection.close()


def test_every_session_works_under_read_committed_whatever_the_database_says(strict: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SHOW default_transaction_isolation")
        assert cursor.fetchone() == (strict,)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        assert cursor.fetchone() == ("read committed",)
    database = Database(2)
    try:
        assert database.once("SHOW transaction_isolation", {}) == ("read committed",)
    finally:
        database.close()


def test_runs_and_verbs_survive_conflicts_under_any_isolation_level(
    strict: str, login: Login, cluster: Cluster, processes: Processes, ledger: SandboxLedger
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(CONFLICTS)
        for table in TABLES:
            cursor.execute(
                f"CREATE TRIGGER aa_rough BEFORE INSERT OR UPDATE ON {table}"
                " FOR EACH STATEMENT EXECUTE FUNCTION rough_conflict()"
            )
    admin = factories.admin()
    ids = begin(8)
    waiting = begin(6, "rough_signal")
    worker = cluster.start(login.url)
    processes.wait_until(
        lambda: Run.objects.filter(workflow="rough_signal", status="waiting").count() == 6,
        40,
        "six runs wait",
    )
    verbs: list[Callable[[], object]] = []
    for number, pk in enumerate(waiting):
        # Signal and cancel meet at the same run; one of them is first.
        verbs += [partial(signal, admin, pk, number), partial(cancel, admin, pk)]
    barrier = threading.Barrier(len(verbs))

    def at_once(verb: Callable[[], object]) -> object:
        barrier.wait(20)
        return verb()

    callers = [Caller(partial(at_once, verb)) for verb in verbs]
    for caller in callers:
        caller.join()
        assert caller.error is None or isinstance(caller.error, StateMismatch), caller.error
    processes.wait_until(
        lambda: left() == Run.objects.filter(status="cancelled").count(), 60, "all runs have ended"
    )
    assert Signal.objects.count() == 6
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value FROM rough_conflicts")
        assert cursor.fetchone()[0] > 10
    # A cancel that comes between the refund and the end finds it done: the record says which, and the ledger must agree.
    recorded = Operation.objects.filter(run_id__in=waiting, name="z_refund", status=OpStatus.DONE)
    refunded = set(recorded.values_list("run_id", flat=True))
    assert refunded >= set(
        Run.objects.filter(pk__in=waiting, status="completed").values_list("pk", flat=True)
    )
    assert_nothing_lost_or_repeated(ids, ledger, more_refunds=len(refunded))
    assert worker.returncode is None


def signal(admin: Actor, run_id: uuid.UUID, number: int) -> object:
    return receive_signal(admin, name="go", payload={}, external_id=str(number), source="test", run_id=run_id)
