"""Deciding on an approval."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from approvals import services
from approvals.models import Approval, Vote
from approvals.policies import declared
from approvals.waits import ApprovalWait
from runs import clock, codec, lifecycle
from runs import services as run_services
from runs.errors import Invalid, NotAllowed, NotFound, Stale, StateMismatch
from runs.lifecycle import Actor
from runs.models import Event, Operation, Run
from runs.models.operation import OpStatus
from runs.models.run import new_id
from runs.states import Status
from tests import factories
from tests.races import Caller, at_one_instant, run_held, wait_until_blocked

pytestmark = pytest.mark.django_db

WAIT = ApprovalWait()

declared.policy("two", votes=2, exclude_starter=True, time_limit=timedelta(hours=1))
declared.policy("above_ten", when=lambda arguments: arguments["amount"] > 10)
declared.policy(
    "escalates", time_limit=timedelta(hours=1), escalate_to=["support"], escalate_for=timedelta(hours=2)
)
declared.policy(
    "silence_means_yes",
    time_limit=timedelta(hours=1),
    on_expiry="approve",
    sentence="Small, and undone at will.",
)
declared.policy("fails", time_limit=timedelta(hours=1), on_expiry="fail")

STATE = Approval.State


def decide(actor: Actor, approval: Approval, verdict: str = "approve", **changes) -> run_services.Done:
    given: dict[str, Any] = {
        "version": approval.version,
        "digest": approval.digest,
        "reason": "because",
    } | changes
    return services.decide(actor, approval.pk, verdict=verdict, **given)


def expire(run_id) -> None:
    """What the claim does once the time limit has passed."""
    with transaction.atomic():
        run = lifecycle.lock_run(run_id)
        for wait in Operation.objects.select_for_update().filter(run=run, status=OpStatus.OPEN):
            WAIT.expire(run, wait)


def test_an_approval_is_recorded_as_the_answer_of_the_wait_and_wakes_the_run():
    approval = factories.approval()
    done = decide(factories.operator("olga"), approval)
    approval.refresh_from_db()
    wait, run = approval.operation, approval.run
    assert (approval.state, approval.decided_by) == (STATE.APPROVED, "olga")
    assert done.changed and done.sentence == "Book a courier for order 1042: approved."
    assert wait.status == OpStatus.DONE and wait.settled_by == "olga"
    assert codec.decode(wait.result) == {
        "verdict": "approved",
        "version": 1,
        "by": "olga",
        "reason": "because",
        "arguments": {"order": "1042", "amount": Decimal("10.00")},
    }
    run.refresh_from_db()
    assert run.wake_at is not None and run.wake_at <= clock.now()
    event = Event.objects.get(run_id=run.pk, kind="approval_decided")
    assert (event.actor, event.data["digest"], event.data["verdict"]) == ("olga", approval.digest, "approved")


def test_a_rejection_is_recorded_with_its_reason():
    approval = factories.approval()
    decide(factories.operator("olga"), approval, "reject", reason="already refunded")
    approval.refresh_from_db()
    assert approval.state == STATE.REJECTED
    result = codec.decode(approval.operation.result)
    assert (result["verdict"], result["by"], result["reason"]) == ("rejected", "olga", "already refunded")


def test_a_rejection_needs_a_reason_and_a_verdict_is_one_of_two():
    approval = factories.approval()
    with pytest.raises(Invalid, match="why"):
        decide(factories.operator(), approval, "reject", reason="  ")
    with pytest.raises(Invalid, match="perhaps"):
        decide(factories.operator(), approval, "perhaps")
    assert not Vote.objects.exists()


def test_the_run_goes_on_once_enough_different_people_have_approved():
    approval = factories.approval(policy="two")
    first, second = factories.operator("ann"), factories.admin("bob")
    assert "1 more needed" in decide(first, approval).sentence
    assert services.preview_decide(approval).sentence.startswith("Approving lets book_courier run once")
    decide(first, approval)  # twice by one person is one vote
    approval.refresh_from_db()
    assert approval.state == STATE.OPEN
    decide(second, approval)
    approval.refresh_from_db()
    assert (approval.state, approval.decided_by) == (STATE.APPROVED, "ann, bob")


def test_one_rejection_decides_against_any_number_of_approvals():
    approval = factories.approval(policy="two")
    decide(factories.operator(), approval)
    decide(factories.operator(), approval, "reject")
    approval.refresh_from_db()
    assert approval.state == STATE.REJECTED


def test_whoever_started_the_run_does_not_decide_where_the_policy_says_so():
    starter = factories.operator("starter")
    run = factories.run(Status.WAITING, started_by=starter.user, started_by_name="starter")
    with pytest.raises(NotAllowed, match="somebody else"):
        decide(starter, factories.approval(run, policy="two"))


@pytest.mark.parametrize("who", [factories.support, factories.stranger])
def test_a_wrong_role_decides_nothing(who):
    approval = factories.approval()
    with pytest.raises(NotAllowed):
        decide(who(), approval)
    assert not Vote.objects.exists()


def test_the_permission_alone_is_not_enough_without_a_required_group():
    declared.policy("admins_only", groups=["admins"])
    with pytest.raises(NotAllowed, match="admins"):
        decide(factories.operator(), factories.approval(policy="admins_only"))


def test_a_system_decides_nothing():
    with pytest.raises(NotAllowed):
        decide(factories.SYSTEM, factories.approval())


def test_the_requirement_is_frozen_when_the_request_opens():
    declared.policy("changing", groups=["operators"])
    approval = factories.approval(policy="changing")
    declared.policy("changing", groups=["admins"], votes=3)
    decide(factories.operator(), approval)
    approval.refresh_from_db()
    assert approval.state == STATE.APPROVED


def test_a_vote_on_another_version_or_payload_than_the_present_one_is_stale():
    approval = factories.approval()
    with pytest.raises(Stale):
        decide(factories.operator(), approval, version=2)
    with pytest.raises(Stale):
        decide(factories.operator(), approval, digest="0" * 64)
    services.edit(
        factories.operator(), approval.pk, version=1, arguments={"order": "1042", "amount": "5.00"}, reason=""
    )
    with pytest.raises(Stale):
        decide(factories.operator(), approval)
    assert not Vote.objects.exists()


def test_a_double_click_is_answered_like_the_first():
    approval, person = factories.approval(), factories.operator()
    decide(person, approval)
    again = decide(person, approval)
    assert not again.changed and "already approved" in again.sentence
    assert Vote.objects.count() == 1


def test_a_later_decision_is_told_who_was_first():
    approval = factories.approval()
    first = factories.operator("olga")
    decide(first, approval)
    with pytest.raises(StateMismatch, match="already approved by olga"):
        decide(factories.operator(), approval, "reject")
    with pytest.raises(StateMismatch, match="already approved by you"):
        decide(first, approval, "reject")


def test_a_vote_is_not_taken_back_by_the_opposite_one():
    approval, person = factories.approval(policy="two"), factories.operator()
    decide(person, approval)
    with pytest.raises(StateMismatch, match="you had already approved"):
        decide(person, approval, "reject")


def test_a_request_of_a_cancelled_run_is_void():
    approval = factories.approval()
    run_services.cancel(factories.support(), approval.run_id)
    with pytest.raises(StateMismatch, match="void"):
        decide(factories.operator(), approval)


def test_an_unknown_approval_is_said_to_be_unknown():
    with pytest.raises(NotFound):
        services.decide(factories.operator(), new_id(), version=1, digest="", verdict="approve")


# --- time limits ---------------------------------------------------------------------------------------------------------


def test_nobody_deciding_in_time_is_an_answer_that_is_not_yes():
    approval = factories.approval()
    assert approval.operation.expires_at == approval.expires_at
    expire(approval.run_id)
    approval.refresh_from_db()
    assert (approval.state, approval.decided_by) == (STATE.EXPIRED, "clock")
    assert codec.decode(approval.operation.result)["verdict"] == "expired"
    with pytest.raises(StateMismatch, match="expired"):
        decide(factories.operator(), approval)


def test_a_decision_after_the_limit_but_before_the_claim_settles_it_still_counts():
    approval = factories.approval()
    clock.shift(timedelta(hours=25))
    decide(factories.operator(), approval)
    approval.refresh_from_db()
    assert approval.state == STATE.APPROVED


def test_silence_means_yes_only_where_the_policy_says_so():
    approval = factories.approval(policy="silence_means_yes")
    expire(approval.run_id)
    approval.refresh_from_db()
    assert (approval.state, approval.decided_by) == (STATE.APPROVED, "clock")
    assert WAIT.confirm(approval.operation, 1)


def test_silence_can_be_an_error_of_the_wait():
    approval = factories.approval(policy="fails")
    expire(approval.run_id)
    approval.refresh_from_db()
    assert (approval.operation.status, approval.operation.error_type) == (OpStatus.FAILED, "WaitExpired")


def test_the_first_expiry_asks_further_people_where_the_policy_escalates():
    approval = factories.approval(policy="escalates")
    expire(approval.run_id)
    approval.refresh_from_db()
    assert approval.state == STATE.OPEN
    assert approval.operation.status == OpStatus.OPEN
    assert approval.operation.expires_at == approval.expires_at
    assert approval.expires_at is not None and approval.expires_at > clock.now() + timedelta(
        hours=1, minutes=50
    )
    assert "support" in approval.requirement["groups"]
    assert Event.objects.filter(run_id=approval.run_id, kind="approval_escalated").exists()
    expire(approval.run_id)
    approval.refresh_from_db()
    assert approval.state == STATE.EXPIRED


# --- the run takes the decision over -----------------------------------------------------------------------------------


def test_the_intent_confirms_exactly_the_approved_version_once():
    approval = factories.approval()
    assert not WAIT.confirm(approval.operation, 1)
    decide(factories.operator(), approval)
    assert not WAIT.confirm(approval.operation, 2)
    assert WAIT.confirm(approval.operation, 1)
    approval.refresh_from_db()
    assert approval.consumed_at is not None
    assert WAIT.confirm(approval.operation, 1)  # the same intent again, its COMMIT's answer lost


def test_a_decision_written_into_the_database_by_hand_does_not_pass():
    approval = factories.approval()
    Approval.objects.filter(pk=approval.pk).update(
        state=STATE.APPROVED, decided_at=clock.now(), decided_by="olga"
    )
    result = codec.encode(
        {"verdict": "approved", "version": 1, "arguments": {"order": "1042", "amount": Decimal("10.00")}}
    )
    Operation.objects.filter(pk=approval.operation_id).update(
        status=OpStatus.DONE, result=result, finished_at=clock.now()
    )
    assert not WAIT.confirm(approval.operation, 1)


def test_arguments_changed_after_the_vote_do_not_pass():
    approval = factories.approval()
    decide(factories.operator(), approval)
    result: Any = Operation.objects.get(pk=approval.operation_id).result
    result["arguments"]["order"] = "9999"
    Operation.objects.filter(pk=approval.operation_id).update(result=result)
    assert not WAIT.confirm(approval.operation, 1)


def test_a_policy_may_ask_only_for_some_arguments():
    assert not WAIT.required("above_ten", {"amount": 10})
    assert WAIT.required("above_ten", {"amount": 11})
    assert WAIT.required("never declared", {})


# --- races (issue test 3) --------------------------------------------------------------------------------------------------


def orders() -> list[tuple[str, ...]]:
    four = ("approve", "reject", "expire", "cancel")
    return [four[turn:] + four[:turn] for turn in range(4)] + [("reject", "approve", "cancel", "expire")]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("order", orders())
def test_approve_reject_expiry_and_cancel_at_one_instant_have_one_winner(order):
    approval = factories.approval()
    run_id = approval.run_id
    approver, rejecter, canceller = (
        factories.operator("ann"),
        factories.operator("bob"),
        factories.support("sam"),
    )
    calls = {
        "approve": lambda: decide(approver, approval),
        "reject": lambda: decide(rejecter, approval, "reject"),
        "expire": lambda: expire(run_id),
        "cancel": lambda: run_services.cancel(canceller, run_id),
    }
    callers = dict(zip(order, at_one_instant(run_id, *[calls[name] for name in order]), strict=True))
    approval.refresh_from_db()
    run = Run.objects.get(pk=run_id)

    assert callers["cancel"].error is None and callers["cancel"].result.changed
    assert run.status == Status.CANCELLED
    assert callers["expire"].error is None
    deciders = [name for name in ("approve", "reject") if callers[name].error is None]
    outcome = {"approve": STATE.APPROVED, "reject": STATE.REJECTED}
    if deciders:
        (winner,) = deciders
        assert approval.state == outcome[winner]
    else:
        assert approval.state in (STATE.EXPIRED, STATE.VOID)
    told = {
        STATE.APPROVED: "approved by ann",
        STATE.REJECTED: "rejected by bob",
        STATE.EXPIRED: "expired",
        STATE.VOID: "void",
    }
    for name in {"approve", "reject"} - set(deciders):
        assert isinstance(callers[name].error, StateMismatch)
        assert told[STATE(approval.state)] in str(callers[name].error)
    assert Vote.objects.count() == len(deciders)


@pytest.mark.django_db(transaction=True)
def test_of_two_last_votes_at_one_instant_both_are_kept_and_one_decides():
    approval = factories.approval(policy="two")
    people = [factories.operator() for _ in range(3)]
    callers = at_one_instant(approval.run_id, *[lambda p=person: decide(p, approval) for person in people])
    assert [type(caller.error) for caller in callers] == [type(None), type(None), StateMismatch]
    assert Vote.objects.count() == 2
    assert Event.objects.filter(kind="approval_decided").count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_double_click_at_one_instant_is_one_vote():
    approval, person = factories.approval(), factories.operator()
    callers = at_one_instant(approval.run_id, *[lambda: decide(person, approval)] * 2)
    assert [caller.error for caller in callers if caller.error] == []
    assert sorted(caller.result.changed for caller in callers) == [False, True]
    assert Vote.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_whoever_leaves_the_group_while_their_vote_waits_for_the_run_has_no_vote():
    approval, person = factories.approval(), factories.operator()
    with run_held(approval.run_id):
        vote = Caller(lambda: decide(person, approval))
        wait_until_blocked(1)
        Caller(lambda: User.objects.get(username=person.name).groups.clear()).join()
    assert isinstance(vote.join().error, NotAllowed)
    assert not Vote.objects.exists()
