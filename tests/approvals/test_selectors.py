"""What pages read about approvals."""

from datetime import timedelta
from typing import cast

import pytest
from django.contrib.auth.models import User

from approvals import selectors, services
from approvals.models import Approval
from approvals.policies import effective
from runs import clock
from runs.lifecycle import Actor
from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db

effective.policy("four_eyes", votes=2, exclude_starter=True)
effective.policy("for_admins", groups=["admins"])


def inbox(actor: Actor) -> list[Approval]:
    return list(selectors.inbox(cast(User, actor.user)))


def test_the_inbox_has_the_oldest_deadline_first_and_those_without_one_last():
    late, never, soon = factories.approval(), factories.approval(), factories.approval()
    Approval.objects.filter(pk=soon.pk).update(expires_at=clock.now() + timedelta(minutes=1))
    Approval.objects.filter(pk=never.pk).update(expires_at=None)
    assert inbox(factories.operator()) == [soon, late, never]


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
    assert selectors.inbox_count(cast(User, factories.operator().user)) == 0


def test_the_inbox_takes_one_query_for_its_rows(django_assert_max_num_queries):
    for _ in range(5):
        factories.approval()
    person = factories.operator()
    with django_assert_max_num_queries(5):
        assert [approval.run.subject for approval in inbox(person)] == ["order 1042"] * 5
    assert selectors.inbox_count(cast(User, person.user), limit=3) == 4


def test_an_approval_comes_with_its_versions_votes_run_and_operation(django_assert_max_num_queries):
    approval = factories.approval(policy="four_eyes")
    services.decide(
        factories.operator("olga"), approval.pk, version=1, digest=approval.digest, verdict="approve"
    )
    with django_assert_max_num_queries(3):
        found = selectors.one(approval.pk)
        assert [version.version for version in found.versions.all()] == [1]
        assert [vote.voter_name for vote in found.votes.all()] == ["olga"]
        assert (found.run.subject, found.operation.name) == ("order 1042", "book_courier")
    assert selectors.of_run(approval.run_id) == [approval]


def test_whoever_may_not_decide_is_told_why():
    approval = factories.approval(policy="for_admins")
    assert selectors.why_not_decide(cast(User, factories.admin().user), approval) == ""
    assert "admins" in selectors.why_not_decide(cast(User, factories.operator().user), approval)
    assert "permission" in selectors.why_not_decide(cast(User, factories.support().user), approval)
