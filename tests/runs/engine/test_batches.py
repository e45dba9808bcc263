"""Group checkpoints: many runs in one statement, and no run suffers for another's sake."""

import json
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from runs import clock
from runs.engine import batches, statements
from runs.engine.database import Database, connect_directly
from runs.engine.execution import Execution
from runs.engine.lease import Lease
from runs.engine.lease import clock as lease_clock
from runs.engine.statements import Fenced
from runs.engine.worker import RunWorker
from runs.errors import LeaseLost
from runs.models import Attempt, Event, Operation, Run
from runs.models.operation import OpStatus
from runs.services import start_many
from runs.states import Status
from tests import factories
from tests.harness.waiting import wait_until
from tests.races import Caller, run_held, wait_until_blocked
from tests.runs.engine.conftest import running_worker, until
from tests.runs.engine.faults import losses
from tests.runs.engine.flows import world

pytestmark = pytest.mark.django_db(transaction=True)


class Gate:
    """The worker's database, whose statements of many runs wait in front of it until the test lets them through."""

    def __init__(self, patch: pytest.MonkeyPatch, database: Database) -> None:
        self.database, self.sizes = database, list[int]()
        self.defect: Exception | None = None
        self._open = threading.Event()
        self._open.set()
        real = database.together

        def together(statement: Fenced, rows: list[str]) -> Any:
            self.sizes.append(len(rows))
            if not self._open.is_set():
                assert self._open.wait(20)
                return []  # what was under way while the others came
            if self.defect is not None:
                raise self.defect
            return real(statement, rows)

        patch.setattr(database.batches, "_send", together)

    def gather(self, statement: Fenced, calls: list[Callable[[], Any]]) -> list[Caller]:
        """Make these calls as members of one batch, which is sent when this returns."""
        self._open.clear()
        under_way = Caller(lambda: first_of(self.database, statement))
        wait_until(lambda: self.sizes, 10, "a statement is under way")
        members = [Caller(call) for call in calls]
        waiting = self.database.batches._waiting
        wait_until(lambda: len(waiting) == len(calls), 10, "all wait to be part of the next")
        self._open.set()
        under_way.join()
        wait_until(lambda: self.sizes == [1, len(calls)], 10, "they are sent together")
        return members


def first_of(database: Database, statement: Fenced) -> None:
    """Something that the fence refuses, to be under way while others come."""
    nothing = {"run": uuid.uuid4(), "epoch": 1, "seq": 1, "attempt": 1, "position": "", "id": uuid.uuid4()}
    database.batches.write(statement, nothing)


@pytest.fixture
def database() -> Iterator[Database]:
    opened = Database(8)
    yield opened
    opened.close()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, database: Database) -> Gate:
    monkeypatch.setattr(batches, "PATIENCE", 20)
    monkeypatch.setattr(batches, "UNDER_WAY", 1)
    return Gate(monkeypatch, database)


@pytest.fixture
def lease() -> Lease:
    made = Lease(60, 3)
    made.renew(lease_clock())
    return made


def held(database: Database, lease: Lease, run: Run) -> Execution:
    assert run.worker_id is not None and run.attempt_started_at is not None
    return Execution(
        database=database,
        lease=lease,
        worker_id=run.worker_id,
        run_id=run.pk,
        workflow=run.workflow,
        version=run.version,
        step=run.step,
        step_seq=run.step_seq,
        attempt_no=run.attempt_no,
        epoch=run.epoch,
        queue=run.queue,
        stored_state=(run.state, None),
        stored_input=(run.input, None),
        compensating=False,
        cancel_requested=False,
        failures=0,
        crashes=0,
        visit_started_at=run.visit_started_at,
        attempt_started_at=run.attempt_started_at,
        deadline=lease_clock() + 60,
        external={},
    )


def goto(execution: Execution, **changed: Any) -> Callable[[], Any]:
    parameters = {
        "next": "ship",
        "timeout": 60.0,
        "state": '{"moved": true}',
        "state_sealed": None,
        "step": execution.step,
        "started": execution.attempt_started_at,
    }
    return lambda: execution.checkpoint(statements.GOTO, parameters | changed)


