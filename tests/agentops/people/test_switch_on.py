"""Switching a person on again, with a new link."""

import pytest
from django.contrib.auth.models import Group, User

from agentops.people import services
from runs.errors import NotAllowed, Stale, StateMismatch
from runs.models import AuditEvent
from tests import factories
from tests.agentops.people.test_grant import again, desk

pytestmark = pytest.mark.django_db


def test_a_person_signs_in_again_with_the_link_and_not_with_the_password_of_before():
    person = factories.user("olivia", "operators", is_active=False)
    made = services.switch_on(factories.admin("ada"), person.pk, reason="is back")
    assert again(person).is_active
    assert not again(person).has_usable_password()
    assert services.links.check_token(again(person), made.token)
    event = AuditEvent.objects.get()
    assert (event.kind, event.target, event.actor) == ("person_switched_on", "person olivia", "ada")
    assert made.token not in str(event.new)


def test_somebody_who_is_on_stays_as_they_are():
    person = factories.user()
    with pytest.raises(StateMismatch, match="not switched off"):
        services.switch_on(factories.admin(), person.pk, reason="x")
    assert again(person).has_usable_password()


def test_a_page_that_is_older_than_the_last_change_is_stale():
    person = factories.user(is_active=False)
    with pytest.raises(Stale):
        services.switch_on(factories.admin(), person.pk, reason="x", seen="0" * 64)


def test_whoever_manages_people_only_brings_nobody_back_who_holds_more():
    by = desk()
    assert isinstance(by.user, User)
    by.user.groups.add(Group.objects.get(name="support"))
    services.switch_on(by, factories.user("", "support", is_active=False).pk, reason="x")
    with pytest.raises(NotAllowed, match="holds more than you do"):
        services.switch_on(by, factories.user("", "operators", is_active=False).pk, reason="x")


def test_whoever_may_not_manage_people_switches_nobody_on():
    person = factories.user(is_active=False)
    with pytest.raises(NotAllowed):
        services.switch_on(factories.operator(), person.pk, reason="x")
    assert not again(person).is_active
