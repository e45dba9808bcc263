"""The verbs on what waits for people: claim, release, assign, snooze, end a snooze, comment.

None of them moves a run or decides anything. Each takes the run's lock, so that two people cannot claim at one moment, and
writes an event: who looked after it is part of a run's history. `seen` is the item's version on the page that was shown.
"""

import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import cast

from django.contrib.auth.models import AbstractBaseUser, PermissionsMixin, User
from django.db import connection
from django.db.models import QuerySet

from approvals.inbox.worklist import ACTS, VIEWS
from approvals.models import Approval, Comment, Item, ItemKind
from approvals.services import check_may_decide
from runs import access, clock, codec, lifecycle
from runs.errors import Invalid, NotAllowed, NotFound, Stale, StateMismatch
from runs.lifecycle import Actor
from runs.models import Run
from runs.services.verb import Done, label, lock, permit, permit_somewhere, verb
from runs.states import AttentionKind, FailureKind, Status

#: Nothing is put away for longer: whoever put it there has forgotten it by then.
LONGEST_SNOOZE = timedelta(days=14)
COMMENT_LENGTH = 4_000


@verb
def claim(actor: Actor, kind: ItemKind, item_id: uuid.UUID, *, seen: int | None = None) -> Done:
    """Say that one looks after it. Nobody else is kept from acting.

    Raises NotAllowed (also where one could not act on it), NotFound, Stale, StateMismatch (claimed by somebody else, or it no
    longer waits).
    """
    run, item, approval = _locked(actor, kind, item_id)
    if item.claimed_by_id == actor.id:
        return Done(run, "You had already claimed this.", changed=False)
    if item.claimed_by_name:
        raise StateMismatch(f"already claimed by {item.claimed_by_name}")
    _guard(item, seen)
    check_may_act(actor, kind, run, approval)
    item.claimed_by_id, item.claimed_by_name, item.claimed_at = actor.id, actor.name, clock.now()
    _write(run, item, actor, "item_claimed")
    return Done(run, "You have claimed this.")


@verb
def release(actor: Actor, kind: ItemKind, item_id: uuid.UUID, *, seen: int | None = None) -> Done:
    """Give back what one has claimed. Raises NotAllowed, NotFound, Stale, StateMismatch (it is not one's own)."""
    run, item, _ = _locked(actor, kind, item_id)
    if not item.claimed_by_name:
        return Done(run, "Nobody has claimed this.", changed=False)
    if item.claimed_by_id != actor.id:
        raise StateMismatch(f"claimed by {item.claimed_by_name}, not by you")
    _guard(item, seen)
    _unclaim(item)
    _write(run, item, actor, "item_released")
    return Done(run, "You have released this.")


@verb
def assign(
    actor: Actor, kind: ItemKind, item_id: uuid.UUID, *, to: int, seen: int | None = None, reason: str = ""
) -> Done:
    """Hand it to a person, whoever had claimed it before.

    Raises NotAllowed, NotFound, Stale, StateMismatch, Invalid (nobody of that id, or somebody who may not act on it).
    """
    run, item, approval = _locked(actor, kind, item_id)
    person = User.objects.filter(pk=to, is_active=True).first()
    if person is None:
        raise Invalid("choose a person who can sign in")
    if item.claimed_by_id == person.pk:
        return Done(run, f"{item.claimed_by_name} has this already.", changed=False)
    _guard(item, seen)
    try:
        check_may_act(Actor.of(person), kind, run, approval)
    except NotAllowed:
        raise Invalid(f"{person.get_username()} may not act on this") from None
    before = item.claimed_by_name
    item.claimed_by_id, item.claimed_by_name = person.pk, person.get_username()
    item.claimed_at = item.changed_at = clock.now()
    _write(run, item, actor, "item_assigned", reason, to=item.claimed_by_name, before=before)
    return Done(run, f"Assigned to {item.claimed_by_name}.")