def complete(execution: Execution) -> Callable[[], Any]:
    parameters = {
        "result": "null",
        "result_sealed": None,
        "state": None,
        "state_sealed": None,
        "step": execution.step,
        "started": execution.attempt_started_at,
        "actor": "worker",
        "event": '{"step": "pack"}',
    }
    return lambda: execution.checkpoint(statements.COMPLETE, parameters)


@pytest.fixture
def executions(database: Database, lease: Lease) -> list[Execution]:
    worker = factories.worker()
    return [held(database, lease, factories.run(Status.RUNNING, worker_id=worker.pk)) for _ in range(5)]


def moved(execution: Execution) -> bool:
    """Whether the run is at its next visit, with one attempt on record; neither without the other."""
    run = Run.objects.get(pk=execution.run_id)
    attempts = Attempt.objects.filter(run_id=run.pk, step_seq=1).count()
    assert attempts == run.step_seq - 1
    return (run.step, run.step_seq, run.state) == ("ship", 2, {"moved": True})


def transactions_of_attempts() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(DISTINCT xmin::text) FROM runs_attempt")
        count: int = cursor.fetchone()[0]
        return count


# --- together ----------------------------------------------------------------------------------------------------------


def test_checkpoints_that_come_while_one_is_under_way_are_one_commit(
    gate: Gate, executions: list[Execution]
) -> None:
    members = gate.gather(statements.GOTO, [goto(e) for e in executions])
    ended = [member.join().result for member in members]
    assert all(moved(e) for e in executions)
    assert transactions_of_attempts() == 1
    assert ended == [Attempt.objects.get(run_id=e.run_id).ended_at for e in executions]


def test_a_lone_checkpoint_is_sent_at_once_and_is_one_statement(
    gate: Gate, executions: list[Execution]
) -> None:
    goto(executions[0])()
    assert gate.sizes == [1]
    assert moved(executions[0])


def test_a_slow_statement_holds_up_no_later_one(executions: list[Execution]) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("LOCK TABLE runs_attempt IN SHARE MODE")
        slow = Caller(goto(executions[0]))
        wait_until_blocked(1)
        parameters = {"id": uuid.uuid4(), "position": "1", "ordinal": 1, "status": "done", "request": "{}"}
        texts = {"kind": "query", "name": "ask", "digest": "", "error_type": "", "error": "", "by": ""}
        others = {"request_sealed": None, "response": "1", "sealed": None, "elapsed": 0.1}
        assert executions[1].write(statements.RECORD, parameters | texts | others) is not None
    slow.join()
    assert moved(executions[0])


def test_completions_append_to_each_runs_own_chain(gate: Gate, executions: list[Execution]) -> None:
    members = gate.gather(statements.COMPLETE, [complete(e) for e in executions])
    assert all(member.join().result is not None for member in members)
    assert Run.objects.filter(status="completed", finished_at__isnull=False).count() == len(executions)
    heads = {bytes(head) for head in Event.objects.filter(kind="completed").values_list("head", flat=True)}
    assert heads == {bytes(head) for head in Run.objects.values_list("event_head", flat=True)}
    assert len(heads) == len(executions)


def test_two_answers_of_one_run_are_recorded_in_one_statement(
    gate: Gate, executions: list[Execution]
) -> None:
    def record(position: str) -> Callable[[], Any]:
        parameters = {
            "id": uuid.uuid4(),
            "position": position,
            "ordinal": 1,
            "status": "done",
            "request": "{}",
        }
        texts = {"kind": "query", "name": "ask", "digest": "", "error_type": "", "error": "", "by": ""}
        others = {"request_sealed": None, "response": f'"{position}"', "sealed": None, "elapsed": 0.1}
        return lambda: executions[0].write(statements.RECORD, parameters | texts | others)

    members = gate.gather(statements.RECORD, [record("=a"), record("=b")])
    assert all(member.join().result is not None for member in members)
    recorded = dict(Operation.objects.values_list("position", "result"))
    assert recorded == {"=a": "=a", "=b": "=b"}


