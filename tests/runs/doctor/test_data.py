"""Each check of the data sees exactly what it is for."""

import uuid
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F

from runs import clock, doctor, lifecycle
from runs.engine.execution import attempt_digest
from runs.kin import families
from runs.models import Attempt, AuditEvent, Bulk, BulkItem, Message, Policy, Run, Signal
from runs.models.operation import Kind, OpStatus
from runs.models.run import new_id
from runs.services import retry
from runs.services.retention import RETENTION, Rule, delete_finished
from runs.states import AttentionKind, Outcome, Status
from tests import factories
from tests.runs.doctor.conftest import Look, execute, unguarded
from tests.runs.engine.family import ended, parked, silently_ended

pytestmark = pytest.mark.django_db


def attempt(of: Run, number: int = 1, outcome: Outcome = Outcome.SUCCEEDED, **fields: object) -> Attempt:
    """The row of an ended attempt of the run's present visit."""
    now = clock.now()
    return Attempt.objects.create(
        **{
            "run_id": of.pk,
            "step_seq": of.step_seq,
            "attempt_no": number,
            "epoch": 1,
            "step": of.step,
            "outcome": outcome,
            "started_at": now,
            "ended_at": now,
        }
        | fields
    )


def signal(of: Run | None = None, name: str = "paid", **fields: object) -> Signal:
    return Signal.objects.create(
        **{
            "run_id": of.pk if of else None,
            "name": name,
            "source": "bank",
            "external_id": str(uuid.uuid4()),
            "payload": {},
            "digest": "",
        }
        | fields
    )


def one(findings: list[doctor.Finding], severity: str = "error") -> str:
    """The sample of the only finding about one thing."""
    assert len(findings) == 1
    assert findings[0].severity == severity
    assert findings[0].count == 1
    assert findings[0].advice
    return findings[0].sample[0]


# --- leases and workers --------------------------------------------------------------------------------------------------


def test_a_running_run_whose_workers_lease_is_over_is_orphaned(look: Look):
    dead = factories.worker(beats=False)
    run = factories.run(Status.RUNNING, worker_id=dead.pk)
    factories.run(Status.RUNNING)
    assert str(run.pk) in one(look(doctor.orphaned_lease))


def test_a_running_run_of_a_closed_worker_is_orphaned(look: Look):
    closed = factories.worker(reaped=True)
    run = factories.run(Status.RUNNING, worker_id=closed.pk)
    assert str(run.pk) in one(look(doctor.orphaned_lease))


def test_a_lease_that_ended_a_moment_ago_is_not_yet_orphaned(db: None):
    factories.run(Status.RUNNING, worker_id=factories.worker(beats=False).pk)
    with connection.cursor() as cursor:
        assert not list(doctor.orphaned_lease(doctor.Snapshot(cursor, grace=3 * 3600)))


def test_a_running_run_under_an_unknown_worker_is_found(look: Look):
    run = factories.run(Status.RUNNING, worker_id=new_id())
    factories.run(Status.RUNNING)
    assert str(run.pk) in one(look(doctor.running_without_worker))


def test_an_attempt_past_its_deadline_under_a_live_worker_is_found(look: Look):
    run = factories.run(Status.RUNNING, wake_at=clock.now() - timedelta(minutes=1))
    factories.run(Status.RUNNING)
    assert str(run.pk) in one(look(doctor.overdue_attempt))


def test_an_open_worker_that_has_long_stopped_beating_is_a_warning(look: Look):
    silent = factories.worker(beats=False)
    factories.worker()
    factories.worker(reaped=True)
    assert str(silent.pk) in one(look(doctor.silent_worker), "warning")


def test_due_runs_of_a_queue_that_nobody_serves_are_found(look: Look):
    past = clock.now() - timedelta(minutes=1)
    factories.worker(queues=["default"])
    factories.worker(queues=["mail"], draining=True)
    factories.run(queue="default", wake_at=past, sort_at=past)
    factories.run(queue="mail", wake_at=past, sort_at=past)
    factories.run(Status.RETRYING, queue="other")
    assert one(look(doctor.unserved_queue)) == "queue mail: 1 due"


