"""Switching a person off: no sign-in, no session, no claim."""

import pytest
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.test import Client

from agentops.people import services
from approvals.inbox import handling
from approvals.models import Item, ItemKind
from runs import clock
from runs.errors import NotAllowed, Stale, StateMismatch
from runs.lifecycle import Actor
from runs.models import AuditEvent, Event
from runs.models.run import new_id
from tests import factories
from tests.agentops.people.test_grant import again

pytestmark = pytest.mark.django_db


def test_the_sessions_of_a_person_end_for_good_and_the_password_with_them():
    person = factories.user("olivia", "operators")
    browser = Client()
    browser.force_login(person)
    assert browser.get("/approvals/").status_code == 200
    services.switch_off(factories.admin("ada"), person.pk, reason="has left")
    assert browser.get("/approvals/").status_code == 302
    assert authenticate(username="olivia", password="secret") is None
    User.objects.filter(pk=person.pk).update(is_active=True)
    assert browser.get("/approvals/").status_code == 302, "a session from before does not come back"
    event = AuditEvent.objects.get(target="person olivia")
    assert (event.kind, event.actor, event.reason) == ("person_switched_off", "ada", "has left")
    assert event.old is not None and event.new is not None
    assert (event.old["active"], event.new["active"], event.new["released"]) == (True, False, 0)


def test_what_they_had_claimed_is_released_and_the_run_says_so():
    operator = factories.operator("olivia")
    mine = [factories.approval() for _ in range(2)]
    others = factories.approval()
    for approval in mine:
        handling.claim(operator, ItemKind.APPROVAL, approval.pk)
    handling.claim(factories.operator("jun"), ItemKind.APPROVAL, others.pk)
    said = services.switch_off(factories.admin("ada"), operator.id or 0, reason="has left")
    assert said.endswith("2 claims were released.")
    assert not Item.objects.filter(claimed_by_name="olivia").exists()
    assert Item.objects.get(item_id=others.pk).claimed_by_name == "jun"
    event = Event.objects.get(run_id=mine[0].run_id, kind="item_released")
    assert (event.actor, event.reason, event.data["of"]) == ("ada", "has left", "olivia")
    handling.claim(factories.operator(), ItemKind.APPROVAL, mine[0].pk)


def test_a_claim_whose_run_is_deleted_in_this_moment_keeps_nobody_from_it():
    operator, left, gone = factories.operator("olivia"), factories.approval(), new_id()
    handling.claim(operator, ItemKind.APPROVAL, left.pk)
    # As its turn finds it: listed with the others, and deleted before its run was locked.
    Item.objects.create(
        kind=ItemKind.DEAD,
        item_id=gone,
        run_id=gone,
        claimed_by_id=operator.id,
        claimed_by_name="olivia",
        claimed_at=clock.now(),
    )
    said = services.switch_off(factories.admin("ada"), operator.id or 0, reason="has left")
    assert said.endswith("1 claim was released.")
    assert not User.objects.get(username="olivia").is_active


def test_groups_and_grants_stay_for_the_day_they_come_back():
    person = factories.user("", "operators")
    services.switch_off(factories.admin(), person.pk, reason="x")
    assert list(person.groups.values_list("name", flat=True)) == ["operators"]


def test_nobody_switches_themselves_off():
    person = factories.admin()
    with pytest.raises(StateMismatch, match="lock yourself out"):
        services.switch_off(person, person.id or 0, reason="x")


def test_switched_off_already_or_seen_before_the_last_change_nothing_is_done():
    person = factories.user()
    with pytest.raises(Stale):
        services.switch_off(factories.admin(), person.pk, reason="x", seen="0" * 64)
    services.switch_off(factories.admin(), person.pk, reason="x", seen=services.version(person))
    with pytest.raises(StateMismatch, match="already"):
        services.switch_off(factories.admin(), person.pk, reason="x")


def test_whoever_may_not_manage_people_switches_nobody_off():
    person = factories.user()
    with pytest.raises(NotAllowed):
        services.switch_off(factories.support(), person.pk, reason="x")
    assert again(person).is_active


def test_somebody_who_was_switched_off_while_their_page_was_open_does_nothing_more():
    admin, other = factories.admin(), factories.user()
    assert isinstance(admin.user, User)
    admin.user.has_perm("runs.manage_people")  # read, and kept with the user object
    services.switch_off(factories.admin(), admin.user.pk, reason="x")
    with pytest.raises(NotAllowed):
        services.switch_off(Actor(admin.name, admin.user), other.pk, reason="x")
