"""Taking a person out of a group."""

import pytest
from django.contrib.auth.models import Group

from agentops.people import services
from runs.errors import NotAllowed, Stale, StateMismatch
from runs.lifecycle import Actor
from runs.models import AuditEvent
from tests import factories
from tests.agentops.people.test_grant import again, desk

pytestmark = pytest.mark.django_db


def group(name: str) -> int:
    return Group.objects.get(name=name).pk


def test_a_person_holds_it_no_longer_and_the_audit_tells():
    person = factories.user("olivia", "operators")
    said = services.leave(factories.admin("ada"), person.pk, group("operators"), reason="has moved on")
    assert said == "olivia is no longer in operators."
    assert not again(person).has_perm("approvals.decide_approval")
    event = AuditEvent.objects.get()
    assert (event.kind, event.target, event.reason) == ("group_left", "person olivia", "has moved on")
    assert event.old is not None and event.old["groups"] == ["operators"]


def test_not_in_it_nobody_is_taken_out():
    with pytest.raises(StateMismatch, match="not in"):
        services.leave(factories.admin(), factories.user().pk, group("support"), reason="x")


def test_a_page_that_is_older_than_the_last_change_is_stale():
    person = factories.user("", "operators", "support")
    seen = services.version(person)
    person.groups.remove(group("support"))
    with pytest.raises(Stale):
        services.leave(factories.admin(), person.pk, group("operators"), reason="x", seen=seen)


def test_taking_out_needs_no_membership_of_ones_own():
    person = factories.user("", "admins")
    services.leave(desk(), person.pk, group("admins"), reason="x")
    assert not person.groups.exists()


def test_whoever_may_not_manage_people_takes_nobody_out():
    person = factories.user("", "operators")
    with pytest.raises(NotAllowed):
        services.leave(factories.support(), person.pk, group("operators"), reason="x")


def test_nobody_takes_themselves_out_of_what_lets_them_manage_people():
    only = factories.user("", "admins")
    with pytest.raises(StateMismatch, match="nobody would be left"):
        services.leave(Actor.of(only), only.pk, group("admins"), reason="x")
    factories.user("", "admins")
    with pytest.raises(StateMismatch, match="lock yourself out"):
        services.leave(Actor.of(again(only)), only.pk, group("admins"), reason="x")
    assert only.groups.exists()


def test_somebody_who_is_switched_off_does_not_count_as_left():
    only = factories.user("", "admins")
    factories.user("", "admins", is_active=False)
    with pytest.raises(StateMismatch, match="nobody would be left"):
        services.leave(Actor.of(only), only.pk, group("admins"), reason="x")