# --- wake sources --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RETRYING, Status.CANCELLING])
def test_a_run_without_wake_time_and_hold_stands_still_for_ever(look: Look, status: Status):
    run = factories.run(status)
    factories.run(status)
    factories.run(status, held_by="paused")
    with unguarded("runs_run.run_has_wake_source"):
        execute("UPDATE runs_run SET wake_at = NULL, sort_at = NULL WHERE id = %s", run.pk)
    assert str(run.pk) in one(look(doctor.no_wake_source))


def test_a_run_with_a_wake_time_that_no_claim_would_find_stands_still(look: Look):
    run = factories.run()
    with unguarded("runs_run.run_has_wake_source", "runs_run.run_sort_follows_wake"):
        execute("UPDATE runs_run SET sort_at = NULL WHERE id = %s", run.pk)
    assert str(run.pk) in one(look(doctor.no_wake_source))


def test_a_waiting_run_without_open_wait_and_wake_time_stands_still(look: Look):
    run = factories.run(Status.WAITING)
    factories.signal_wait()
    assert str(run.pk) in one(look(doctor.no_wake_source))


def test_a_time_limit_that_nobody_wakes_for_is_found(look: Look):
    later = clock.now() + timedelta(hours=1)
    late = factories.signal_wait(expires_at=later)
    factories.signal_wait(factories.run(Status.WAITING, wake_at=later, sort_at=later), expires_at=later)
    factories.approval()
    assert str(late.run_id) in one(look(doctor.unwatched_time_limit))


def test_a_settled_wait_of_a_waiting_run_that_is_not_due_is_a_lost_wakeup(look: Look):
    wait = factories.signal_wait()
    factories.operation(wait.run, Kind.SIGNAL, OpStatus.OPEN, name="other")
    execute("UPDATE runs_operation SET status = 'done', finished_at = now() WHERE id = %s", wait.pk)
    assert str(wait.run_id) in one(look(doctor.lost_wakeup))


def test_a_settled_wait_of_a_due_run_is_no_lost_wakeup(look: Look):
    wait = factories.signal_wait()
    execute("UPDATE runs_operation SET status = 'done', finished_at = now() WHERE id = %s", wait.pk)
    lifecycle.set_due(wait.run)
    assert look(doctor.lost_wakeup) == []


def test_a_wait_that_was_settled_before_the_run_waited_again_is_no_lost_wakeup(look: Look):
    wait = factories.signal_wait(factories.run(Status.WAITING, attempt_no=1))
    factories.operation(wait.run, Kind.TIMER, OpStatus.DONE, finished_at=clock.now() - timedelta(minutes=1))
    attempt(wait.run, outcome=Outcome.SUSPENDED)
    assert look(doctor.lost_wakeup) == []


def test_a_parent_whose_children_have_ended_and_that_is_not_due_was_not_told(look: Look):
    run, _, made = parked(2)
    silently_ended(made[0])
    assert look(doctor.parent_not_told) == []
    silently_ended(made[1])
    assert str(run.pk) in one(look(doctor.parent_not_told))
    lifecycle.set_due(run)
    assert look(doctor.parent_not_told) == []


def test_a_parent_that_has_enough_children_and_is_not_due_was_not_told(look: Look):
    run, _, made = parked(3, wanted=1)
    silently_ended(made[0], Status.FAILED)
    assert look(doctor.parent_not_told) == []
    silently_ended(made[1])
    assert str(run.pk) in one(look(doctor.parent_not_told))


def test_a_child_under_way_whose_parent_is_gone_is_an_orphan(look: Look):
    run, wait, (child,) = parked(1)
    assert look(doctor.orphan) == []
    with unguarded():
        execute("DELETE FROM runs_operation WHERE id = %s", wait.pk)
    assert f"run {child.pk} of {run.pk}" in one(look(doctor.orphan))
    silently_ended(child)
    assert look(doctor.orphan) == []


def test_a_child_that_is_retried_after_its_parent_was_deleted_is_no_orphan(look: Look):
    run, _, (child,) = parked(1)
    silently_ended(child, Status.FAILED)
    ended(run)
    clock.shift(timedelta(days=100))
    assert delete_finished(RETENTION, Rule("parcel", 90, "setting")).runs == 1
    retry(factories.support(), child.pk, reason="again")
    assert Run.objects.get().status == Status.QUEUED
    assert look(doctor.orphan) == []


