"""Editing the state of a run that no worker has."""

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection

from runs import clock, codec, doctor, history, services
from runs.errors import Invalid, NotAllowed, Stale, StateMismatch
from runs.lifecycle import Actor
from runs.models import Attempt, Event, Run
from runs.models.operation import Kind, OpStatus
from runs.services.payloads import parse_json
from runs.services.state import checked_state
from runs.states import Outcome, Status
from tests import factories

pytestmark = pytest.mark.django_db

EDITABLE = (Status.WAITING, Status.RETRYING, Status.ATTENTION, Status.FAILED)


def edited(run: Run, state: object, **given: object) -> Run:
    given = {"state": state, "reason": "wrong sum"} | given
    by = Actor.of(User.objects.filter(username="sam").first() or factories.user("sam", "support"))
    services.edit_state(by, run.pk, **given)  # type: ignore[arg-type]
    run.refresh_from_db()
    return run


@pytest.mark.parametrize("status", EDITABLE)
def test_the_run_has_the_other_state_and_stands_where_it_stood(status):
    run = factories.run(status, state={"sum": 1, "of": "x"})
    before = (run.wake_at, run.sort_at, run.step, run.step_seq, run.epoch, run.failures)
    edited(run, {"sum": 2, "of": "x"})
    assert run.state == {"sum": 2, "of": "x"}
    assert run.status == status
    assert (run.wake_at, run.sort_at, run.step, run.step_seq, run.epoch, run.failures) == before


def test_the_visit_has_a_row_of_it_and_every_checkpoint_before_still_restores():
    run = factories.run(Status.FAILED, state={"sum": 1}, step_seq=3, attempt_no=0)
    edited(run, {"sum": 2})
    edited(run, {"sum": 3})
    rows = Attempt.objects.filter(run_id=run.pk).order_by("attempt_no")
    assert [(a.attempt_no, a.outcome, a.closed_by) for a in rows] == [
        (1, Outcome.EDITED, "sam"),
        (2, Outcome.EDITED, "sam"),
    ]
    assert run.attempt_no == 2
    for number, total in ((1, 2), (2, 3)):
        back = history.restored(run.pk, 3, number)
        assert back is not None and back.shown == {"sum": total}


def test_the_history_says_who_what_and_why_without_values():
    run = edited(factories.run(Status.FAILED, state={"secret": "old", "b": 1}), {"secret": "new", "b": 1})
    event = Event.objects.get(run_id=run.pk, kind="state_edited")
    assert (event.actor, event.reason, event.data["changed"]) == ("sam", "wrong sum", ["secret"])
    assert event.data["after"] == codec.digest({"secret": "new", "b": 1})
    assert "new" not in str(event.data)


def test_a_large_state_is_kept_as_a_snapshot_and_back():
    run = factories.run(Status.FAILED, state={"small": True})
    edited(run, {"text": "y" * 30_000})
    assert history.is_pointer(run.state)
    assert history.whole(run.pk, run.state, None).true == {"text": "y" * 30_000}
    edited(run, {"small": 1})
    assert run.state == {"small": 1}
    assert len(list(history.walk(run.pk))) == 2


def test_what_differs_in_type_alone_is_another_state():
    assert edited(factories.run(Status.FAILED, state={"n": 1}), {"n": True}).state == {"n": True}


def test_a_wait_that_was_settled_meanwhile_is_still_found_by_the_claim():
    run = factories.run(Status.WAITING, attempt_no=1, state={"a": 1})
    settled = factories.operation(run, Kind.SIGNAL, OpStatus.DONE, attempt_no=1)
    still = factories.operation(run, Kind.SIGNAL, OpStatus.OPEN, attempt_no=1)
    edited(run, {"a": 2})
    for one in (settled, still):
        one.refresh_from_db()
        assert one.attempt_no == run.attempt_no == 2


def test_doctor_finds_nothing_wrong():
    run = factories.run(Status.FAILED, attempt_no=0, state={"a": 1})
    edited(run, {"a": 2})
    with connection.cursor() as cursor:
        at = doctor.Snapshot(cursor, 0)
        checks = (doctor.attempt_gap, doctor.attempt_after_end, doctor.attempt_digest, doctor.broken_chain)
        assert doctor.run_checks(checks, at) == []


@pytest.mark.parametrize("status", [s for s in Status if s not in EDITABLE])
def test_a_run_that_a_worker_may_have_is_not_edited(status):
    run = factories.run(status)
    with pytest.raises(StateMismatch, match=status):
        edited(run, {"a": 1})
    assert not Attempt.objects.filter(run_id=run.pk).exists()


def test_a_run_in_doubt_is_answered_first():
    with pytest.raises(StateMismatch, match="answer that first"):
        edited(factories.doubt().run, {"a": 1})


def test_a_run_that_is_to_be_cancelled_is_not_edited():
    run = factories.run(Status.WAITING, cancel_requested_by="ada", cancel_requested_at=clock.now())
    with pytest.raises(StateMismatch, match="ada has asked for its cancel"):
        edited(run, {"a": 1})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[1]", "must be an object"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": {"$agentops": "history", "v": {}}}', "a tag that means nothing"),
        ('{"$agentops": "blob", "v": {"sha256": "00"}}', "a tag that means nothing"),
        ('{"a": {"$agentops": "decimal", "v": "ten"}}', "a tag that means nothing"),
        ('{"a": {"$agentops": "decimal"}}', "a tag that means nothing"),
    ],
)
def test_what_no_step_could_have_left_is_refused(text, told):
    with pytest.raises(Invalid, match=told):
        checked_state(parse_json(text, "the state"))


def test_tags_of_decimals_and_times_come_back_as_they_are():
    text = '{"sum": {"$agentops": "decimal", "v": "10.00"}}'
    assert checked_state(parse_json(text, "the state")) == {"sum": {"$agentops": "decimal", "v": "10.00"}}


def test_the_same_state_and_no_reason_are_refused():
    run = factories.run(Status.FAILED, state={"a": 1})
    with pytest.raises(Invalid, match="already"):
        edited(run, {"a": 1})
    with pytest.raises(Invalid, match="say why"):
        edited(run, {"a": 2}, reason="")


def test_who_may_not_see_the_state_may_not_edit_it(monkeypatch):
    run, by = factories.run(Status.FAILED), factories.support()
    assert by.user is not None
    Group.objects.get(name="support").permissions.remove(
        *Group.objects.get(name="support").permissions.filter(codename="view_payload")
    )
    with pytest.raises(NotAllowed, match="view payload"):
        services.edit_state(by, run.pk, state={"a": 1}, reason="x")


@pytest.mark.parametrize("who", [factories.operator, factories.stranger])
def test_a_wrong_role_edits_nothing(who):
    run = factories.run(Status.FAILED)
    with pytest.raises(NotAllowed):
        services.edit_state(who(), run.pk, state={"a": 1}, reason="x")


def test_a_stale_page_edits_nothing():
    run = factories.run(Status.FAILED)
    with pytest.raises(Stale):
        edited(run, {"a": 1}, seen_version=run.event_seq - 1)
