"""What pages read about runs."""

import uuid
from datetime import timedelta

import pytest

from runs import clock, selectors, services
from runs.models import Attempt, Event, Run
from runs.models.operation import Kind, OpStatus
from runs.states import TERMINAL, AttentionKind, FailureKind, Hold, Outcome, Status
from tests import factories

pytestmark = pytest.mark.django_db


def attempt(run: Run, number: int = 1, error: str = "") -> Attempt:
    now = clock.now()
    return Attempt.objects.create(
        run_id=run.pk,
        step_seq=run.step_seq,
        attempt_no=number,
        epoch=number,
        step=run.step,
        outcome=Outcome.FAILED,
        started_at=now,
        ended_at=now,
        error=error,
    )


def test_runs_are_listed_newest_first_and_narrowed():
    first, second = factories.run(), factories.run(Status.WAITING, subject="order 7")
    assert list(selectors.runs()) == [second, first]
    assert list(selectors.runs(status="waiting")) == [second]
    assert list(selectors.runs(subject="order 7", workflow="parcel")) == [second]
    assert not selectors.runs(workflow="other").exists()


def test_a_list_does_not_read_payloads():
    factories.run()
    (run,) = selectors.runs()
    assert {"input", "state", "result"} <= run.get_deferred_fields()


def test_counts_stop_at_their_limit(monkeypatch):
    monkeypatch.setattr(selectors, "COUNT_LIMIT", 1)
    for _ in range(3):
        factories.run()
    factories.run(Status.FAILED)
    assert selectors.counts() == {s.value: 0 for s in Status} | {"queued": 2, "failed": 1}
    assert selectors.counts(workflow="other")["queued"] == 0


def test_the_dead_letter_holds_what_no_workflow_asked_for():
    dead = factories.run(Status.FAILED, failure_kind=FailureKind.CRASHED)
    factories.run(Status.FAILED, failure_kind=FailureKind.DECLARED)
    factories.run()
    assert list(selectors.dead_letters()) == [dead]


def test_attention_is_listed_oldest_first():
    first, second = factories.run(Status.ATTENTION), factories.run(Status.ATTENTION)
    assert list(selectors.attention()) == [first, second]


def test_the_page_of_a_run_has_all_that_belongs_to_it(django_assert_max_num_queries):
    wait = factories.signal_wait()
    services.receive_signal(
        factories.SYSTEM, name="paid", payload={}, external_id="1", source="shop", run_id=wait.run_id
    )
    with django_assert_max_num_queries(7):
        detail = selectors.detail(wait.run_id, part="events")
    assert [event.kind for event in detail.record] == ["signal", "started"]
    assert [o.pk for o in detail.operations] == [wait.pk]
    assert [s.consumed_by for s in selectors.detail(wait.run_id, part="signals").record] == [wait.pk]


def test_attempts_come_in_pages_with_the_operations_of_their_visits(monkeypatch):
    run = factories.run(Status.WAITING)
    for visit in range(1, 6):
        run.step_seq = visit
        attempt(run)
        factories.operation(run, name=f"visit {visit}")
    monkeypatch.setattr(selectors, "ATTEMPTS", 2)
    latest = selectors.detail(run.pk)
    assert [a.step_seq for a in latest.attempts] == [5, 4]
    assert [o.name for o in latest.operations] == ["visit 4", "visit 5"]
    earlier = selectors.detail(run.pk, before=latest.earlier)
    assert [a.step_seq for a in earlier.attempts] == [3, 2]
    assert [o.name for o in earlier.operations] == ["visit 2", "visit 3"]
    first = selectors.detail(run.pk, before=earlier.earlier)
    assert [a.step_seq for a in first.attempts] == [1] and first.earlier is None


def test_the_version_of_a_run_changes_with_everything_that_its_page_shows():
    run = factories.run(Status.WAITING)
    tags = {selectors.version(run.pk).tag}

    def changed() -> bool:
        before = len(tags)
        tags.add(selectors.version(run.pk).tag)
        return len(tags) > before

    assert not changed()
    factories.signal_wait(run)
    assert changed()
    attempt(run)
    assert changed()
    services.set_limits(factories.admin(), "step", "parcel/pack", max_attempts=9)
    assert changed()
    factories.worker()
    assert changed(), "the queue is served now"
    assert not changed()


def test_the_version_of_no_run_is_refused():
    with pytest.raises(Run.DoesNotExist):
        selectors.version(uuid.uuid4())


@pytest.mark.parametrize("text", ["", "x", "1", "1.", "1.x", "1.2.3", "-1.2", "9" * 30 + ".1", "١.٢"])
def test_what_is_no_place_among_attempts_is_none(text):
    assert selectors.Place.parse(text) is None


def test_runs_are_searched_by_the_beginning_of_their_id_and_by_words():
    run = factories.run(Status.FAILED, subject="Order 77", start_key="mail-8", reason="provider said 503")
    factories.run()
    for text in (str(run.pk)[:13], str(run.pk), run.pk.hex[:20], "order 77", "MAIL-8", "said 503"):
        found = list(selectors.runs(search=text))
        assert run in found, text
    assert [one.pk for one in selectors.runs(search=str(run.pk))] == [run.pk]
    assert not selectors.runs(search="100%_").exists()


def test_what_needs_people_is_counted(django_assert_num_queries):
    factories.run(Status.ATTENTION)
    factories.run(Status.FAILED, failure_kind=FailureKind.DECLARED)
    factories.run(Status.FAILED)
    factories.approval()
    factories.signal_wait()
    with django_assert_num_queries(1):
        needs = selectors.needs()
    assert needs == selectors.Needs(attention=1, dead_letters=1, approvals=1)