def test_children_that_a_run_waits_for_and_that_are_not_there_are_missing(look: Look):
    run, _, made = parked(3)
    assert look(doctor.missing_children) == []
    with unguarded():
        execute("DELETE FROM runs_run WHERE id = %s", made[1].pk)
    assert f"run {run.pk}: 2 of 3 child runs of f_child" in one(look(doctor.missing_children))


@pytest.mark.parametrize("rest", ["cancel", "at_end"])
def test_a_child_that_nobody_waits_for_and_nobody_cancels_is_found(rest: str, look: Look):
    run, wait, made = parked(2)
    Run.objects.filter(pk=run.pk).update(status="cancelled", finished_at=clock.now() - timedelta(minutes=1))
    execute(
        "UPDATE runs_operation SET rest = %s, status = 'closed', finished_at = now() - interval '1 minute' WHERE id = %s",
        rest,
        wait.pk,
    )
    silently_ended(made[0])
    (found,) = look(doctor.unneeded_child)
    assert (found.count, str(made[1].pk) in found.sample[0]) == (1, True)
    families.cancel_rest(wait.pk)
    assert look(doctor.unneeded_child) == []


def test_a_kept_signal_for_an_open_wait_is_found(look: Look):
    wait = factories.signal_wait()
    signal(wait.run)
    signal(wait.run, name="other")
    assert str(wait.run_id) in one(look(doctor.kept_signal))


def test_a_kept_signal_for_the_key_of_an_open_wait_is_found(look: Look):
    wait = factories.signal_wait(correlation="order 7")
    signal(correlation="order 7")
    signal(correlation="order 8")
    assert str(wait.run_id) in one(look(doctor.kept_signal))


def test_a_kept_signal_for_a_run_that_is_due_is_about_to_be_taken(look: Look):
    wait = factories.signal_wait()
    signal(wait.run)
    lifecycle.set_due(wait.run)
    assert look(doctor.kept_signal) == []


def test_a_run_held_by_a_pause_that_is_over_is_found(look: Look):
    run = factories.run(held_by="paused")
    assert str(run.pk) in one(look(doctor.hold_without_reason))
    Policy.objects.create(scope="workflow", name="parcel", paused=True)
    assert look(doctor.hold_without_reason) == []


def test_a_run_held_for_want_of_a_worker_that_exists_is_found(look: Look):
    run = factories.run(held_by="no_capable_worker")
    factories.run(held_by="no_capable_worker", queue="other")
    assert look(doctor.hold_without_reason) == []
    factories.worker()
    assert str(run.pk) in one(look(doctor.hold_without_reason))


def test_a_question_about_an_effect_that_is_not_in_doubt_is_found(look: Look):
    factories.doubt()
    factories.run(Status.ATTENTION)
    run = factories.run(Status.ATTENTION, attention_kind=AttentionKind.IN_DOUBT)
    assert str(run.pk) in one(look(doctor.attention_without_doubt))


# --- ends ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
@pytest.mark.parametrize(("kind", "left"), [(Kind.EFFECT, OpStatus.PENDING), (Kind.SIGNAL, OpStatus.OPEN)])
def test_a_finished_run_with_something_unfinished_is_found(
    look: Look, status: Status, kind: Kind, left: OpStatus
):
    run = factories.run(status)
    factories.operation(run, kind, left)
    factories.operation(factories.run(status), kind, OpStatus.DONE)
    assert str(run.pk) in one(look(doctor.unquiet_end))


def test_a_finished_run_with_a_wake_time_is_found(look: Look):
    run = factories.run(Status.COMPLETED)
    with unguarded("runs_run.run_terminal_is_still"):
        execute("UPDATE runs_run SET wake_at = now(), sort_at = now() WHERE id = %s", run.pk)
    assert str(run.pk) in one(look(doctor.unquiet_end))


