"""Verbs that others approve first: a policy guards them, and nobody gets past it alone."""

from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction

from approvals.models import Request, RequestVote
from approvals.policies import verbs
from approvals.requests import four_eyes
from runs import clock, codec, services
from runs.errors import Asked, Invalid, NotAllowed, NotFound, NotFresh, Stale, StateMismatch
from runs.lifecycle import Actor
from runs.models import AuditEvent, Event, Policy, Run
from runs.models.run import new_id
from runs.services import guards, limits
from runs.states import Status
from tests import factories
from tests.races import Caller, run_held, wait_until_blocked

pytestmark = pytest.mark.django_db

STATE = Request.State
VERBS = {"force_resume", "answer_doubt", "change_limits"}


def guard(verb: str, **rule: Any) -> None:
    verbs.set_policy(
        factories.admin(), "verb", verb, rules=[{"groups": ["admins", "support"], **rule}], reason="four eyes"
    )


def user_of(actor: Actor) -> User:
    return cast(User, actor.user)


def ask(actor: Actor, run: Run, **more: Any) -> Request:
    """Force a run on as a page would; the request that this opens."""
    run.refresh_from_db()
    with pytest.raises(Asked):
        services.force_resume(actor, run.pk, seen_version=run.seen_version, reason="stuck", **more)
    return Request.objects.get(state=STATE.OPEN)


def vote(actor: Actor, request: Request, verdict: str = "approve", **more: Any) -> four_eyes.Outcome:
    given = {"digest": request.digest, "reason": "seen"} | more
    return four_eyes.vote(actor, request.pk, verdict=verdict, **given)


def waiting() -> Run:
    return factories.run(Status.WAITING)


def is_due(run: Run) -> bool:
    run.refresh_from_db()
    return run.wake_at is not None and run.wake_at <= clock.now()


# --- asking --------------------------------------------------------------------------------------------------------------


def test_a_verb_that_no_policy_guards_is_done_at_once():
    run = waiting()
    services.force_resume(factories.support(), run.pk)
    assert is_due(run) and not Request.objects.exists()


def test_a_guarded_verb_does_nothing_until_another_person_approves():
    guard("force_resume")
    run, sam, ada = waiting(), factories.support("sam"), factories.admin("ada")
    request = ask(sam, run)
    assert not is_due(run)
    assert (request.requester_name, request.votes, request.reason) == ("sam", 1, "stuck")
    done = vote(ada, request)
    assert "carried out" in done.sentence and is_due(run)
    request.refresh_from_db()
    assert (request.state, request.closed_by) == (STATE.DONE, "ada")
    event = Event.objects.get(run_id=run.pk, kind="force_resumed")
    assert (event.actor, event.reason) == ("sam", "stuck")
    told = list(Event.objects.filter(run_id=run.pk, kind__startswith="request").values_list("kind", "actor"))
    assert told == [("request_opened", "sam"), ("request_done", "ada")]
    kinds = AuditEvent.objects.filter(target=f"request {request.pk}").order_by("id")
    assert list(kinds.values_list("kind", flat=True)) == ["request_opened", "request_vote", "request_done"]


def test_every_verb_on_limits_goes_through_the_guard():
    public = {
        name
        for name, found in vars(limits).items()
        if callable(found)
        and getattr(found, "__module__", "") == limits.__name__
        and not name.startswith("_")
        and "actor" in getattr(found, "__annotations__", {})
    }
    assert public - {"permit_limits"} <= guards.verbs()["change_limits"]
    assert set(guards.verbs()) == VERBS == set(four_eyes.VERBS)


def test_limits_are_changed_by_two_people_and_pausing_alone_if_the_rule_says_so():
    guard("change_limits", when='action != "pause"', groups=["admins"])
    ada, bea = factories.admin("ada"), factories.admin("bea")
    services.pause_workflow(ada, "parcel", reason="provider is down")
    with pytest.raises(Asked):
        services.set_limits(ada, "tool", "book_courier", seen_revision=0, max_attempts=9, reason="noon")
    assert not Policy.objects.filter(scope="tool").exists()
    request = Request.objects.get()
    assert "max attempts 9" in request.title
    vote(bea, request)
    policy = Policy.objects.get(scope="tool")
    assert (policy.max_attempts, policy.changed_by) == (9, "ada")


