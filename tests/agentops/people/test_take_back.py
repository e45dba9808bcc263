"""Taking a grant back."""

import uuid

import pytest
from django.contrib.auth.models import Group, User

from agentops.people import services
from runs import access
from runs.errors import NotAllowed, NotFound, Stale, StateMismatch
from runs.lifecycle import Actor
from runs.models import AuditEvent, Grant
from tests import factories
from tests.agentops.people.test_grant import again, desk

pytestmark = pytest.mark.django_db


def granted(to: User | Group, capability: str = "view") -> Grant:
    whom = {"user": to} if isinstance(to, User) else {"group": to}
    return Grant.objects.create(capability=capability, granted_by="Ada", **whom)


def test_a_person_may_do_it_no_longer_and_the_audit_tells():
    person = factories.user("olivia")
    found = granted(person)
    said = services.take_back(factories.admin("ada"), found.pk, reason="has left the team")
    assert said == "“View” for everything has been taken back from olivia."
    assert not access.may(again(person), "runs.view_run")
    event = AuditEvent.objects.get()
    assert (event.kind, event.target, event.actor) == ("capability_taken_back", "person olivia", "ada")
    assert event.old is not None and event.old["grants"] == ["View: everything"]


def test_taking_away_needs_no_having():
    services.take_back(desk(), granted(factories.user(), "administer").pk, reason="too much")
    assert not Grant.objects.exists()


def test_taken_back_already_there_is_nothing_to_take():
    with pytest.raises(NotFound, match="already"):
        services.take_back(factories.admin(), uuid.uuid4(), reason="x")


def test_a_page_that_is_older_than_the_last_change_is_stale():
    person = factories.user()
    found = granted(person)
    seen = services.version(person)
    granted(person, "payloads")
    with pytest.raises(Stale):
        services.take_back(factories.admin(), found.pk, reason="x", seen=seen)


def test_whoever_may_not_manage_people_takes_nothing():
    found = granted(factories.user())
    with pytest.raises(NotAllowed):
        services.take_back(factories.support(), found.pk, reason="x")
    assert Grant.objects.exists()


def test_the_last_who_may_manage_people_cannot_take_it_from_themselves():
    person = factories.user()
    found = granted(person, "administer")
    with pytest.raises(StateMismatch, match="nobody would be left"):
        services.take_back(Actor.of(person), found.pk, reason="x")
    assert Grant.objects.exists()


def test_nobody_locks_themselves_out_not_even_by_a_group():
    group = Group.objects.create(name="leads")
    person = factories.user()
    person.groups.add(group)
    found = granted(group, "administer")
    factories.admin()
    with pytest.raises(StateMismatch, match="lock yourself out"):
        services.take_back(Actor.of(person), found.pk, reason="x")
    granted(person, "administer")
    services.take_back(Actor.of(again(person)), found.pk, reason="held by another way")