@pytest.mark.parametrize(("kind", "left"), [(Kind.EFFECT, OpStatus.PENDING), (Kind.SIGNAL, OpStatus.OPEN)])
def test_an_unfinished_operation_of_an_earlier_visit_is_found(look: Look, kind: Kind, left: OpStatus):
    run = factories.run(step_seq=2)
    factories.operation(run, kind, left, step_seq=1)
    factories.operation(run, kind, left)
    assert f"{run.pk} visit 1" in one(look(doctor.open_operation_of_ended_visit))


def test_an_attempt_that_ended_after_its_run_is_found(look: Look):
    run = factories.run(Status.COMPLETED)
    attempt(run)
    attempt(run, 2, ended_at=clock.now() + timedelta(minutes=1))
    assert "try 2" in one(look(doctor.attempt_after_end))


def test_an_end_that_waited_for_the_last_attempts_lock_is_in_order(look: Look):
    run = factories.run(Status.COMPLETED)
    attempt(run, ended_at=clock.now() + timedelta(seconds=1))
    assert look(doctor.attempt_after_end) == []


def test_a_missing_try_is_found(look: Look):
    run = factories.run(attempt_no=3)
    attempt(run, 1, Outcome.FAILED)
    attempt(run, 3, Outcome.FAILED)
    assert f"{run.pk} visit 1: 2 tries" in one(look(doctor.attempt_gap))


def test_a_run_that_counts_other_tries_than_are_recorded_is_found(look: Look):
    run = factories.run(attempt_no=2)
    attempt(run)
    attempt(factories.run(Status.RUNNING, attempt_no=2))
    assert "stands at try 2, 1 recorded" in one(look(doctor.attempt_gap))


def test_an_attempt_ahead_of_the_cursor_is_found(look: Look):
    run = factories.run()
    attempt(run, step_seq=2)
    assert "visit 2: lies ahead" in one(look(doctor.attempt_gap))


def test_rows_of_a_run_that_does_not_exist_are_found(look: Look):
    factories.operation(factories.run())
    gone = new_id()
    Message.objects.create(
        run_id=gone, step_seq=1, position="1", attempt_no=1, role="user", content="", digest=""
    )
    signal()
    assert one(look(doctor.row_without_run)) == f"message of run {gone}"


# --- effects and signals -------------------------------------------------------------------------------------------------


def test_one_provider_key_on_two_done_effects_is_found(look: Look):
    key, run = uuid.uuid4(), factories.run()
    factories.operation(run, provider_key=key)
    factories.operation(run, provider_key=key)
    factories.operation(run)
    assert str(key) in one(look(doctor.effect_done_twice))


def test_an_effect_that_was_undone_twice_is_found(look: Look):
    run = factories.run()
    effect = factories.operation(run)
    with unguarded("runs_operation.operation_compensated_once"):
        factories.operation(run, compensates=effect.pk)
        factories.operation(run, compensates=effect.pk)
    assert str(effect.pk) in one(look(doctor.effect_done_twice))


def test_two_signals_that_settled_one_wait_are_found(look: Look):
    wait = factories.operation(factories.run(), Kind.SIGNAL, OpStatus.DONE)
    with unguarded("runs_signal.signal_settles_one_wait"):
        for _ in range(2):
            signal(wait.run, consumed_by=wait.pk, consumed_at=clock.now())
    assert one(look(doctor.signal_used_twice)) == f"operation {wait.pk}: 2 signals"


def test_a_signal_that_was_accepted_twice_is_found(look: Look):
    with unguarded("runs_signal.signal_once"):
        for _ in range(2):
            signal(factories.run(), external_id="7")
    assert one(look(doctor.signal_used_twice)) == "signal bank 7: accepted 2 times"


def test_a_used_signal_that_settled_nothing_is_found(look: Look):
    wait = factories.signal_wait()
    lost = signal(wait.run, consumed_by=wait.pk, consumed_at=clock.now())
    assert str(lost.pk) in one(look(doctor.signal_used_twice))


# --- history -------------------------------------------------------------------------------------------------------------