def test_an_answer_in_doubt_is_given_by_two_people():
    guard("answer_doubt", when='tool == "book_courier" and happened and arguments.amount > 100')
    sam, ada = factories.support("sam"), factories.admin("ada")
    small = factories.doubt(request={"amount": 50})
    services.answer_doubt(sam, small.pk, happened=True, reference="c-1")
    large = factories.doubt(request={"amount": 500})
    with pytest.raises(Asked):
        services.answer_doubt(sam, large.pk, happened=True, reference="c-2", reason="it is in their list")
    large.refresh_from_db()
    assert large.status == "pending"
    vote(ada, Request.objects.get())
    large.refresh_from_db()
    assert (large.status, large.settled_by, large.provider_ref) == ("done", "sam", "c-2")


def test_a_rule_that_cannot_be_decided_asks_others():
    guard("force_resume", when="attention > 5")
    assert "cannot compare" in ask(factories.support(), waiting()).requirement["problem"]


@pytest.mark.parametrize("who", [factories.operator, factories.stranger])
def test_a_wrong_role_asks_for_nothing(who):
    guard("force_resume")
    run = waiting()
    with pytest.raises(NotAllowed):
        services.force_resume(who(), run.pk)
    with pytest.raises(NotAllowed):
        services.force_resume(factories.SYSTEM, run.pk)
    assert not Request.objects.exists()


def test_what_the_verb_would_refuse_is_not_asked_for():
    guard("force_resume")
    sam, run = factories.support(), waiting()
    with pytest.raises(Stale):
        services.force_resume(sam, run.pk, seen_version=run.seen_version + 1)
    with pytest.raises(StateMismatch, match="nothing to force on"):
        services.force_resume(sam, factories.run(Status.COMPLETED).pk)
    with pytest.raises(NotFound):
        services.force_resume(sam, new_id())
    assert not Request.objects.exists()


def test_a_form_sent_twice_is_one_request():
    guard("force_resume")
    run, sam = waiting(), factories.support("sam")
    seen = run.seen_version
    for _ in range(2):
        with pytest.raises(Asked):
            services.force_resume(sam, run.pk, seen_version=seen, reason="stuck")
    assert Request.objects.count() == 1


def test_what_somebody_has_asked_for_is_not_asked_for_again_by_others():
    guard("force_resume")
    run = waiting()
    ask(factories.support("sam"), run)
    run.refresh_from_db()
    with pytest.raises(StateMismatch, match="sam has already asked"):
        services.force_resume(factories.admin(), run.pk, seen_version=run.seen_version)
    assert Request.objects.count() == 1


# --- deciding ------------------------------------------------------------------------------------------------------------


def test_nobody_approves_their_own_request():
    guard("force_resume", exclude_starter=False)
    run, ada = waiting(), factories.admin("ada")
    request = ask(ada, run)
    with pytest.raises(NotAllowed, match="you asked for this"):
        vote(ada, request)
    assert not list(four_eyes.open_for(user_of(ada))) and list(four_eyes.open_others(user_of(ada))) == [
        request
    ]
    with pytest.raises(IntegrityError, match="request_vote_by_another"), transaction.atomic():
        RequestVote.objects.create(
            request=request,
            requester_id=user_of(ada).pk,
            digest="",
            verdict="approve",
            voter_id=user_of(ada).pk,
            voter_name="ada",
        )
    with pytest.raises(IntegrityError, match="request_vote_of_request"), transaction.atomic():
        other = user_of(factories.admin()).pk
        RequestVote.objects.create(
            request=request,
            requester_id=other,
            digest="",
            verdict="approve",
            voter_id=user_of(ada).pk,
            voter_name="ada",
        )
        connection.check_constraints()


def test_whoever_started_the_run_does_not_decide_either():
    guard("force_resume")
    starter = factories.admin("starter")
    run = factories.run(Status.WAITING, started_by=starter.user, started_by_name="starter")
    with pytest.raises(NotAllowed, match="you started this run"):
        vote(starter, ask(factories.support(), run))


@pytest.mark.parametrize("who", [factories.operator, factories.support, factories.stranger])
def test_a_wrong_role_decides_no_request(who):
    guard("force_resume", groups=["admins"])
    request = ask(factories.support("sam"), waiting())
    with pytest.raises(NotAllowed):
        vote(who(), request)
    assert not RequestVote.objects.exists()


