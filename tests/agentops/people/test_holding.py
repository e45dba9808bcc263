"""What is told of somebody is what `runs.access` lets them do, and the condition finds just those people."""

import itertools

import pytest
from django.contrib.auth.models import Group, Permission, User

from agentops.people import holding, services
from runs import access
from runs.models import Grant, Run
from tests import factories

pytestmark = pytest.mark.django_db

PERMISSIONS = sorted({permission for one in access.CAPABILITIES.values() for permission in one.permissions})


def everybody() -> list[User]:
    """People who hold things in every way that there is."""
    found = [factories.user("", group) for group in ("operators", "support", "admins")]
    found += [
        factories.user(),
        factories.user(is_superuser=True),
        factories.user("", "admins", is_active=False),
    ]
    one = factories.user()
    one.user_permissions.add(Permission.objects.get(codename="retry_run"))
    found.append(one)
    scopes = (("everything", ""), ("workflow", "parcel"), ("workflow", "refund"), ("subject", "order "))
    for capability, (scope, name) in itertools.product(access.CAPABILITIES, scopes):
        to, member = factories.user(), factories.user()
        group = Group.objects.create(name=f"{capability} {scope} {name}")
        member.groups.add(group)
        for whom in ({"user": to}, {"group": group}):
            Grant.objects.create(capability=capability, scope=scope, name=name, granted_by="Ada", **whom)
        found += [to, member]
    return found


def fresh(person: User) -> User:
    return User.objects.get(pk=person.pk)


def test_the_condition_finds_those_who_may_and_no_others():
    people = everybody()
    runs = {"": None, "parcel": Run(workflow="parcel", subject="order 7")}
    for workflow, run in runs.items():
        may = {
            permission: {person.pk for person in people if access.may(fresh(person), permission, run)}
            for permission in (
                "runs.view_run",
                "runs.retry_run",
                "runs.manage_people",
                "approvals.handle_item",
            )
        }
        for permission, wanted in may.items():
            found = User.objects.filter(holding.people_with([permission], workflow))
            assert set(found.values_list("pk", flat=True)) == wanted, (permission, workflow)


def test_what_is_told_is_what_they_may():
    people = [person for person in everybody() if person.is_active]
    held = holding.of_people(people)
    places = (Run(workflow="parcel"), Run(workflow="refund"), Run(subject="order 7"), Run(workflow="other"))
    for person in people:
        user = fresh(person)
        for name in access.CAPABILITIES:
            told = held[person.pk].of(name)
            for permission in holding.telling(name):
                assert access.everywhere(user, permission) == any(
                    part.everywhere and (not part.some or permission in part.some) for part in told.parts
                ), (person, permission)
                for run in places:
                    inside = any(
                        (not part.some or permission in part.some)
                        and (part.everywhere or permission not in access.WHOLE)
                        and access.reaches(Grant(scope=part.scope, name=part.name), run)
                        for part in told.parts
                    )
                    assert access.may(user, permission, run) == inside, (person, permission, run.workflow)


def test_the_version_of_what_was_read_is_the_one_that_a_verb_asks_for():
    people, groups = everybody(), list(Group.objects.all())
    of_people, of_groups = holding.of_both(people, groups)
    for person in people:
        assert services.version(person, of_people[person.pk]) == services.version(fresh(person))
    for group in groups:
        assert services.version(group, of_groups[group.pk]) == services.version(group)


def test_every_permission_has_words():
    assert set(PERMISSIONS) == set(holding.WORDS)


def test_each_capability_is_told_by_permissions_of_its_own():
    told = [holding.telling(name) for name in access.CAPABILITIES]
    assert all(told)
    assert len({permission for one in told for permission in one}) == sum(map(len, told))


def test_people_cost_as_many_queries_as_one(django_assert_num_queries):
    people = [factories.user("", "operators") for _ in range(5)]
    with django_assert_num_queries(3):
        holding.of_people(people)
    with django_assert_num_queries(3):
        holding.of_people(people[:1])
