"""Editing the payload of an approval."""

from datetime import timedelta
from decimal import Decimal

import pytest

from approvals import services
from approvals.models import Approval, ApprovalVersion, Vote
from approvals.waits import ApprovalWait
from runs import clock, codec
from runs.errors import Invalid, NotAllowed, Stale, StateMismatch
from runs.lifecycle import Actor
from runs.models import Event
from runs.models.operation import OpStatus
from runs.states import Status
from tests import factories
from tests.races import at_one_instant

pytestmark = pytest.mark.django_db

WAIT = ApprovalWait()

CHEAPER = {"order": "1042", "amount": "5.00"}


def edit(actor: Actor, approval: Approval, arguments=CHEAPER, version: int | None = None):
    return services.edit(
        actor,
        approval.pk,
        version=approval.version if version is None else version,
        arguments=arguments,
        reason="less",
    )


def approve(approval: Approval) -> None:
    approval.refresh_from_db()
    services.decide(
        factories.operator(), approval.pk, version=approval.version, digest=approval.digest, verdict="approve"
    )
    approval.refresh_from_db()


def test_an_edit_makes_a_new_version_and_keeps_the_old_one():
    approval = factories.approval()
    edit(factories.operator("olga"), approval)
    first = approval.digest
    approval.refresh_from_db()
    assert approval.version == 2 and approval.digest != first
    assert codec.decode(approval.payload) == {"order": "1042", "amount": Decimal("5.00")}
    assert list(ApprovalVersion.objects.order_by("version").values_list("version", "by")) == [
        (1, "agent"),
        (2, "olga"),
    ]
    event = Event.objects.get(run_id=approval.run_id, kind="approval_edited")
    assert (event.actor, event.reason, event.data["version"]) == ("olga", "less", 2)


def test_what_is_executed_is_what_was_edited_and_approved():
    approval = factories.approval()
    edit(factories.operator(), approval)
    approve(approval)
    result = codec.decode(approval.operation.result)
    assert (result["version"], result["arguments"]["amount"]) == (2, Decimal("5.00"))
    assert WAIT.confirm(approval.operation, 2)


def test_earlier_votes_are_void():
    from approvals.policies import declared

    declared.policy("pair", votes=2)
    approval = factories.approval(policy="pair")
    approve(approval)
    assert "1 vote on version 1 becomes void" in services.preview_edit(approval).sentence
    edit(factories.operator(), approval)
    approve(approval)
    assert approval.state == Approval.State.OPEN
    assert Vote.objects.filter(version=1).count() == 1


def test_an_approved_request_is_reopened_while_the_run_has_not_taken_it_over():
    approval = factories.approval()
    approve(approval)
    edit(factories.operator(), approval)
    approval.refresh_from_db()
    assert approval.state == Approval.State.OPEN
    assert (approval.operation.status, approval.operation.result) == (OpStatus.OPEN, None)
    assert not WAIT.confirm(approval.operation, 1)


def test_a_reopened_request_whose_limit_has_passed_gets_a_new_one():
    approval = factories.approval()
    approve(approval)
    clock.shift(timedelta(hours=25))
    edit(factories.operator(), approval)
    approval.refresh_from_db()
    assert approval.expires_at is not None and approval.expires_at > clock.now()
    assert approval.operation.expires_at == approval.expires_at


def test_after_the_intent_nothing_can_be_edited():
    approval = factories.approval()
    approve(approval)
    WAIT.confirm(approval.operation, 1)
    with pytest.raises(StateMismatch, match="taken that over"):
        edit(factories.operator(), approval)


def test_a_question_that_was_answered_and_claimed_cannot_be_edited():
    approval = factories.approval(
        name="which colour",
        arguments={"colour": "red"},
        schema={"properties": {"colour": {"enum": ["red", "blue"]}}},
    )
    approve(approval)
    type(approval.run).objects.filter(pk=approval.run_id).update(
        status=Status.RUNNING, worker_id=factories.worker().pk, wake_at=clock.now(), sort_at=None
    )
    with pytest.raises(StateMismatch):
        edit(factories.operator(), approval, {"colour": "blue"})


def test_a_rejected_request_cannot_be_edited():
    approval = factories.approval()
    services.decide(
        factories.operator("olga"),
        approval.pk,
        version=1,
        digest=approval.digest,
        verdict="reject",
        reason="no",
    )
    with pytest.raises(StateMismatch, match="rejected by olga"):
        edit(factories.operator(), approval)


@pytest.mark.parametrize(
    "arguments", [{"order": "1042"}, {**CHEAPER, "amount": "much"}, {**CHEAPER, "to": "me"}, []]
)
def test_arguments_that_the_tool_does_not_take_are_refused(arguments):
    with pytest.raises(Invalid, match="does not fit"):
        edit(factories.operator(), factories.approval(), arguments)


def test_a_question_is_edited_within_its_schema():
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}}
    approval = factories.approval(name="which colour", arguments={"colour": "red"}, schema=schema)
    with pytest.raises(Invalid, match=r"\$\.colour"):
        edit(factories.operator(), approval, {"colour": "green"})
    edit(factories.operator(), approval, {"colour": "blue"})
    approval.refresh_from_db()
    assert approval.payload == {"colour": "blue"}


def test_an_edit_that_changes_nothing_is_refused():
    with pytest.raises(Invalid, match="changes nothing"):
        edit(factories.operator(), factories.approval(), {"order": "1042", "amount": "10.00"})


@pytest.mark.parametrize("who", [factories.support, factories.stranger])
def test_a_wrong_role_edits_nothing(who):
    approval = factories.approval()
    with pytest.raises(NotAllowed):
        edit(who(), approval)
    assert ApprovalVersion.objects.count() == 1


def test_an_edit_of_an_older_version_is_stale():
    approval = factories.approval()
    edit(factories.operator(), approval)
    with pytest.raises(Stale):
        edit(factories.operator(), approval, {"order": "1042", "amount": "1.00"}, version=1)


@pytest.mark.django_db(transaction=True)
def test_a_vote_and_an_edit_at_one_instant_never_approve_what_nobody_saw():
    approval = factories.approval()
    voter, editor = factories.operator(), factories.operator()

    def vote():
        return services.decide(voter, approval.pk, version=1, digest=approval.digest, verdict="approve")

    edited, voted = at_one_instant(approval.run_id, lambda: edit(editor, approval), vote)
    approval.refresh_from_db()
    assert edited.error is None and isinstance(voted.error, Stale)
    assert approval.state == Approval.State.OPEN and not Vote.objects.exists()