def test_as_many_different_people_as_the_policy_says_approve_it():
    guard("force_resume", votes=2, groups=["admins", "operators"])
    run, ann, bob = waiting(), factories.operator("ann"), factories.admin("bob")
    request = ask(factories.support(), run)
    assert "1 more needed" in vote(ann, request).sentence
    assert not vote(ann, request).changed  # a double click
    assert not is_due(run)
    vote(bob, request)
    assert is_due(run)
    request.refresh_from_db()
    assert request.closed_by == "ann, bob"


def test_one_rejection_ends_it_and_needs_a_reason():
    guard("force_resume", votes=2, groups=["admins"])
    run, ann = waiting(), factories.admin("ann")
    request = ask(factories.support(), run)
    with pytest.raises(Invalid, match="why"):
        vote(ann, request, "reject", reason=" ")
    vote(ann, request, "reject", reason="it waits for a reason")
    with pytest.raises(StateMismatch, match="rejected by ann"):
        vote(factories.admin(), request)
    assert not is_due(run)


def test_what_has_changed_since_it_was_asked_for_is_not_done():
    guard("force_resume")
    run, ada = waiting(), factories.admin("ada")
    request = ask(factories.support(), run)
    services.cancel(factories.support(), run.pk)
    assert "nothing was done" in vote(ada, request).sentence
    request.refresh_from_db()
    assert (request.state, request.in_favour) == (STATE.REFUSED, 1)
    assert Run.objects.get(pk=run.pk).status == Status.CANCELLED
    assert RequestVote.objects.count() == 1
    with pytest.raises(StateMismatch, match="over"):
        vote(factories.admin(), request)


def test_limits_that_changed_since_are_left_alone():
    guard("change_limits", groups=["admins"], when="max_attempts == 9")
    ada, bea = factories.admin("ada"), factories.admin("bea")
    with pytest.raises(Asked):
        services.set_limits(ada, "tool", "book_courier", max_attempts=9)
    services.set_limits(bea, "tool", "book_courier", max_attempts=3)
    assert "nothing was done" in vote(bea, Request.objects.get()).sentence
    assert Policy.objects.get().max_attempts == 3


def test_whoever_lost_the_permission_meanwhile_gets_nothing_done():
    guard("force_resume")
    run, sam = waiting(), factories.support("sam")
    request = ask(sam, run)
    user_of(sam).groups.clear()
    assert "does not have the permission" in vote(factories.admin(), request).sentence
    assert not is_due(run)


def test_a_request_is_decided_as_it_was_shown():
    guard("force_resume")
    request = ask(factories.support(), waiting())
    with pytest.raises(Stale):
        vote(factories.admin(), request, digest="0" * 64)
    other = waiting()
    Request.objects.filter(pk=request.pk).update(
        arguments=codec.encode({"run_id": other.pk, "reason": "stuck"})
    )
    assert "does not allow this" in vote(factories.admin(), request).sentence
    assert not is_due(other)


def test_nobody_carries_a_verb_out_in_the_name_of_a_request_that_lacks_votes():
    guard("force_resume")
    run, sam = waiting(), factories.support("sam")
    request = ask(sam, run)
    forged = Actor("sam", sam.user, request.pk)
    with pytest.raises(NotAllowed, match="does not allow"):
        services.force_resume(forged, run.pk, reason="stuck")
    vote(factories.admin(), request)
    with pytest.raises(NotAllowed):
        services.force_resume(forged, run.pk, reason="stuck")
    with pytest.raises(IntegrityError, match="request_done_has_votes"), transaction.atomic():
        Request.objects.filter(pk=request.pk).update(in_favour=0)


def test_a_sign_in_that_is_too_old_decides_no_request():
    guard("force_resume", fresh_minutes=5)
    request, ada = ask(factories.support(), waiting()), factories.admin("ada")
    with pytest.raises(NotFresh):
        vote(ada, request, signed_in_at=clock.now() - timedelta(minutes=6))
    assert vote(ada, request, signed_in_at=clock.now()).changed