@verb
def snooze(
    actor: Actor, kind: ItemKind, item_id: uuid.UUID, *, until: datetime, seen: int | None = None
) -> Done:
    """Keep it out of everybody's inbox until then; it comes back by itself, or when something is added.

    Raises NotAllowed, NotFound, Stale, StateMismatch, Invalid (in the past, too far away, or after the approval's time limit).
    """
    run, item, approval = _locked(actor, kind, item_id)
    now = clock.now()
    if until <= now:
        raise Invalid("a snooze ends in the future")
    if until - now > LONGEST_SNOOZE:
        raise Invalid(f"a snooze lasts {LONGEST_SNOOZE.days} days at most")
    if approval is not None and approval.expires_at is not None and until >= approval.expires_at:
        raise Invalid("its time limit passes before that, and nobody would have seen it again")
    if item.snoozed_until == until:
        return Done(run, "It is snoozed until then already.", changed=False)
    _guard(item, seen)
    item.snoozed_until, item.snoozed_by = until, actor.name
    _write(run, item, actor, "item_snoozed", until=until)
    return Done(run, "Snoozed: it comes back by itself.")


@verb
def wake(actor: Actor, kind: ItemKind, item_id: uuid.UUID, *, seen: int | None = None) -> Done:
    """End a snooze now. Raises NotAllowed, NotFound, Stale, StateMismatch."""
    run, item, _ = _locked(actor, kind, item_id)
    if item.snoozed_until is None:
        return Done(run, "It is not snoozed.", changed=False)
    _guard(item, seen)
    item.snoozed_until, item.snoozed_by = None, ""
    _write(run, item, actor, "item_woken")
    return Done(run, "It is back in the inbox.")


@verb
def comment(actor: Actor, kind: ItemKind, item_id: uuid.UUID, *, text: str, token: uuid.UUID) -> Done:
    """Say something to the other people who look after it; the agent does not read it. Also once it no longer waits.

    Args:
        token: made with the form, so that the same form sent twice says it once.

    Raises NotAllowed, NotFound, Invalid (nothing said, or too much).
    """
    run, item, _ = _locked(actor, kind, item_id, waits=False)
    if Comment.objects.filter(pk=token).exists():
        return Done(run, "You had already said that.", changed=False)
    said = codec.clean_text(text.strip())
    if not said:
        raise Invalid("say something")
    if len(said) > COMMENT_LENGTH:
        raise Invalid(f"at most {COMMENT_LENGTH:,} characters")
    Comment.objects.create(
        id=token,
        kind=kind,
        item_id=item_id,
        run_id=run.pk,
        text=said,
        by=actor.name,
        by_user=cast("User", actor.user),
    )
    item.changed_at = clock.now()
    _write(run, item, actor, "item_commented", comment=str(token), digest=codec.digest(said))
    mark_read(cast(AbstractBaseUser, actor.user), kind, item_id, run.pk)
    return Done(run, "Your comment is there.")


# --- read marks --------------------------------------------------------------------------------------------------------