def test_a_large_payload_goes_alone(gate: Gate, executions: list[Execution]) -> None:
    goto(executions[0], state=f'{{"text": "{"x" * batches.LARGE}"}}')()
    assert gate.sizes == []
    assert Run.objects.get(pk=executions[0].run_id).step_seq == 2


def test_a_plan_that_was_made_for_a_small_table_is_good_for_a_large_one(database: Database) -> None:
    worker = factories.worker()
    for _ in range(60):
        factories.operation(factories.run(Status.RUNNING, worker_id=worker.pk))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE runs_run, runs_operation")
    for statement in (
        statements.GOTO,
        statements.COMPLETE,
        statements.INTENT,
        statements.OUTCOME,
        statements.RECORD,
    ):
        plan = "\n".join(line for (line,) in database.all(f"EXPLAIN {statement.together}", {"rows": "[]"}))
        lines = plan.splitlines()
        scans = [n for n, line in enumerate(lines) if " on runs_" in line and "Scan" in line]
        # A scan of a whole index has a filter at most.
        assert all("Index Cond: (" in lines[n + 1] for n in scans) and len(scans) >= 1, plan
        assert not [
            bad for bad in ("Hash Join", "Merge Join", "Cond: (status", "Cond: ((status") if bad in plan
        ], plan


# --- nobody for another's sake -----------------------------------------------------------------------------------------


def test_a_locked_run_holds_up_no_other_member(gate: Gate, executions: list[Execution]) -> None:
    with run_held(executions[2].run_id):
        members = gate.gather(statements.GOTO, [goto(e) for e in executions])
        others = [m for n, m in enumerate(members) if n != 2]
        assert all(member.join().result is not None for member in others)
        wait_until_blocked(1)
        assert members[2].thread.is_alive()
    assert members[2].join().result is not None
    assert all(moved(e) for e in executions)


@pytest.mark.parametrize("taken_over", [True, False])
def test_a_checkpoint_that_waited_for_the_lock_is_judged_by_what_is_there_then(
    taken_over: bool, executions: list[Execution]
) -> None:
    changed: dict[str, Any] = {"epoch": 2} if taken_over else {"subject": "order 7"}
    with run_held(executions[0].run_id):
        Run.objects.filter(pk=executions[0].run_id).update(**changed)
        late = Caller(goto(executions[0]))
        wait_until_blocked(1)
    late.join()
    run = Run.objects.get(pk=executions[0].run_id)
    assert isinstance(late.error, LeaseLost) == taken_over
    assert moved(executions[0]) != taken_over
    assert {name: getattr(run, name) for name in changed} == changed


def test_a_member_that_cannot_be_written_takes_no_other_along(
    gate: Gate, executions: list[Execution]
) -> None:
    calls = [goto(e) for e in executions]
    calls[1] = goto(executions[1], state="{no json")
    members = [member.join() for member in gate.gather(statements.GOTO, calls)]
    assert isinstance(members[1].error, psycopg.DataError)
    assert [moved(e) for e in executions] == [True, False, True, True, True]


def test_a_zombie_in_a_batch_is_refused_and_the_others_are_not(
    gate: Gate, executions: list[Execution]
) -> None:
    Run.objects.filter(pk=executions[3].run_id).update(epoch=2)
    members = [member.join() for member in gate.gather(statements.GOTO, [goto(e) for e in executions])]
    assert isinstance(members[3].error, LeaseLost)
    assert executions[3].lost
    assert [moved(e) for e in executions] == [True, True, True, False, True]


def test_a_zombie_in_one_batch_with_its_successor_does_not_take_its_answer(
    gate: Gate, database: Database, lease: Lease
) -> None:
    run = factories.run(Status.RUNNING, epoch=1)
    zombie = held(database, lease, run)
    Run.objects.filter(pk=run.pk).update(epoch=2, attempt_no=2)
    run.refresh_from_db()
    successor = held(database, lease, run)
    members = [member.join() for member in gate.gather(statements.GOTO, [goto(zombie), goto(successor)])]
    assert isinstance(members[0].error, LeaseLost)
    assert members[1].result is not None
    assert list(Attempt.objects.values_list("epoch", "attempt_no")) == [(2, 2)]