# --- why -----------------------------------------------------------------------------------------------------------------


def test_every_unfinished_run_says_why_it_is_not_moving_and_a_finished_one_says_nothing():
    for status in Status:
        told = selectors.why_not_moving(factories.run(status))
        assert bool(told) == (status not in TERMINAL), status


def test_a_due_run_says_whether_anybody_is_there_to_take_it():
    run = factories.run()
    assert "no live worker looks at queue default" in selectors.why_not_moving(run)
    factories.worker(beats=False)
    assert "no live worker" in selectors.why_not_moving(run)
    factories.worker()
    assert "waiting for a free worker" in selectors.why_not_moving(run)


def test_a_run_that_is_due_later_says_when():
    at = clock.now() + timedelta(hours=1)
    why = selectors.why(factories.run(wake_at=at, sort_at=at))
    assert why.next_at == at
    assert f"next look at {at:%Y-%m-%d %H:%M:%S} UTC" in str(why)


def test_a_parked_run_says_who_paused_its_workflow_and_why():
    services.pause_workflow(factories.admin("ada"), "parcel", reason="provider is down")
    told = selectors.why_not_moving(factories.run(held_by=Hold.PAUSED))
    assert told == "workflow parcel is paused by ada (provider is down); it goes on when somebody resumes it"
    told = selectors.why_not_moving(factories.run(held_by=Hold.NO_CAPABLE_WORKER))
    assert "no live worker can execute step pack of parcel version 1" in told


def test_a_waiting_run_names_what_it_waits_for():
    run = factories.run(Status.WAITING)
    factories.signal_wait(run, correlation="tx-1")
    factories.operation(run, Kind.TIMER, OpStatus.OPEN, name="")
    assert selectors.why_not_moving(run) == "waiting for the signal paid for tx-1 and for its timer"


def test_an_approval_is_named_with_its_limit():
    approval = factories.approval()
    approval.run.refresh_from_db()
    why = selectors.why(approval.run)
    assert why.sentence == "waiting for approval of book_courier"
    assert why.next_at == approval.expires_at


def test_a_retrying_run_says_how_often_it_failed_of_how_many_and_with_what():
    run = factories.run(Status.RETRYING, failures=2)
    attempt(run, 1, "first")
    attempt(run, 2, "503 from the provider\nwith more")
    assert selectors.why_not_moving(run).startswith(
        "step pack failed 2 of 5 times (503 from the provider with more) and is tried again; next look at "
    )
    services.set_limits(factories.admin(), "step", "parcel/pack", max_attempts=9)
    assert "2 of 9 times" in selectors.why_not_moving(run)


def test_a_run_in_the_back_off_of_a_tool_names_the_tool():
    run = factories.run(Status.RETRYING, failures=0)
    factories.operation(run, Kind.EFFECT, OpStatus.RETRY, tries=2, error="429")
    assert selectors.why_not_moving(run).startswith(
        "book_courier failed 2 of 5 times (429) and is tried again"
    )


def test_a_running_run_says_who_has_it_and_until_when():
    run = factories.run(Status.RUNNING)
    assert "executes step pack, attempt 1; next look at" in selectors.why_not_moving(run)
    run.cancel_requested_at, run.cancel_requested_by = clock.now(), "sam"
    assert "cancelled by sam" in selectors.why_not_moving(run)
    orphan = factories.run(Status.RUNNING, worker_id=factories.worker(reaped=True).pk)
    assert "has ended" in selectors.why_not_moving(orphan)


@pytest.mark.parametrize("kind", list(AttentionKind))
def test_attention_says_what_is_asked_of_a_person(kind):
    told = selectors.why_not_moving(factories.run(Status.ATTENTION, attention_kind=kind))
    assert "somebody has to" in told


def test_the_reasons_of_many_runs_take_a_fixed_number_of_queries(django_assert_max_num_queries):
    for _ in range(3):
        for status in Status:
            run = factories.run(status)
            if status == Status.WAITING:
                factories.signal_wait(run)
                factories.approval(run)
    everything = list(selectors.runs())
    with django_assert_max_num_queries(6):
        told = selectors.reasons(everything)
    assert len(told) == len(everything)


def test_limits_show_the_code_and_what_holds_now():
    services.set_limits(factories.admin(), "workflow", "parcel", timeout_s=7)
    services.set_limits(factories.admin("ada"), "step", "parcel/pack", max_attempts=8)
    rows = {(row.scope, row.name): row for row in selectors.limits()}
    pack = rows["step", "parcel/pack"]
    assert (pack.of_code.max_attempts, pack.effective.max_attempts, pack.effective.timeout) == (5, 8, 7)
    assert pack.seen_revision == 1
    assert rows["tool", "book_courier"].policy is None and rows["tool", "book_courier"].seen_revision == 0


def test_the_history_of_a_run_is_told_newest_first():
    run = factories.run()
    services.cancel(factories.support(), run.pk)
    assert [e.seq for e in selectors.detail(run.pk, part="events").record] == [3, 2, 1]
    assert Event.objects.filter(run_id=run.pk).count() == 3


def test_a_cancelled_run_that_is_due_is_not_said_to_have_no_worker():
    run = factories.run(Status.CANCELLING, wake_at=clock.now() - timedelta(seconds=1))
    assert "no live worker" in str(selectors.why(run))
    factories.worker(queues=[run.queue])
    assert str(selectors.why(run)).startswith("due; waiting for a free worker")
