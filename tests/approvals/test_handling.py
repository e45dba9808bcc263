"""Claim, assign, snooze, comment: what people do about what waits for them."""

import uuid
from datetime import timedelta
from typing import cast

import pytest
from django.contrib.auth.models import User

from approvals import services
from approvals.inbox import handling, worklist
from approvals.inbox.worklist import Wanted
from approvals.models import Comment, Item, ItemKind
from approvals.policies import declared
from runs import clock
from runs.errors import Invalid, NotAllowed, Stale, StateMismatch
from runs.lifecycle import Actor
from runs.models import Event
from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db

declared.policy("handling_admins", groups=["admins"])

A = ItemKind.APPROVAL


def user(actor: Actor) -> User:
    return cast(User, actor.user)


def kinds(actor: Actor, wanted: Wanted | None = None) -> list[ItemKind]:
    return [key.kind for key in worklist.keys(user(actor), wanted or Wanted())]


def test_each_role_has_what_it_may_act_on_and_whatever_is_due_first_in_front() -> None:
    factories.doubt()
    factories.approval()
    factories.run(Status.ATTENTION)
    factories.run(Status.FAILED)
    assert kinds(factories.operator()) == [ItemKind.DOUBT, A]
    assert kinds(factories.support()) == [ItemKind.DOUBT, ItemKind.STUCK, ItemKind.DEAD]
    assert kinds(factories.admin()) == [ItemKind.DOUBT, ItemKind.STUCK, A, ItemKind.DEAD]
    assert kinds(factories.support(), Wanted(show="others")) == [A]


def test_a_claim_is_written_down_and_a_second_one_is_told_who_was_first() -> None:
    approval = factories.approval()
    ann, bob = factories.operator("ann"), factories.operator("bob")
    assert handling.claim(ann, A, approval.pk, seen=0).changed
    assert not handling.claim(ann, A, approval.pk, seen=0).changed
    with pytest.raises(StateMismatch, match="already claimed by ann"):
        handling.claim(bob, A, approval.pk, seen=0)
    assert kinds(ann, Wanted(claim="me")) == [A]
    assert kinds(bob, Wanted(claim="me")) == []
    assert kinds(bob, Wanted(claim="others")) == [A]
    assert kinds(bob, Wanted(claim="nobody")) == []
    assert Event.objects.filter(run_id=approval.run_id, kind="item_claimed", actor="ann").count() == 1


def test_only_who_claimed_it_releases_it_and_a_stale_page_changes_nothing() -> None:
    approval = factories.approval()
    ann, bob = factories.operator("ann"), factories.operator("bob")
    handling.claim(ann, A, approval.pk, seen=0)
    with pytest.raises(StateMismatch, match="claimed by ann, not by you"):
        handling.release(bob, A, approval.pk, seen=1)
    with pytest.raises(Stale):
        handling.release(ann, A, approval.pk, seen=0)
    handling.release(ann, A, approval.pk, seen=1)
    assert not Item.objects.get().claimed_by_name


def test_it_is_assigned_only_to_somebody_who_may_act_on_it() -> None:
    approval = factories.approval()
    ann, bob = factories.operator("ann"), factories.operator("bob")
    for nobody in (factories.support("sue"), factories.stranger()):
        with pytest.raises(Invalid, match="may not act on this"):
            handling.assign(ann, A, approval.pk, to=user(nobody).pk, seen=0)
    handling.assign(ann, A, approval.pk, to=user(bob).pk, seen=0)
    assert Item.objects.get().claimed_by_name == "bob"
    assert kinds(bob, Wanted(claim="me")) == [A]


def test_who_may_not_handle_or_not_act_is_refused() -> None:
    approval = factories.approval(policy="handling_admins")
    with pytest.raises(NotAllowed):
        handling.comment(factories.stranger(), A, approval.pk, text="hello", token=uuid.uuid4())
    with pytest.raises(NotAllowed):
        handling.claim(factories.operator(), A, approval.pk, seen=0)
    with pytest.raises(NotAllowed):
        handling.claim(factories.operator(), ItemKind.DEAD, factories.run(Status.FAILED).pk, seen=0)
    assert not Item.objects.exists()


def test_a_snooze_ends_by_the_databases_time() -> None:
    ann = factories.operator()
    approval = factories.approval()
    handling.snooze(ann, A, approval.pk, until=clock.now() + timedelta(hours=2), seen=0)
    assert kinds(ann) == []
    assert kinds(ann, Wanted(snoozed=True)) == [A]
    clock.shift(timedelta(hours=2, seconds=1))
    assert kinds(ann) == [A]


def test_nothing_is_snoozed_past_its_time_limit_nor_for_ever() -> None:
    ann, approval = factories.operator(), factories.approval()
    for until in (timedelta(hours=-1), timedelta(hours=25), timedelta(days=15)):
        with pytest.raises(Invalid):
            handling.snooze(ann, A, approval.pk, until=clock.now() + until, seen=0)


def test_a_comment_sent_twice_is_there_once_and_makes_it_unread_for_others() -> None:
    approval, token = factories.approval(), uuid.uuid4()
    ann, bob = factories.operator("ann"), factories.operator("bob")
    handling.mark_read(user(bob), A, approval.pk, approval.run_id)
    clock.shift(timedelta(seconds=1))
    for _ in range(2):
        handling.comment(ann, A, approval.pk, text="look at the photo", token=token)
    assert Comment.objects.count() == 1
    unread = {one: worklist.lines(user(one), [(A, approval.pk)])[0].unread for one in (ann, bob)}
    assert unread == {ann: False, bob: True}


def test_what_no_longer_waits_is_not_claimed_and_leaves_the_inbox() -> None:
    approval, ann = factories.approval(), factories.operator()
    services.decide(ann, approval.pk, version=1, digest=approval.digest, verdict="approve")
    with pytest.raises(StateMismatch, match="no longer open: approved"):
        handling.claim(ann, A, approval.pk, seen=0)
    assert kinds(factories.operator()) == []