def chained() -> Run:
    """A run with four events, of every shape that the canonical text must tell apart."""
    run = factories.run()
    person = factories.actor()
    lifecycle.append_event(
        run, "retried", person, 'because "of" \\ this\n', step="pack", visit=1, again=["charge"]
    )
    lifecycle.append_event(run, "noted", lifecycle.AGENT, "", number=1.50, nothing=None, b=1, a=2)
    lifecycle.append_event(run, "noted", lifecycle.CLOCK)
    return run


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("at", "2020-01-01T00:00:00Z"),
        ("kind", "other"),
        ("actor_id", "1"),
        ("actor", "somebody else"),
        ("reason", "other"),
        ("data", '{"step": "ship"}'),
        ("head", r"\x00"),
    ],
)
def test_a_changed_event_breaks_the_chain(look: Look, column: str, value: str):
    run = chained()
    chained()
    assert look(doctor.broken_chain) == []
    with unguarded():
        execute(f"UPDATE runs_event SET {column} = %s WHERE run_id = %s AND seq = 3", value, run.pk)
    (finding,) = look(doctor.broken_chain)
    assert f"run {run.pk} event 3" in finding.sample


def test_a_removed_event_breaks_the_chain(look: Look):
    run = chained()
    with unguarded():
        execute("DELETE FROM runs_event WHERE run_id = %s AND seq = 2", run.pk)
    assert one(look(doctor.broken_chain)) == f"run {run.pk} event 3"


def test_the_last_events_cannot_be_cut_off_unseen(look: Look):
    run = chained()
    assert look(doctor.chain_head) == []
    with unguarded():
        execute("DELETE FROM runs_event WHERE run_id = %s AND seq = 4", run.pk)
    assert look(doctor.broken_chain) == []
    assert "stands at event 4, the last one is 3" in one(look(doctor.chain_head))


def test_a_chain_that_was_written_anew_does_not_fit_its_run(look: Look):
    run = chained()
    with unguarded():
        execute("UPDATE runs_run SET event_head = %s WHERE id = %s", b"other", run.pk)
    assert str(run.pk) in one(look(doctor.chain_head))


def administered(count: int = 3) -> list[AuditEvent]:
    """So many lines of the history of administration, chained as at a commit."""
    made = [
        AuditEvent.objects.create(kind="limits", target="tool charge", actor="Ada", old={"n": 1.50}, new=None)
        for _ in range(count)
    ]
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS chain IMMEDIATE")
    return made


@pytest.mark.parametrize(
    ("column", "value"),
    [("reason", "other"), ("actor", "Eve"), ("old", "null"), ("at", "2020-01-01T00:00:00Z")],
)
def test_a_changed_line_of_administration_breaks_its_chain(look: Look, column: str, value: str):
    _, second, _ = administered()
    assert look(doctor.audit_chain) == []
    with unguarded():
        execute(f"UPDATE runs_audit_event SET {column} = %s WHERE id = %s", value, second.pk)
    assert one(look(doctor.audit_chain)) == f"audit link 2 of audit event {second.pk}"


def test_a_removed_line_of_administration_is_found_and_so_is_one_put_in(look: Look):
    first, *_ = administered()
    with unguarded():
        execute("DELETE FROM runs_audit_event WHERE id = %s", first.pk)
        added = AuditEvent.objects.create(kind="limits", target="tool charge", actor="Eve")
    (finding,) = look(doctor.audit_chain)
    assert set(finding.sample) == {
        f"audit link 1 of audit event {first.pk}",
        f"audit event {added.pk}: in no link",
    }


def test_the_last_lines_of_administration_cannot_be_cut_off_unseen(look: Look):
    *_, last = administered()
    with unguarded():
        execute("DELETE FROM runs_audit_event WHERE id = %s", last.pk)
        execute("DELETE FROM runs_audit_link WHERE event_id = %s", last.pk)
    assert one(look(doctor.audit_chain)) == "the head stands at 3, the last link is 2"


def test_a_changed_attempt_does_not_fit_the_event_that_refers_to_it(look: Look):
    run = factories.run(attempt_no=1)
    row = attempt(run, outcome=Outcome.FAILED, error_type="ValueError")
    digest = attempt_digest(run.pk, 1, 1, 1, "pack", "failed", "ValueError")
    lifecycle.append_event(run, "retrying", lifecycle.AGENT, attempt=digest)
    lifecycle.append_event(run, "noted", lifecycle.AGENT, attempt=None)
    assert look(doctor.attempt_digest) == []
    with unguarded():
        execute("UPDATE runs_attempt SET outcome = 'succeeded' WHERE run_id = %s", row.run_id)
    assert "(retrying)" in one(look(doctor.attempt_digest))