def test_whoever_asked_may_take_it_back():
    guard("force_resume")
    sam, ada = factories.support("sam"), factories.admin("ada")
    request = ask(sam, waiting())
    with pytest.raises(NotAllowed, match="only sam"):
        four_eyes.withdraw(ada, request.pk)
    assert four_eyes.withdraw(sam, request.pk).changed
    assert not four_eyes.withdraw(sam, request.pk).changed
    with pytest.raises(StateMismatch, match="withdrawn by sam"):
        vote(ada, request)


# --- time ----------------------------------------------------------------------------------------------------------------


def test_a_request_expires_by_the_time_of_the_database_and_nothing_is_done():
    guard("force_resume", time_limit_s=3600)
    run, ada = waiting(), factories.admin("ada")
    request = ask(factories.support("sam"), run)
    clock.shift(timedelta(hours=1))
    assert not four_eyes.open_for(user_of(ada)).exists()
    assert not vote(ada, request).changed
    request.refresh_from_db()
    assert (request.state, request.closed_by) == (STATE.EXPIRED, "clock")
    assert not is_due(run) and not RequestVote.objects.exists()


def test_one_that_expired_unseen_makes_room_for_another():
    guard("force_resume", time_limit_s=3600)
    run = waiting()
    ask(factories.support("sam"), run)
    clock.shift(timedelta(hours=1))
    ask(factories.admin(), run)
    assert sorted(Request.objects.values_list("state", flat=True)) == ["expired", "open"]


def test_further_groups_may_decide_once_it_is_escalated():
    guard(
        "force_resume", groups=["admins"], time_limit_s=3600, escalate_to=["operators"], escalate_for_s=3600
    )
    olga = factories.operator()
    request = ask(factories.support(), waiting())
    assert not four_eyes.open_for(user_of(olga)).exists()
    with pytest.raises(NotAllowed):
        vote(olga, request)
    clock.shift(timedelta(minutes=61))
    assert list(four_eyes.open_for(user_of(olga))) == [request]
    assert "carried out" in vote(olga, request).sentence


# --- races -----------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_double_click_and_a_second_person_at_one_instant_ask_once():
    guard("force_resume")
    run, sam, ada = waiting(), factories.support("sam"), factories.admin("ada")
    seen = run.seen_version

    def call(actor: Actor) -> Any:
        return services.force_resume(actor, run.pk, seen_version=seen, reason="stuck")

    with run_held(run.pk):
        callers = [Caller(partial(call, actor)) for actor in (sam, sam, ada)]
        wait_until_blocked(3)
    errors = [caller.join().error for caller in callers]
    assert Request.objects.count() == 1
    asked = [error for error in errors if isinstance(error, Asked)]
    assert asked and all(isinstance(error, (Asked, Stale, StateMismatch)) for error in errors)


@pytest.mark.django_db(transaction=True)
def test_of_votes_at_one_instant_each_person_has_one_and_the_verb_is_done_once():
    guard("force_resume", votes=2, groups=["admins"])
    run = waiting()
    request = ask(factories.support(), run)
    ann, bob, cat = (factories.admin(name) for name in ("ann", "bob", "cat"))
    with transaction.atomic():
        Request.objects.select_for_update().get(pk=request.pk)
        callers = [Caller(partial(vote, actor, request)) for actor in (ann, ann, bob, cat)]
        wait_until_blocked(4)
    errors = [caller.join().error for caller in callers]
    # Whoever comes after the second vote is late: one of them, or both clicks of Ann's.
    late = [type(error) for error in errors if error is not None]
    assert late in ([StateMismatch], [StateMismatch, StateMismatch])
    assert RequestVote.objects.count() == 2
    assert Event.objects.filter(run_id=run.pk, kind="force_resumed").count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_rejection_and_the_last_vote_at_one_instant_have_one_winner():
    guard("force_resume", groups=["admins"])
    run = waiting()
    request = ask(factories.support(), run)
    ann, bob = factories.admin("ann"), factories.admin("bob")
    with transaction.atomic():
        Request.objects.select_for_update().get(pk=request.pk)
        callers = [Caller(lambda: vote(ann, request)), Caller(lambda: vote(bob, request, "reject"))]
        wait_until_blocked(2)
    errors = [caller.join().error for caller in callers]
    assert sum(error is None for error in errors) == 1
    assert is_due(run) == (errors[0] is None)