def mark_read(user: AbstractBaseUser, kind: ItemKind, item_id: uuid.UUID, run_id: uuid.UUID) -> None:
    """Note that this person has the item before them now."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO approvals_read_mark AS m (id, user_id, kind, item_id, run_id, at)"
            " VALUES (%s, %s, %s, %s, %s, agentops_now())"
            " ON CONFLICT (user_id, item_id, kind) DO UPDATE SET at = greatest(m.at, excluded.at)",
            [uuid.uuid4(), user.pk, str(kind), item_id, run_id],
        )


# --- shared ------------------------------------------------------------------------------------------------------------


def check_may_act(actor: Actor, kind: ItemKind, run: Run, approval: Approval | None) -> None:
    """Raise NotAllowed unless this person may act on an item of this kind, of this run."""
    permit(actor, VIEWS[kind], run=run)
    permit(actor, ACTS[kind], run=run)
    if approval is not None:
        check_may_decide(actor, approval)


def people_who_may(kind: ItemKind, run: Run, approval: Approval | None, limit: int = 200) -> QuerySet[User]:
    """Whom the item can be assigned to, by name."""
    found = access.holders(ACTS[kind], run)
    if approval is not None:
        found = found.filter(groups__name__in=approval.requirement["groups"]).exclude(
            pk__in=[person["id"] for person in approval.requirement["excluded"] if person["id"] is not None]
        )
    return found.distinct().order_by("username")[:limit]


def _locked(
    actor: Actor, kind: ItemKind, item_id: uuid.UUID, *, waits: bool = True
) -> tuple[Run, Item, Approval | None]:
    """The run under its lock, and what is known of the item. Raises StateMismatch where it no longer waits."""
    permit_somewhere(actor, "approvals.handle_item")
    approval = None
    if kind == ItemKind.APPROVAL:
        run_id = Approval.objects.filter(pk=item_id).values_list("run_id", flat=True).first()
        if run_id is None:
            raise NotFound(f"there is no approval {item_id}")
        run = lock(run_id)
        approval = Approval.objects.get(pk=item_id)
    else:
        run = lock(item_id)
    for permission in (VIEWS[kind], "approvals.handle_item"):
        permit(actor, permission, run=run)
    if waits and (why := WHY_NOT[kind](run, approval)):
        raise StateMismatch(why)
    # The run's lock is held: nobody else writes it meanwhile.
    item = Item.objects.filter(kind=kind, item_id=item_id).first()
    return run, item or Item(kind=kind, item_id=item_id, run_id=run.pk), approval


def _approval_over(run: Run, approval: Approval | None) -> str:
    if approval is None or approval.state == Approval.State.OPEN:
        return ""
    return f"this request is no longer open: {approval.get_state_display().lower()}"


def _doubt_over(run: Run, approval: Approval | None) -> str:
    doubtful = run.status == Status.ATTENTION and run.attention_kind == AttentionKind.IN_DOUBT
    return "" if doubtful else f"nothing is in doubt any more: this run is {label(run)}"


def _stuck_over(run: Run, approval: Approval | None) -> str:
    stuck = run.status == Status.ATTENTION and run.attention_kind != AttentionKind.IN_DOUBT
    return "" if stuck else f"this run is no longer stuck: it is {label(run)}"


def _dead_over(run: Run, approval: Approval | None) -> str:
    dead = run.status == Status.FAILED and run.failure_kind != FailureKind.DECLARED
    return "" if dead else f"this is no longer a dead letter: the run is {label(run)}"


#: Why an item of a kind no longer waits, as a sentence; "" while it does.
WHY_NOT: dict[ItemKind, Callable[[Run, Approval | None], str]] = {
    ItemKind.APPROVAL: _approval_over,
    ItemKind.DOUBT: _doubt_over,
    ItemKind.STUCK: _stuck_over,
    ItemKind.DEAD: _dead_over,
}


def _guard(item: Item, seen: int | None) -> None:
    if seen is not None and seen != item.version:
        raise Stale("somebody has claimed, assigned or snoozed this since the page was loaded")


def _unclaim(item: Item) -> None:
    item.claimed_by_id, item.claimed_by_name, item.claimed_at = None, "", None


def _write(run: Run, item: Item, actor: Actor, kind: str, reason: str = "", **data: object) -> None:
    item.version += 1
    item.save()
    lifecycle.append_event(run, kind, actor, reason, item_kind=str(item.kind), item=str(item.item_id), **data)


def may_act(user: AbstractBaseUser, kind: ItemKind, run: Run, approval: Approval | None) -> bool:
    """Whether this person may act on an item of this kind, of this run."""
    assert isinstance(user, PermissionsMixin)
    try:
        check_may_act(Actor.of(user), kind, run, approval)
    except NotAllowed:
        return False
    return True
