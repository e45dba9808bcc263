"""Saying what becomes of a group: acknowledged, fixed, handled, open again, noted."""

import pytest

from runs.errors import Invalid, NotAllowed, NotFound, Stale, StateMismatch
from runs.lifecycle import Actor
from runs.models import AuditEvent, FailureGroup, Grant
from runs.models.run import new_id
from runs.services import failures as verbs
from tests import factories

pytestmark = pytest.mark.django_db

VERBS = {
    "acknowledge": verbs.acknowledge_failure,
    "fix": lambda *given, **named: verbs.fix_failure(*given, version=2, **named),
    "handle": verbs.handle_failure,
    "reopen": verbs.reopen_failure,
}
BECOMES = {"acknowledge": "acknowledged", "fix": "fixed", "handle": "handled", "reopen": "open"}


def group(state: str = "open") -> FailureGroup:
    made = FailureGroup.objects.get(pk=factories.fingerprint(factories.failed()))
    FailureGroup.objects.filter(pk=made.pk).update(state=state, fixed_in=1 if state == "fixed" else None)
    made.refresh_from_db()
    return made


@pytest.mark.parametrize(
    ("name", "state"), [(name, state) for name, change in verbs.CHANGES.items() for state in change.sources]
)
def test_each_change_is_written_with_who_and_why(name, state):
    made = group(state)
    VERBS[name](factories.support("sam"), made.pk, reason=" because ", seen_revision=made.revision)
    made.refresh_from_db()
    assert (made.state, made.changed_by, made.revision) == (BECOMES[name], "sam", 1)
    event = AuditEvent.objects.get(target=made.target)
    assert event.old is not None and event.new is not None
    assert (event.actor, event.reason, event.old["state"], event.new["state"]) == (
        "sam",
        "because",
        state,
        BECOMES[name],
    )


@pytest.mark.parametrize(
    ("name", "state"),
    [
        (name, state)
        for name, change in verbs.CHANGES.items()
        for state in FailureGroup.State.values
        if state not in change.sources
    ],
)
def test_no_other_state_allows_it(name, state):
    made = group(state)
    with pytest.raises(StateMismatch):
        VERBS[name](factories.support(), made.pk, reason="because")
    assert not AuditEvent.objects.exists()


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("who", ["stranger", "operator"])
def test_who_may_not_is_refused(name, who):
    made = group("acknowledged" if name == "reopen" else "open")
    with pytest.raises(NotAllowed):
        VERBS[name](getattr(factories, who)(), made.pk, reason="because")


def test_a_grant_for_one_workflow_reaches_its_groups_and_no_others():
    greta = factories.user("greta")
    person = Actor.of(greta)
    Grant.objects.create(user=greta, capability="operate", scope="workflow", name="parcel", granted_by="x")
    verbs.note_failure(person, group().pk, reason="seen")
    with pytest.raises(NotAllowed):
        verbs.note_failure(person, factories.fingerprint(factories.failed(workflow="letter")), reason="seen")


@pytest.mark.parametrize("name", VERBS)
def test_a_stale_page_changes_nothing(name):
    made = group("acknowledged")
    with pytest.raises(Stale, match="it is now acknowledged"):
        VERBS[name](factories.support(), made.pk, reason="because", seen_revision=made.revision + 1)


def test_a_reason_is_needed():
    with pytest.raises(Invalid):
        verbs.handle_failure(factories.support(), group().pk, reason="  ")


def test_what_is_fixed_is_not_a_version_before_the_one_that_failed():
    run = factories.failed(version=3)
    with pytest.raises(Invalid, match="version 3"):
        verbs.fix_failure(factories.support(), factories.fingerprint(run), version=2, reason="x")


def test_a_group_that_is_not_there():
    with pytest.raises(NotFound):
        verbs.handle_failure(factories.support(), new_id(), reason="x")


def test_a_note_stands_in_the_history_and_changes_no_state():
    made = group()
    verbs.note_failure(factories.support("sam"), made.pk, reason="asked the provider")
    event = AuditEvent.objects.get(target=made.target)
    assert (event.kind, event.reason) == ("failure_note", "asked the provider")
    made.refresh_from_db()
    assert (made.state, made.revision) == ("open", 0)
