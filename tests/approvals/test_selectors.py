"""What pages read about approvals."""

from typing import cast

import pytest
from django.contrib.auth.models import User

from approvals import selectors, services
from approvals.models import Approval
from approvals.policies import declared
from runs.lifecycle import Actor
from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db

declared.policy("four_eyes", votes=2, exclude_starter=True)
declared.policy("for_admins", groups=["admins"])


def inbox(actor: Actor) -> list[Approval]:
    return list(selectors.mine(cast(User, actor.user)).order_by("id"))


def test_the_inbox_has_only_what_this_person_may_decide():
    starter = factories.operator("starter")
    own = factories.run(Status.WAITING, started_by=starter.user, started_by_name="starter")
    four_eyes, for_admins = (
        factories.approval(own, policy="four_eyes"),
        factories.approval(policy="for_admins"),
    )
    assert inbox(starter) == []
    assert inbox(factories.operator()) == [four_eyes]
    assert inbox(factories.admin()) == [four_eyes, for_admins]
    assert inbox(factories.support()) == []
    assert inbox(factories.stranger()) == []


def test_what_one_has_voted_on_leaves_the_inbox_until_it_is_edited():
    approval = factories.approval(policy="four_eyes")
    person = factories.operator()
    services.decide(person, approval.pk, version=1, digest=approval.digest, verdict="approve")
    assert inbox(person) == []
    arguments = {"order": "1042", "amount": "5.00"}
    services.edit(factories.operator(), approval.pk, version=1, arguments=arguments)
    assert inbox(person) == [approval]


def test_decided_requests_are_not_in_the_inbox():
    approval = factories.approval()
    services.decide(factories.operator(), approval.pk, version=1, digest=approval.digest, verdict="approve")
    assert inbox(factories.operator()) == []


def test_an_approval_comes_with_its_versions_run_and_operation(django_assert_max_num_queries):
    approval = factories.approval()
    with django_assert_max_num_queries(2):
        found = selectors.one(approval.pk)
        assert [version.version for version in found.versions.all()] == [1]
        assert (found.run.subject, found.operation.name) == ("order 1042", "book_courier")


def test_whoever_may_not_decide_is_told_why():
    approval = factories.approval(policy="for_admins")
    assert selectors.why_not_decide(cast(User, factories.admin().user), approval) == ""
    assert "admins" in selectors.why_not_decide(cast(User, factories.operator().user), approval)
    assert "permission" in selectors.why_not_decide(cast(User, factories.support().user), approval)
