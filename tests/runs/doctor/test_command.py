"""`manage.py doctor` as a whole: one snapshot, nothing changed, a report for people and one for machines."""

import io
import json
from pathlib import Path

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from pytest_django import Settings
from rich.console import Console

from approvals.models import Approval
from approvals.services import decide, edit
from runs import clock, doctor
from runs.errors import Retryable
from runs.lifecycle import Actor
from runs.management.commands import doctor as command
from runs.models import Run
from runs.models.operation import Kind, OpStatus
from runs.services.cancel import cancel
from runs.services.doubt import answer_doubt
from runs.services.retry import retry
from runs.services.signal import receive_signal
from runs.services.start import start
from runs.states import Status
from tests import factories
from tests.harness.data import fill
from tests.runs.doctor.conftest import execute
from tests.runs.engine import flows
from tests.runs.engine.conftest import running_worker, until

pytestmark = pytest.mark.django_db(transaction=True)

SYSTEM = Actor("system")

#: The throw-away server of the tests may lose data, so as to be fast: the one true finding on it.
ALLOWED = {"durability"}


def found(grace: float | None = None) -> set[str]:
    return {problem.check for problem in doctor.examine(grace)} - ALLOWED


def call(*arguments: str) -> tuple[int, str]:
    """Exit code and text of the command."""
    out = io.StringIO()
    try:
        call_command("doctor", *arguments, stdout=out)
    except SystemExit as end:
        return int(str(end.code)), out.getvalue()
    return 0, out.getvalue()


def test_an_empty_database_is_healthy():
    assert found() == set()


def test_a_large_mixed_data_set_is_healthy():
    factories.worker()
    fill(300)
    assert found(grace=0) == set()


def test_runs_in_every_status_and_everything_that_people_did_to_them_are_healthy():
    for status in set(Status) - {Status.WAITING}:
        run = factories.run(status, **({"queue": "served"} if status != Status.RUNNING else {}))
        assert run.status == status
    factories.worker(queues=["served", "default"])
    factories.signal_wait()
    done = factories.run()
    factories.operation(done, Kind.EFFECT, OpStatus.DONE)
    factories.operation(done, Kind.QUERY, OpStatus.DONE)
    factories.operation(done, Kind.EFFECT, OpStatus.RETRY)
    retry(factories.support(), factories.run(Status.FAILED).pk)
    cancel(factories.support(), factories.run().pk)
    cancel(factories.support(), factories.signal_wait().run_id)
    cancel(factories.support(), factories.run(Status.RUNNING).pk)
    cancel(factories.support(), factories.doubt().run_id)
    answer_doubt(factories.support(), factories.doubt(name="once").pk, happened=True, result="ok")
    wait = factories.signal_wait()
    for run_id in (wait.run_id, factories.run().pk):
        receive_signal(SYSTEM, name="paid", payload={}, external_id=str(run_id), source="bank", run_id=run_id)
    for verdict in ("approve", "reject"):
        approval = factories.approval()
        decide(
            factories.operator(), approval.pk, version=1, digest=approval.digest, verdict=verdict, reason="so"
        )
    edited = factories.approval()
    edit(factories.operator(), edited.pk, version=1, arguments={"order": "1", "amount": "2.00"})
    factories.approval()
    assert found(grace=60) == set()


def test_what_the_engine_leaves_behind_is_healthy(settings: Settings):
    settings.AGENTOPS_BEAT_SECONDS, settings.AGENTOPS_POLL_SECONDS = 0.2, 0.05
    flows.world.__init__()  # type: ignore[misc]
    flows.world.script = [Retryable("busy"), "lost"]
    begun: list[Run] = []
    with running_worker():
        for workflow, n, text in [
            ("t_effect", 1, "pay"),
            ("t_effect", 2, "charge"),
            ("t_hello", 1, "hi"),
            ("t_ten", 0, ""),
            ("t_hello_async", 0, ""),
            ("t_failing", 2, ""),
            ("t_failing", 99, ""),
            ("t_failing", 0, "declared"),
            ("t_slow", 0, ""),
            ("t_sleep", 0, ""),
            ("t_signal", 0, ""),
            ("t_guarded", 5, ""),
            ("t_guarded", 6, ""),
            ("t_trip", 0, ""),
        ]:
            begun.append(start(SYSTEM, workflow, {"n": n, "text": text}).run)
        standing = {"waiting", "attention", "completed", "failed", "cancelled"}
        for run in begun:
            until(run, *standing)
        yes, no = Approval.objects.filter(state="open").order_by("id")
        decide(factories.operator(), yes.pk, version=1, digest=yes.digest, verdict="approve")
        decide(factories.operator(), no.pk, version=1, digest=no.digest, verdict="reject", reason="no")
        for run in begun:
            if run.status == "waiting" and run.workflow == "t_trip":
                cancel(factories.support(), run.pk)
        for approval in (yes, no):
            until(approval.run, "completed", "failed")
        for run in begun:
            until(run, *standing)
    assert {run.status for run in begun} >= {"waiting", "completed", "failed"}
    assert found(grace=5) == set()


def test_a_busy_database_raises_no_false_alarm(settings: Settings):
    settings.AGENTOPS_BEAT_SECONDS, settings.AGENTOPS_POLL_SECONDS = 0.2, 0.05
    flows.world.__init__()  # type: ignore[misc]
    looked = 0
    with running_worker():
        for turn in range(60):
            workflow, text = [("t_effect", "pay"), ("t_failing", ""), ("t_signal", ""), ("t_guarded", "")][
                turn % 4
            ]
            start(SYSTEM, workflow, {"n": turn % 3 + 1, "text": text})
        moving = Run.objects.filter(status__in=["queued", "running", "retrying"])
        while moving.exists() or looked < 3:
            assert found() == set()
            looked += 1
    assert Run.objects.filter(status="completed").count() >= 15