def test_a_cancel_and_a_deadline_in_a_batch_are_left_to_be_decided(
    gate: Gate, executions: list[Execution]
) -> None:
    Run.objects.filter(pk=executions[0].run_id).update(
        cancel_requested_at=clock.now(), cancel_requested_by="somebody"
    )
    Run.objects.filter(pk=executions[1].run_id).update(deadline_at=clock.now())
    members = [member.join() for member in gate.gather(statements.GOTO, [goto(e) for e in executions])]
    assert [member.result is None and member.error is None for member in members] == [True, True] + [
        False
    ] * 3
    assert [moved(e) for e in executions] == [False, False, True, True, True]


def test_a_run_with_an_effect_in_doubt_does_not_complete_with_its_batch(
    gate: Gate, executions: list[Execution]
) -> None:
    run = Run.objects.get(pk=executions[4].run_id)
    factories.operation(run, status=OpStatus.PENDING, intent_worker_id=run.worker_id)
    members = gate.gather(statements.COMPLETE, [complete(e) for e in executions])
    assert [member.join().result is None for member in members] == [False] * 4 + [True]
    assert Run.objects.filter(status="completed").count() == 4


def test_a_member_is_not_stuck_behind_a_statement_that_does_not_return(
    executions: list[Execution], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, real = threading.Event(), database.together

    def together(statement: Fenced, rows: list[str]) -> Any:
        if len(rows) == 1 and str(executions[0].run_id) in rows[0]:
            assert stuck.wait(20)
        return real(statement, rows)

    monkeypatch.setattr(database.batches, "_send", together)
    first = Caller(goto(executions[0]))
    monkeypatch.setattr(batches, "UNDER_WAY", 1)
    wait_until(lambda: database.batches._under_way == 1, 10, "it is under way")
    others = [Caller(goto(e)) for e in executions[1:]]
    assert all(member.join().result is not None for member in others)
    assert first.thread.is_alive()
    stuck.set()
    first.join()
    assert all(moved(e) for e in executions)
    assert database.batches._under_way == 0


def test_a_defect_in_sending_together_leaves_each_to_go_alone(
    gate: Gate, executions: list[Execution]
) -> None:
    gate.defect = RuntimeError("a defect")
    members = [member.join() for member in gate.gather(statements.GOTO, [goto(e) for e in executions])]
    assert [member.error for member in members] == [None] * 5
    assert all(moved(e) for e in executions)
    assert transactions_of_attempts() == len(executions)
    assert gate.database.batches._under_way == 0


def test_a_thread_that_ends_while_it_sends_for_others_leaves_none_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "PATIENCE", 20)
    monkeypatch.setattr(batches, "UNDER_WAY", 1)
    end = threading.Event()

    def send(statement: Fenced, rows: list[str]) -> list[tuple[Any, ...]]:
        assert end.wait(20)
        raise KeyboardInterrupt

    together = batches.Batches(send)

    def write(number: int) -> tuple[Any, bool]:
        return together.write(statements.GOTO, {"run": number, "epoch": 1, "seq": 1, "attempt": 1})

    callers = [Caller(lambda: write(1))]
    wait_until(lambda: together._under_way == 1 and not together._waiting, 20, "the first is sent")
    callers += [Caller(lambda n=n: write(n)) for n in (2, 3)]  # type: ignore[misc]
    wait_until(lambda: len(together._waiting) == 2, 20, "the others wait to be sent together")
    end.set()
    told = [caller.join() for caller in callers]
    # One of the two sent for both.
    assert [isinstance(one.error, KeyboardInterrupt) for one in told].count(True) == 2
    assert [one.result for one in told if one.error is None] == [(None, True)]
    assert (together._under_way, together._waiting) == (0, [])


