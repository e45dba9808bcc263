"""A new sign-in link for somebody who cannot sign in."""

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from agentops.people import services
from runs.errors import NotAllowed, Stale, StateMismatch
from runs.lifecycle import Actor
from runs.models import AuditEvent, Grant
from tests import factories
from tests.agentops.people.test_grant import again, desk

pytestmark = pytest.mark.django_db


def test_password_sessions_and_earlier_links_are_void():
    person = factories.user("olivia", "operators")
    browser = Client()
    browser.force_login(person)
    first = services.renew_link(factories.admin("ada"), person.pk, reason="forgotten")
    assert browser.get("/").status_code == 302
    second = services.renew_link(factories.admin("bea"), person.pk, reason="lost")
    assert not services.links.check_token(again(person), first.token)
    assert services.links.check_token(again(person), second.token)
    kinds = list(AuditEvent.objects.order_by("id").values_list("kind", "target", "actor"))
    assert kinds == [
        ("sign_in_link_made", "person olivia", "ada"),
        ("sign_in_link_made", "person olivia", "bea"),
    ]


def test_nobody_makes_one_for_themselves_or_for_somebody_switched_off():
    by = factories.admin()
    with pytest.raises(StateMismatch, match="sign you out"):
        services.renew_link(by, by.id or 0, reason="x")
    with pytest.raises(StateMismatch, match="switched off"):
        services.renew_link(by, factories.user(is_active=False).pk, reason="x")
    with pytest.raises(Stale):
        services.renew_link(by, factories.user().pk, reason="x", seen="0" * 64)


def test_nobody_becomes_more_than_they_are_by_a_link_for_somebody_else():
    by = desk()
    services.renew_link(by, factories.user().pk, reason="x")
    in_group, granted, own = factories.user("", "admins"), factories.user(), factories.user()
    Grant.objects.create(user=granted, capability="operate", granted_by="Ada")
    own.user_permissions.add(Permission.objects.get(codename="kill_run"))
    for person in (in_group, granted, own, factories.user(is_superuser=True)):
        with pytest.raises(NotAllowed, match="holds more than you do"):
            services.renew_link(by, person.pk, reason="x")
        assert again(person).has_usable_password()


def test_a_link_for_a_superuser_takes_a_superuser():
    person = factories.user(is_superuser=True)
    with pytest.raises(NotAllowed, match="holds more than you do"):
        services.renew_link(factories.admin(), person.pk, reason="x")
    services.renew_link(Actor.of(factories.user(is_superuser=True)), person.pk, reason="x")


def test_whoever_may_not_manage_people_makes_none():
    person = factories.user()
    with pytest.raises(NotAllowed):
        services.renew_link(factories.operator(), person.pk, reason="x")
    assert User.objects.get(pk=person.pk).has_usable_password()


def test_whom_a_policy_names_decides_more_than_their_groups_do():
    by = desk()
    named, asked = factories.user("olga"), factories.user("pia")
    factories.approval_policy(
        rules=[{"groups": [], "users": [{"id": named.pk, "name": "olga"}], "when": "amount > 100"}]
    )
    waits = factories.approval()
    waits.requirement |= {"users": [{"id": asked.pk, "name": "pia"}]}
    waits.save(update_fields=["requirement"])
    for person in (named, asked):
        with pytest.raises(NotAllowed, match="holds more than you do"):
            services.renew_link(by, person.pk, reason="x")
    services.renew_link(factories.admin(), named.pk, reason="x")
