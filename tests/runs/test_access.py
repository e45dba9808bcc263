"""Who may do what: Django's permissions for everything, grants for a part; each the same for one run and for a list."""

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, Permission, User
from django.db import connection, transaction

from agentops.benchmark.fill import fill
from runs import access
from runs.errors import NotAllowed
from runs.lifecycle import Actor
from runs.models import Grant, Run
from runs.services import cancel
from runs.services.verb import permit
from tests import factories

pytestmark = pytest.mark.django_db

SUBJECTS = ("order 1042", "Order 1042", "order", "reorder 7", "", "100% order ", "order_1", "orderx1")


def person(*grants: tuple[str, str, str]) -> User:
    """Somebody in no group who has these grants (capability, scope, name)."""
    user = factories.user()
    for capability, scope, name in grants:
        Grant.objects.create(user=user, capability=capability, scope=scope, name=name, granted_by="Ada")
    return user


def member(group: str) -> User:
    user = factories.user()
    user.groups.add(Group.objects.get(name=group))
    return user


# --- permissions and capabilities ------------------------------------------------------------------------------------------


def test_every_named_permission_is_in_a_capability():
    named = {
        f"{model._meta.app_label}.{code}"
        for label in ("runs", "approvals")
        for model in apps.get_app_config(label).get_models()
        for code, _ in model._meta.permissions
    }
    assert named
    assert named <= set(access.GRANTING)


def test_every_permission_of_a_capability_exists():
    there = {
        f"{label}.{code}"
        for label, code in Permission.objects.values_list("content_type__app_label", "codename")
    }
    assert {permission for one in access.CAPABILITIES.values() for permission in one.permissions} <= there


def test_every_permission_of_a_group_that_comes_with_an_installation_is_in_a_capability():
    given = Permission.objects.filter(group__name__in=["operators", "support", "admins"])
    names = {f"{one.content_type.app_label}.{one.codename}" for one in given.select_related("content_type")}
    assert names
    assert names <= set(access.GRANTING)


# --- for everything --------------------------------------------------------------------------------------------------------


def test_a_group_of_django_reaches_every_run():
    user = member("operators")
    assert access.may(user, "runs.view_run", factories.run())
    assert access.everywhere(user, "runs.view_run")
    assert access.condition(user) is None


def test_a_grant_for_everything_is_as_good_as_a_permission():
    user = person(("operate", "everything", ""))
    assert access.everywhere(user, "runs.cancel_run")
    assert access.everywhere(user, "runs.view_run"), "operating includes viewing"
    assert not access.everywhere(user, "runs.view_payload")


def test_nobody_without_permission_or_grant_sees_a_run():
    factories.run()
    assert not access.may(person(), "runs.view_run")
    assert not access.visible(person(), Run.objects.all()).exists()


def test_somebody_who_is_switched_off_may_nothing_whatever_they_were_granted():
    user = person(("operate", "everything", ""))
    user.is_active = False
    user.save()
    again = User.objects.get(pk=user.pk)
    assert not access.may(again, "runs.view_run", factories.run())
    assert not access.visible(again, Run.objects.all()).exists()


# --- for a part ------------------------------------------------------------------------------------------------------------


def test_a_grant_for_a_workflow_reaches_its_runs_only():
    mine, other = factories.run(workflow="parcel"), factories.run(workflow="refund")
    user = person(("operate", "workflow", "parcel"))
    assert access.may(user, "runs.cancel_run", mine)
    assert not access.may(user, "runs.cancel_run", other)
    assert access.may(user, "runs.cancel_run"), "for some part"
    assert not access.everywhere(user, "runs.cancel_run")
    assert set(access.visible(user, Run.objects.all())) == {mine}


@pytest.mark.parametrize("begins", ["order ", "Order", "order_", "100%", "order"])
def test_a_list_and_a_single_run_agree_on_what_a_subject_begins_with(begins: str):
    runs = [factories.run(subject=subject) for subject in SUBJECTS]
    user = person(("view", "subject", begins))
    one_by_one = {run.pk for run in runs if access.may(user, "runs.view_run", run)}
    assert one_by_one
    assert one_by_one < {run.pk for run in runs}
    assert set(access.visible(user, Run.objects.all()).values_list("pk", flat=True)) == one_by_one


def test_a_grant_of_a_group_is_its_members():
    run = factories.run(workflow="parcel")
    user, group = factories.user(), Group.objects.create(name="parcels")
    Grant.objects.create(
        group=group, capability="payloads", scope="workflow", name="parcel", granted_by="Ada"
    )
    assert not access.may_see_payloads(user, run)
    user.groups.add(group)
    assert access.may_see_payloads(User.objects.get(pk=user.pk), run)


def test_what_concerns_no_single_run_is_in_no_grant_for_a_part():
    user = person(("administer", "workflow", "parcel"))
    assert access.may(user, "runs.change_limits", Run(workflow="parcel"))
    for permission in access.WHOLE:
        assert not access.may(user, permission), permission


def test_grants_cost_one_query_and_somebody_with_the_permission_none(django_assert_num_queries):
    everywhere, part = member("operators"), person(("view", "workflow", "parcel"))
    everywhere.has_perm("runs.view_run")  # Django reads them once for each request
    part.has_perm("runs.view_run")
    with django_assert_num_queries(0):
        access.condition(everywhere)
    with django_assert_num_queries(1):
        access.condition(part)
        access.may(part, "runs.view_run")


@pytest.mark.django_db(transaction=True)
def test_a_narrowed_list_finds_its_runs_by_index():
    fill(500)  # of an empty table every index costs the same
    user = person(("view", "workflow", "parcel"), ("view", "subject", "order 77"))
    found = access.visible(user, Run.objects.order_by("-id"))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("SET LOCAL enable_sort = on")
        cursor.execute("SET LOCAL enable_indexscan = off")
        plan = found.explain()
    assert "run_by_workflow" in plan
    assert "run_subject_begins" in plan
    assert "Seq Scan" not in plan


# --- in a verb -------------------------------------------------------------------------------------------------------------


def test_a_verb_obeys_the_scope_of_a_grant():
    mine, other = factories.run(workflow="parcel"), factories.run(workflow="refund")
    actor = Actor.of(person(("operate", "workflow", "parcel")))
    assert cancel(actor, mine.pk).changed
    with pytest.raises(NotAllowed, match="cancel run” here"):
        cancel(actor, other.pk)
    other.refresh_from_db()
    assert other.cancel_requested_at is None


def test_a_verb_that_names_no_run_needs_the_permission_for_everything():
    actor = Actor.of(person(("administer", "workflow", "parcel")))
    with pytest.raises(NotAllowed):
        permit(actor, "runs.change_limits")
    permit(actor, "runs.change_limits", run=Run(workflow="parcel"))