def test_each_of_many_that_lose_patience_with_one_another_has_its_own_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "PATIENCE", 0.001)
    chance = random.Random(1)

    def send(statement: Fenced, rows: list[str]) -> list[tuple[Any, ...]]:
        time.sleep(chance.uniform(0, 0.004))
        given = [json.loads(row) for row in rows]
        return [(*(row[name] for name in statement.key), "answer to", row["run"]) for row in given]

    of_all, kinds = batches.Batches(send), (statements.GOTO, statements.COMPLETE)

    def write_some(first: int) -> set[bool]:
        told = set()
        for number in range(first, first + 100):
            fence = {"run": str(number), "epoch": 1, "seq": 1, "attempt": 1}
            row, unsure = of_all.write(kinds[number % 2], fence)
            told.add((row, unsure) == (("answer to", str(number)), False))
        return told

    callers = [Caller(lambda first=n * 1000: write_some(first)) for n in range(16)]  # type: ignore[misc]
    assert [caller.join().result for caller in callers] == [{True}] * 16
    assert (of_all._under_way, of_all._waiting) == (0, [])


# --- answers that are lost ---------------------------------------------------------------------------------------------


def test_a_batch_whose_answer_is_lost_is_applied_once_for_each(
    gate: Gate, executions: list[Execution]
) -> None:
    with losses() as lose:
        members = gate.gather(
            statements.GOTO,
            [
                lambda: lose.of_statement(statements.GOTO) or goto(executions[0])(),  # type: ignore[func-returns-value]
                *[goto(e) for e in executions[1:]],
            ],
        )
        ended = [member.join().result for member in members]
    assert lose.lost == 1
    assert all(moved(e) for e in executions)
    assert ended == [Attempt.objects.get(run_id=e.run_id).ended_at for e in executions]
    assert transactions_of_attempts() == 1


def test_a_batch_whose_session_is_ended_before_it_commits_is_written_by_each_alone(
    gate: Gate, executions: list[Execution]
) -> None:
    with connect_directly() as other, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("LOCK TABLE runs_attempt IN SHARE MODE")
        members = gate.gather(statements.GOTO, [goto(e) for e in executions])
        wait_until_blocked(1)
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
    assert all(member.join().result is not None for member in members)
    assert all(moved(e) for e in executions)
    assert transactions_of_attempts() == len(executions)


@pytest.mark.parametrize("statement", [statements.GOTO, statements.COMPLETE], ids=["goto", "complete"])
def test_a_worker_full_of_runs_loses_an_answer_and_finishes_each_once(
    statement: Fenced, transactional_db: None, quick: None
) -> None:
    world.__init__()  # type: ignore[misc]
    lines = [f'{{"n": {n}}}' for n in range(40)]
    with losses() as lose:
        lose.of_statement(statement)
        with running_worker(slots=8):
            begun = [pk for batch in start_many(factories.SYSTEM, "t_hello", lines) for pk in batch.started]
            ended = [until(Run.objects.get(pk=pk)) for pk in begun]
    assert lose.lost == 1
    assert [run.status for run in ended] == ["completed"] * 40
    assert {a.outcome for a in Attempt.objects.all()} == {"succeeded"}
    assert Event.objects.filter(kind="completed").count() == 40


def test_a_worker_that_drains_amid_batches_hands_every_run_back_whole(
    transactional_db: None, quick: None
) -> None:
    lines = [f'{{"n": {n}}}' for n in range(60)]
    begun = [pk for batch in start_many(factories.SYSTEM, "t_hello", lines) for pk in batch.started]
    with running_worker(slots=8) as worker:
        wait_until(lambda: Attempt.objects.exists(), 10, "it is at work")
    assert isinstance(worker, RunWorker)
    assert not Run.objects.filter(status="running").exists()
    with running_worker(slots=8):
        ended = [until(Run.objects.get(pk=pk)) for pk in begun]
    assert [run.status for run in ended] == ["completed"] * 60
    assert {a.outcome for a in Attempt.objects.all()} == {"succeeded"}