def test_a_finding_ends_with_exit_code_1_and_a_readable_list():
    run = factories.run(Status.ATTENTION, attention_kind="in_doubt", reason="?")
    code, text = call()
    assert code == 1
    assert "attention_without_doubt" in text
    assert str(run.pk) in text
    assert "Force these runs on" in text


def test_in_a_pipe_a_finding_is_not_cut_and_not_wrapped():
    queue = "q" * 300
    past = "2020-01-01T00:00:00Z"
    factories.run(queue=queue, wake_at=past, sort_at=past)
    _, text = call()
    assert f"queue {queue}: 1 due\n" in text
    assert not text.startswith("\n")


def test_warnings_leave_the_exit_code_at_0(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "INSTALLATION", [])
    factories.worker(beats=False)
    execute(
        "INSERT INTO runs_policy (scope, name, paused, pause_reason, revision, changed_by)"
        " VALUES ('tool', 'gone', false, '', 1, '')"
    )
    code, text = call()
    assert code == 0
    assert "policy_of_nothing" in text
    assert "0 errors" in text


def test_nothing_wrong_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "INSTALLATION", [])
    code, text = call()
    assert code == 0
    assert text.strip().endswith("nothing wrong.")


def test_the_report_for_machines_has_exactly_these_keys(tmp_path: Path):
    for _ in range(7):
        factories.run(Status.WAITING)
    code, _ = call("--json", str(tmp_path / "report.json"))
    report = json.loads((tmp_path / "report.json").read_text())
    assert code == 1
    assert set(report) == {"ok", "problems"}
    assert report["ok"] is False
    (problem,) = [p for p in report["problems"] if p["check"] not in ALLOWED]
    assert set(problem) == {"check", "severity", "count", "sample", "advice"}
    assert (problem["check"], problem["severity"], problem["count"]) == ("no_wake_source", "error", 7)
    assert len(problem["sample"]) == 5


def test_a_report_that_cannot_be_written_is_one_sentence(tmp_path: Path):
    with pytest.raises(CommandError, match=r"cannot be written to .*: No such file or directory"):
        call("--json", str(tmp_path / "nowhere" / "report.json"))


def test_names_from_outside_do_not_steer_the_terminal():
    past = clock.now()
    factories.run(queue="\x1b[2J[red]evil", wake_at=past, sort_at=past)
    problem = doctor.Problem("unserved_queue", "error", 1, ["queue \x1b[2J[red]evil"], "Do.")
    out = io.StringIO()
    Console(file=out, markup=False).print(command.described(problem))
    assert "\x1b" not in out.getvalue()
    assert "[red]evil" in out.getvalue()


def test_an_incomplete_schema_is_reported_instead_of_stumbled_over():
    execute("DELETE FROM django_migrations WHERE app = 'approvals' AND name = '0009_alike'")
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE runs_message")
        cursor.execute("DROP FUNCTION agentops_event_head CASCADE")
    assert {"migrations", "missing_functions", "data"} <= found()


def test_an_incomplete_table_does_not_end_the_examination_in_a_traceback():
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE runs_message")
    code, text = call()
    assert code == 1
    assert "runs_message" in text


def test_nothing_can_be_written_while_it_looks():
    with pytest.raises(Exception, match="read-only transaction"):
        doctor.examine(begun=lambda name: execute("DELETE FROM runs_run"))


def test_all_tables_are_seen_as_they_were_when_it_began(database_url: str):
    """On a busy database two tables that are read one after the other contradict each other at every moment."""
    wait = factories.signal_wait()

    def meddle(name: str) -> None:
        if name == "no_wake_source":
            with psycopg.connect(database_url) as other:
                other.execute(
                    "UPDATE runs_operation SET status = 'closed', finished_at = now() WHERE id = %s",
                    [wait.pk],
                )

    problems = doctor.examine(grace=0, begun=meddle)
    assert {problem.check for problem in problems} <= ALLOWED
    assert found(grace=0) == {"no_wake_source", "lost_wakeup"}


def test_what_is_woken_while_it_begins_is_no_lost_wakeup(database_url: str):
    wait = factories.signal_wait()
    settled = "UPDATE runs_operation SET status = 'done', finished_at = now() WHERE id = %s"
    woken = "UPDATE runs_run SET wake_at = now(), sort_at = now() WHERE id = %s"

    def wake(name: str) -> None:
        if name == "configuration":
            with psycopg.connect(database_url) as other:
                other.execute(settled, [wait.pk])
                other.execute(woken, [wait.run_id])

    problems = doctor.examine(grace=0, begun=wake)
    assert "lost_wakeup" not in {problem.check for problem in problems}
    wake_at = Run.objects.get(pk=wait.run_id).wake_at
    assert wake_at is not None
    assert clock.now() >= wake_at


def test_it_waits_for_no_lock_that_a_writer_holds(database_url: str):
    run = factories.run()
    with psycopg.connect(database_url) as other, connection.cursor() as cursor:
        other.execute("UPDATE runs_run SET priority = 1 WHERE id = %s", [run.pk])
        cursor.execute("SET lock_timeout = '1s'")
        assert found() == set()
        other.rollback()


def test_the_role_of_web_and_workers_may_look():
    factories.run()
    factories.worker()
    with connection.cursor() as cursor:
        cursor.execute("SET ROLE agentops_app")
        assert found() == set()
        cursor.execute("RESET ROLE")


def test_a_database_that_does_not_answer_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    def refuse(*arguments: object, **options: object) -> None:
        raise OperationalError("connection refused\n")

    monkeypatch.setattr(doctor, "examine", refuse)
    with pytest.raises(CommandError, match=r"The database does not answer: connection refused$"):
        call()