@pytest.mark.parametrize(
    "text", ["", "plain", 'quo"te', "back\\slash", "tab\t nl\n cr\r \x01\x1f\x7f", "Zoë ⟲ 🂡", "</script>"]
)
def test_sql_makes_the_digest_of_an_attempt_as_python_does(db: None, text: str):
    run = factories.run(step=text)
    row = attempt(run, error_type=text)
    expected = attempt_digest(run.pk, row.step_seq, row.attempt_no, row.epoch, text, row.outcome, text)
    with connection.cursor() as cursor:
        cursor.execute("SELECT " + doctor.ATTEMPT_DIGEST + " FROM runs_attempt a")
        assert cursor.fetchone()[0] == expected


# --- bulks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["out", "done", "refused", "skipped", "completed"])
@pytest.mark.parametrize("by", [1, -1])
def test_a_bulk_whose_numbers_are_not_those_of_its_items_is_found(look: Look, column: str, by: int):
    made = bulk_of("out", "done", "done", "refused", "skipped", "waiting")
    Bulk.objects.filter(pk=made.pk).update(out=1, done=2, refused=1, skipped=1, completed=1)
    BulkItem.objects.filter(bulk=made, place=2).update(ended="completed")
    assert look(doctor.bulk_miscounted) == []
    Bulk.objects.filter(pk=made.pk).update(**{column: F(column) + by})
    assert str(made.pk) in one(look(doctor.bulk_miscounted))


def test_items_that_went_with_their_runs_may_be_missing_from_a_bulk_but_none_may_be_too_many(look: Look):
    made = bulk_of("done", "done", "refused")
    Bulk.objects.filter(pk=made.pk).update(done=2, refused=1)
    BulkItem.objects.filter(bulk=made, place=1).delete()
    assert look(doctor.bulk_miscounted) == []
    Bulk.objects.filter(pk=made.pk).update(refused=0)
    assert str(made.pk) in one(look(doctor.bulk_miscounted))


def bulk_of(*states: str) -> Bulk:
    made = Bulk.objects.create(name="some", reason="why", verb="retry", filter={}, total=len(states))
    for place, state in enumerate(states, start=1):
        at = None if state in ("waiting", "out") else clock.now()
        BulkItem.objects.create(
            bulk=made, place=place, run_id=uuid.uuid4(), seen_version=1, state=state, at=at
        )
    return made


# --- policies ------------------------------------------------------------------------------------------------------------


def test_limits_of_what_nobody_declares_are_a_warning(look: Look):
    for scope, name in [
        ("workflow", "parcel"),
        ("step", "parcel/pack"),
        ("tool", "charge"),
        ("step", "parcel/gone"),
    ]:
        Policy.objects.create(scope=scope, name=name)
    assert one(look(doctor.policy_of_nothing), "warning") == "step parcel/gone"


def test_finished_runs_that_retention_left_behind_are_a_warning(look: Look):
    factories.run(Status.COMPLETED)
    factories.run(Status.WAITING)
    clock.shift(timedelta(days=91))
    assert look(doctor.retention_behind) == []
    clock.shift(timedelta(days=2))
    assert "more than 90 days ago" in one(look(doctor.retention_behind), "warning")
    Policy.objects.create(scope="workflow", name="parcel", retention_days=95)
    assert look(doctor.retention_behind) == []


def test_what_retention_keeps_for_the_rest_of_its_family_is_not_behind(look: Look):
    run, _, (first, second) = parked(2)
    silently_ended(first)
    clock.shift(timedelta(days=100))
    assert look(doctor.retention_behind) == []  # the parent waits
    ended(run)
    clock.shift(timedelta(days=100))
    assert look(doctor.retention_behind) == []  # the other child goes on
    silently_ended(second)
    assert "workflow parcel: " in one(look(doctor.retention_behind), "warning")


def test_a_sample_is_short_and_the_count_is_whole(look: Look):
    for _ in range(7):
        factories.run(Status.WAITING)
    (finding,) = look(doctor.no_wake_source)
    assert finding.count == 7
    assert len(finding.sample) == doctor.SAMPLE
