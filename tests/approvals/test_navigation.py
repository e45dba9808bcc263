"""The numbers in the navigation, whose query is compiled once for a person: it must follow what the person may do."""

from typing import Any

import pytest
from django.contrib.auth.models import Group, User

from approvals.inbox import compiled, navigation, worklist
from runs import access
from runs.models import Grant
from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db


def afresh(person: User) -> User:
    """As the next request reads them."""
    return User.objects.get(pk=person.pk)


def test_what_a_person_is_granted_or_loses_changes_what_is_counted_at_once() -> None:
    person = User.objects.create_user("nobody-yet")
    factories.approval()
    factories.run(Status.ATTENTION)
    assert navigation.waiting(person) == navigation.Waiting(0, 0, 0, 0)

    person.groups.add(Group.objects.get(name="operators"))
    assert navigation.waiting(afresh(person)).inbox >= 1

    person.groups.clear()
    assert navigation.waiting(afresh(person)).inbox == 0
    run = factories.run(Status.ATTENTION, workflow="of_one")
    Grant.objects.create(
        user=person, capability=Grant.Capability.OPERATE, scope=Grant.Scope.WORKFLOW, name=run.workflow
    )
    found = navigation.waiting(afresh(person))
    assert (found.inbox, found.attention) == (1, 1)
    assert [key.item for key in worklist.keys(afresh(person), worklist.Wanted())] == [run.pk]


def test_two_people_with_the_same_permissions_have_each_their_own_count() -> None:
    other = User.objects.create_user("other")
    voter = User.objects.create_user("voter")
    approval = factories.approval()
    factories.vote(approval, voter=voter)
    for person in (other, voter):
        person.groups.add(*Group.objects.all())
    assert [key.item for key in worklist.keys(other, worklist.Wanted())] == [approval.pk]
    assert worklist.keys(voter, worklist.Wanted()) == []
    assert navigation.waiting(other).inbox == 1
    assert navigation.waiting(voter).inbox == 0


def test_a_process_keeps_a_bounded_number_of_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MOST", 3)
    monkeypatch.setattr(compiled, "_kept", {})
    person = User.objects.create_superuser("everybody")
    for number in range(10):
        worklist.keys(person, worklist.Wanted(group=f"group {number}"))
        assert len(compiled._kept) <= 3


def test_another_thread_may_throw_all_statements_away_at_any_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    class Emptied(dict[Any, Any]):
        """After each step that a thread takes, another one is over the limit."""

        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            self.clear()
            return found

        def __setitem__(self, key: object, value: object) -> None:
            super().__setitem__(key, value)
            self.clear()

    person = User.objects.create_superuser("everybody")
    factories.approval()
    monkeypatch.setattr(compiled, "_kept", Emptied())
    assert navigation.waiting(person) == navigation.waiting(person)
    kept = Emptied()
    monkeypatch.setattr(compiled, "_kept", kept)
    dict.update(kept, {("navigation", access.basis(person)): ("SELECT 'item', 7", ())})
    assert navigation.waiting(person).inbox == 7


def test_a_name_with_a_percent_sign_finds_what_it_says() -> None:
    person = User.objects.create_superuser("100% sure")
    factories.approval()
    assert worklist.keys(person, worklist.Wanted(group="50%s")) == []
    assert navigation.waiting(person).inbox == 0
