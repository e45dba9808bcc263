"""What pages read about runs."""

import uuid

import pytest

from runs import clock, selectors, services
from runs.models import Attempt, Event, Run
from runs.states import FailureKind, Outcome, Status
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


def test_the_history_of_a_run_is_told_newest_first():
    run = factories.run()
    services.cancel(factories.support(), run.pk)
    assert [e.seq for e in selectors.detail(run.pk, part="events").record] == [3, 2, 1]
    assert Event.objects.filter(run_id=run.pk).count() == 3
