"""Time-outs and a full connection limit: workers and verbs go on, and nothing is lost or repeated."""

from pathlib import Path

import httpx
import pytest
from django.db import connection, transaction
from django.test import Client

from agentops.sandbox.client import SandboxLedger
from runs.errors import Unavailable
from runs.models import Attempt, Run
from runs.services import cancel
from tests import factories
from tests.harness.failpoints import Failpoint, environment
from tests.harness.processes import Processes
from tests.races import Caller, run_held
from tests.rough.conftest import (
    Cluster,
    Login,
    assert_nothing_lost_or_repeated,
    begin,
    cookies,
    left,
    nobody_was_taken_for_dead,
)

pytestmark = pytest.mark.django_db(transaction=True)

# Every 23rd write of a row sleeps for longer than the statement may take, and every 29th waits for a lock in vain. A sequence
# is not rolled back, so that the next try passes.
SLOW = """
CREATE SEQUENCE rough_writes;
CREATE FUNCTION rough_slow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    n bigint := nextval('rough_writes');
BEGIN
    IF n % 23 = 0 THEN PERFORM pg_sleep(5); END IF;
    IF n % 29 = 0 THEN RAISE EXCEPTION 'canceling statement due to lock timeout' USING ERRCODE = 'lock_not_available'; END IF;
    RETURN NEW;
END $$;
"""
TABLES = ("runs_run", "runs_operation", "runs_worker")


def slow_writes(function: str, name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(function)
        for table in TABLES:
            cursor.execute(
                f"CREATE TRIGGER aa_rough BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()"
            )


def test_workers_go_on_although_statements_locks_and_transactions_time_out(
    login: Login, cluster: Cluster, processes: Processes, ledger: SandboxLedger
) -> None:
    login.alter("SET statement_timeout = '300ms'")
    login.alter("SET idle_in_transaction_session_timeout = '200ms'")
    slow_writes(SLOW, "rough_slow")
    ids = begin(12)
    # The body of an atomic step stays idle inside its transaction.
    idle = environment(Failpoint("atomic.before_commit", "delay", 0.5, nth=3))
    worker = cluster.start(login.url, env=idle)
    processes.wait_until(lambda: left() == 0, 60, "all runs complete")
    errors = Attempt.objects.values_list("error", flat=True)
    said = worker.log_path.read_text() + "\n".join(errors)
    assert "canceling statement due to statement timeout" in said
    assert "canceling statement due to lock timeout" in said
    assert "terminating connection due to idle-in-transaction timeout" in said
    assert_nothing_lost_or_repeated(ids, ledger)
    assert worker.returncode is None


def test_a_verb_that_waits_too_long_for_a_lock_says_so_and_changes_nothing() -> None:
    run, admin = factories.run(), factories.admin()

    def impatient() -> object:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '30ms'")
        return cancel(admin, run.pk)

    with run_held(run.pk):
        caller = Caller(impatient).join()
    assert isinstance(caller.error, Unavailable)
    assert str(caller.error).startswith("nothing was changed: others are at work on the same rows")
    run.refresh_from_db()
    assert run.cancel_requested_at is None


def test_a_verb_goes_on_when_the_lock_comes_free_between_two_tries() -> None:
    run, admin = factories.run(), factories.admin()
    refused = 0

    def count(execute, sql, params, many, context):
        nonlocal refused
        try:
            return execute(sql, params, many, context)
        except Exception:
            refused += 1
            raise

    with connection.cursor() as cursor:
        cursor.execute("CREATE SEQUENCE rough_tries")
        cursor.execute(
            "CREATE FUNCTION rough_busy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF nextval('rough_tries') < 4 THEN RAISE EXCEPTION 'busy' USING ERRCODE = 'lock_not_available'; END IF;"
            " RETURN NEW; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER rough BEFORE UPDATE ON runs_run FOR EACH ROW EXECUTE FUNCTION rough_busy()"
        )
    with connection.execute_wrapper(count):
        cancel(admin, run.pk)
    assert refused == 3
    assert Run.objects.get(pk=run.pk).status == "cancelled"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("default_transaction_read_only = on", "takes no writes now"),
        ("statement_timeout = '1ms'", "longer than the database"),
    ],
)
def test_a_form_that_the_database_refuses_is_answered_with_503_and_a_sentence(
    setting: str, said: str
) -> None:
    run = factories.run()
    client = Client(raise_request_exception=False)
    client.force_login(factories.user("", "admins"))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION rough_sleep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " PERFORM pg_sleep(0.2); RETURN NEW; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER rough BEFORE UPDATE ON runs_run FOR EACH ROW EXECUTE FUNCTION rough_sleep()"
        )
    with connection.cursor() as cursor:
        cursor.execute(f"SET {setting.replace('1ms', '150ms')}")
    try:
        answer = client.post(f"/runs/{run.pk}/cancel/", {"seen_version": run.event_seq, "reason": "test"})
    finally:
        connection.close()
    assert answer.status_code == 503
    assert said in answer.content.decode()
    assert Run.objects.get(pk=run.pk).cancel_requested_at is None


def test_workers_survive_a_full_connection_limit_and_the_console_says_what_is_wrong(
    login: Login, cluster: Cluster, processes: Processes, ledger: SandboxLedger
) -> None:
    ids = begin(12, seconds=1.5)
    signed_in = cookies()
    worker = cluster.start(login.url)
    before = {process.pid for process in worker.tree().workers}
    web, console = processes.web(threads=1, env=cluster.environment(login.url))
    processes.wait_until(lambda: Run.objects.filter(step="wait").exists(), 30, "runs are under way")

    login.alter("CONNECTION LIMIT 0")
    login.end_sessions()
    worker.wait_until(
        lambda: worker.log_path.read_text().count("beat.failed") >= 8, 30, "beats find no connection for long"
    )
    answer = httpx.get(f"{console}/runs/", cookies=signed_in, timeout=20)
    assert (answer.status_code, "The database does not answer" in answer.text) == (503, True)
    assert "Traceback" not in answer.text
    assert "too many connections" in worker.log_path.read_text()

    login.alter("CONNECTION LIMIT -1")
    processes.wait_until(lambda: left() == 0, 60, "all runs complete")
    assert_nothing_lost_or_repeated(ids, ledger)
    assert nobody_was_taken_for_dead()
    assert {process.pid for process in worker.tree().workers} == before
    assert httpx.get(f"{console}/runs/", cookies=signed_in, timeout=20).status_code == 200
    assert web.returncode is None


def test_a_command_without_a_database_ends_with_a_sentence(processes: Processes, tmp_path: Path) -> None:
    nowhere = f"postgresql://nobody@/nothing?host={tmp_path}"
    for command in (["start", "parcel"], ["migrate"]):
        child = processes.manage(*command, env={"DATABASE_URL": nowhere})
        assert child.wait_ended(30) == 1
        assert "The database does not answer as it should" in child.log()
        assert "Traceback" not in child.log()
