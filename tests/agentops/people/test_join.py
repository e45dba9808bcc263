"""Putting a person into a group."""

import pytest
from django.contrib.auth.models import Group, User

from agentops.people import services
from runs.errors import Invalid, NotAllowed, NotFound, Stale, StateMismatch
from runs.models import AuditEvent
from tests import factories
from tests.agentops.people.test_grant import again, desk

pytestmark = pytest.mark.django_db


def group(name: str) -> Group:
    return Group.objects.get(name=name)


def test_a_person_holds_what_the_group_holds_and_the_audit_tells():
    person = factories.user("olivia")
    said = services.join(factories.admin("ada"), person.pk, group("operators").pk, reason="new here")
    assert said == "olivia is now in operators."
    assert again(person).has_perm("approvals.decide_approval")
    event = AuditEvent.objects.get()
    assert (event.kind, event.target, event.actor) == ("group_joined", "person olivia", "ada")
    assert event.new is not None and event.new["groups"] == ["operators"]


def test_already_in_it_nobody_is_put_in_again():
    person = factories.user("", "operators")
    with pytest.raises(StateMismatch, match="already"):
        services.join(factories.admin(), person.pk, group("operators").pk, reason="x")


def test_a_page_that_is_older_than_the_last_change_is_stale():
    person = factories.user()
    seen = services.version(person)
    person.groups.add(group("support"))
    with pytest.raises(Stale):
        services.join(factories.admin(), person.pk, group("operators").pk, reason="x", seen=seen)


def test_whoever_manages_people_only_puts_them_into_their_own_groups():
    by = desk()
    assert isinstance(by.user, User)
    by.user.groups.add(group("support"))
    person = factories.user()
    services.join(by, person.pk, group("support").pk, reason="x")
    with pytest.raises(NotAllowed, match="not admins"):
        services.join(by, person.pk, group("admins").pk, reason="x")
    with pytest.raises(NotAllowed, match="not operators"):
        services.join(by, by.user.pk, group("operators").pk, reason="x")


def test_whoever_may_not_manage_people_puts_nobody_in():
    person = factories.user()
    with pytest.raises(NotAllowed):
        services.join(factories.operator(), person.pk, group("admins").pk, reason="x")
    assert not person.groups.exists()


def test_nobody_is_there_or_nothing_is_said():
    person = factories.user()
    for user_id, group_id in ((10**6, group("support").pk), (person.pk, 10**6)):
        with pytest.raises(NotFound):
            services.join(factories.admin(), user_id, group_id, reason="x")
    with pytest.raises(Invalid, match="say why"):
        services.join(factories.admin(), person.pk, group("support").pk, reason="")
