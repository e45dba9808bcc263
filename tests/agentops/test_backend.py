"""Who asks: the one query of a session says what Django's several would, of this person and of nobody else."""

from collections.abc import Callable

import pytest
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import Group, Permission, User
from pytest_django import DjangoAssertNumQueries

from agentops.backend import Backend
from runs import access
from runs.models import Grant

pytestmark = pytest.mark.django_db

LIMITS, KILL = "runs.change_limits", "runs.kill_run"


def permission(name: str) -> Permission:
    app, _, codename = name.partition(".")
    return Permission.objects.get(content_type__app_label=app, codename=codename)


def nothing(person: User) -> None:
    """As they were made."""


def one_of_their_own(person: User) -> None:
    person.user_permissions.add(permission(LIMITS))


def groups_that_overlap(person: User) -> None:
    person.groups.add(Group.objects.get(name="operators"), Group.objects.get(name="admins"))
    person.user_permissions.add(permission(KILL))


def granted_themselves_and_by_a_group(person: User) -> None:
    team = Group.objects.create(name="team")
    person.groups.add(team)
    Grant.objects.create(group=team, capability="view", granted_by="ada")
    Grant.objects.create(
        user=person, capability="operate", scope="workflow", name="refunds", granted_by="ada"
    )
    Grant.objects.create(
        user=person, capability="approve", scope="subject", name="order “1”", granted_by="ada"
    )


def superuser(person: User) -> None:
    person.is_superuser = True
    person.save()


@pytest.mark.parametrize(
    "given",
    [nothing, one_of_their_own, groups_that_overlap, granted_themselves_and_by_a_group, superuser],
    ids=lambda given: given.__name__,
)
def test_one_query_finds_what_django_finds(
    given: Callable[[User], None], django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    person, other = User.objects.create_user("ann"), User.objects.create_user("ben")
    Grant.objects.create(user=other, capability="administer", granted_by="ada")
    other.user_permissions.add(permission("runs.manage_people"))
    given(person)
    with django_assert_num_queries(1):
        found = Backend().get_user(person.pk)
        assert found == person
        allowed = [one for one in access.GRANTING if found.has_perm(one)]
        granted = {(one.capability, one.scope, one.name) for one in access.grants_of(found)}
    afresh = User.objects.get(pk=person.pk)
    assert allowed == [one for one in access.GRANTING if ModelBackend().has_perm(afresh, one)]
    assert granted == {(one.capability, one.scope, one.name) for one in access.grants_of(afresh)}
    assert access.basis(found) == access.basis(afresh)


def test_nobody_is_found_who_may_not_sign_in_or_is_gone() -> None:
    off = User.objects.create_superuser("off", is_active=False)
    gone = User.objects.create_user("gone")
    number = gone.pk
    gone.delete()
    assert Backend().get_user(off.pk) is None
    assert Backend().get_user(number) is None


def test_people_have_another_basis_as_soon_as_anything_about_them_changes() -> None:
    person = User.objects.create_superuser("ann")
    number, seen = person.pk, set()

    def is_new() -> bool:
        found = Backend().get_user(number)
        assert found is not None
        known = access.basis(found) in seen
        seen.add(access.basis(found))
        return not known

    assert is_new() and not is_new()
    User.objects.update(is_superuser=False)
    assert is_new()
    person.groups.add(Group.objects.get(name="operators"))
    assert is_new()
    grant = Grant.objects.create(
        user_id=number, capability="operate", scope="workflow", name="a", granted_by=""
    )
    assert is_new()
    Grant.objects.filter(pk=grant.pk).update(scope="subject")
    assert is_new()
    User.objects.update(username="anna")
    assert is_new()
    person.delete()
    User.objects.create_user("zoe", pk=number)  # the number is given to somebody else
    assert is_new()
