"""What waits for people, of four kinds in one order: approvals, effects in doubt, runs that are stuck, dead letters.

Nothing is copied: an approval waits while it is open, the others while their run's status says so. What people did about an
item (`Item`, `Comment`, `ReadMark`) stands beside it under its kind and id. An item is due when its kind's target has passed, an
approval when its time limit has.

The keys of all that waits are read at once, at most `COUNT_LIMIT` of each kind and the oldest first, so that counts, pages,
headings and "3 of 23" come from one query and agree. A page's rows are a second one.
"""

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

from django.contrib.auth.models import AbstractBaseUser
from django.db import connection
from django.db.models import (
    DateTimeField,
    Exists,
    ExpressionWrapper,
    F,
    Model,
    OuterRef,
    QuerySet,
    Subquery,
    TextField,
    Value,
)
from django.db.models.functions import Coalesce

from approvals import selectors
from approvals.inbox import compiled
from approvals.models import Approval, Item, ItemKind
from runs import access, content
from runs.clock import Now
from runs.models import Event, FailureGroup, Run
from runs.selectors import COUNT_LIMIT
from runs.states import AttentionKind, FailureKind, Status

#: Within this long somebody should have acted on it; an approval with a time limit has that instead.
TARGETS: Mapping[ItemKind, timedelta] = {
    ItemKind.APPROVAL: timedelta(hours=4),
    ItemKind.DOUBT: timedelta(hours=1),
    ItemKind.STUCK: timedelta(hours=4),
    ItemKind.DEAD: timedelta(hours=24),
}

#: Whoever may act on an item of a kind has this permission.
ACTS: Mapping[ItemKind, str] = {
    ItemKind.APPROVAL: "approvals.decide_approval",
    ItemKind.DOUBT: "runs.resolve_doubt",
    ItemKind.STUCK: "runs.force_resume_run",
    ItemKind.DEAD: "runs.retry_run",
}


#: Whoever may see an item of a kind has this one.
VIEWS: Mapping[ItemKind, str] = {
    kind: "approvals.view_approval" if kind == ItemKind.APPROVAL else "runs.view_run" for kind in ItemKind
}


class Key(NamedTuple):
    """Where an item stands in the inbox. Keys sort as the items do: whatever is due first comes first."""

    due: datetime
    kind: ItemKind
    item: uuid.UUID


@dataclass(frozen=True)
class Wanted:
    """Filters of the inbox; each stands in the address. "" means any."""

    show: str = "mine"
    """"mine": what I may act on; "others": what only others may."""
    kind: str = ""
    claim: str = ""
    """"me", "nobody" or "others"."""
    snoozed: bool = False
    """Those that are snoozed instead of the others."""
    group: str = ""
    """Approvals that this group decides, and no other kind."""


def keys(user: AbstractBaseUser, wanted: Wanted, limit: int = COUNT_LIMIT) -> list[Key]:
    """Keys of what waits and fits, whatever is due first in front; of each kind at most `limit` + 1, the oldest. One query."""
    found = compiled.rows(user, (wanted, limit), lambda: _keys(user, wanted, limit))
    return sorted(Key(due, ItemKind(kind), item) for kind, item, due in found)


def _keys(user: AbstractBaseUser, wanted: Wanted, limit: int) -> QuerySet[Any, Any]:
    branches = [
        branch.order_by(*order).values_list("item_kind", "pk", "due")[: limit + 1]
        for kind in ItemKind
        for branch, order in [_branch(user, kind, wanted)]
        if branch is not None
    ]
    if not branches:
        return Run.objects.none()
    first, *rest = branches
    return first.union(*rest, all=True) if rest else first


def waiting(user: AbstractBaseUser) -> list[QuerySet[Any, Any]]:
    """What this person may act on, a query for each kind of which there can be some; in no order."""
    found = (_branch(user, kind, Wanted())[0] for kind in ItemKind)
    return [branch.order_by() for branch in found if branch is not None]


def _branch(
    user: AbstractBaseUser, kind: ItemKind, wanted: Wanted
) -> tuple[QuerySet[Any, Any] | None, Sequence[Any]]:
    """The items of one kind that fit, and in which order an index reads them; None where there can be none."""
    if wanted.kind not in ("", kind) or (wanted.group and kind != ItemKind.APPROVAL):
        return None, ()
    if kind == ItemKind.APPROVAL:
        found: QuerySet[Any, Any] = (
            selectors.mine(user) if wanted.show == "mine" else selectors.not_mine(user)
        )
        if wanted.group:
            found = found.filter(requirement__groups__contains=[wanted.group])
        # approval_inbox
        order: Sequence[Any] = (F("expires_at").asc(nulls_last=True), "id")
        due: Any = Coalesce("expires_at", _after("opened_at", TARGETS[kind]))
    else:
        mine = access.condition(user, ACTS[kind])
        if wanted.show != "mine" and mine is None:
            return None, ()
        found, since = _runs(kind)
        found = access.visible(user, found)
        if mine is not None:
            found = found.filter(mine) if wanted.show == "mine" else found.exclude(mine)
        order, due = ("id",), _after(since, TARGETS[kind])
    found = _handled(found, kind, user, wanted)
    return found.annotate(item_kind=Value(str(kind), output_field=TextField()), due=due), order


def _runs(kind: ItemKind) -> tuple[QuerySet[Run], Any]:
    """Runs of a kind, and since when they have been so."""
    if kind == ItemKind.DEAD:
        # run_dead_letter, backwards
        failed = Run.objects.filter(status=Status.FAILED).exclude(failure_kind=FailureKind.DECLARED)
        # Somebody has dealt with all failures of its group (by its primary key).
        settled = FailureGroup.objects.filter(
            fingerprint=OuterRef("fingerprint"), state=FailureGroup.State.HANDLED
        )
        return failed.exclude(Exists(settled)), "finished_at"
    # run_by_status, backwards; when a run came to a stand is the time of its event, found by primary key
    stood = Event.objects.filter(run_id=OuterRef("pk"), kind="attention").order_by("-seq").values("at")[:1]
    found = Run.objects.filter(status=Status.ATTENTION)
    doubt = {"attention_kind": AttentionKind.IN_DOUBT}
    found = found.filter(**doubt) if kind == ItemKind.DOUBT else found.exclude(**doubt)
    return found, Coalesce(Subquery(stood), F("created_at"))


def _after(since: Any, length: timedelta) -> Any:
    moment = F(since) if isinstance(since, str) else since
    return ExpressionWrapper(moment + Value(length), output_field=DateTimeField())


def _handled[M: Model](
    found: QuerySet[M, M], kind: ItemKind, user: AbstractBaseUser, wanted: Wanted
) -> QuerySet[M, M]:
    """Narrowed by what people did about the items (item_once)."""
    items = Item.objects.filter(item_id=OuterRef("pk"), kind=kind)
    snoozed = Exists(items.filter(snoozed_until__gt=Now()))
    found = found.filter(snoozed) if wanted.snoozed else found.exclude(snoozed)
    match wanted.claim:
        case "me":
            return found.filter(Exists(items.filter(claimed_by=user.pk)))
        case "others":
            return found.filter(Exists(items.exclude(claimed_by_name="").exclude(claimed_by=user.pk)))
        case "nobody":
            return found.exclude(Exists(items.exclude(claimed_by_name="")))
    return found


# --- rows ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """An item as lists show it, whatever kind it is of."""

    kind: ItemKind
    item: uuid.UUID
    since: datetime
    run_id: uuid.UUID
    workflow: str
    subject: str
    step: str
    status: str
    reason: str
    failure_kind: str
    attention_kind: str
    approval: Approval | None
    in_favour: int
    voted_version: int | None
    answered: int
    """How many of the questions about it the agent has answered."""
    doubtful: str
    """Name of the effect that is in doubt."""
    claimed_by_id: int | None
    claimed_by: str
    snoozed_until: datetime | None
    snoozed_by: str
    changed_at: datetime | None
    version: int
    read_at: datetime | None
    parent_id: uuid.UUID | None
    """None also where the viewer may not see the parent."""
    parent: str
    children: int
    """Unfinished child runs that the viewer may see."""
    looked_at: datetime
    """The database's time when this was read."""

    @cached_property
    def run(self) -> Run:
        """What decides whether somebody may do something here; nothing else of the run is read."""
        return Run(pk=self.run_id, workflow=self.workflow, subject=self.subject)

    @property
    def unread(self) -> bool:
        """Nobody has shown it to this person since something was added."""
        return self.read_at is None or (self.changed_at is not None and self.changed_at > self.read_at)

    @property
    def shown_of_handling(self) -> tuple[object, ...]:
        """What a page shows of people's handling, for its tag."""
        return self.version, self.claimed_by, self.snoozed_until, self.unread

    @cached_property
    def target(self) -> datetime:
        """When somebody should have acted on it."""
        limit = self.approval.expires_at if self.approval else None
        return limit or self.since + TARGETS[self.kind]


#: Everything by primary key or by item_once, read_mark_once, vote_once_per_version, question_once, operation_pending,
#: operation_children, run_unfinished_child.
_LINES = """
SELECT w.kind, w.item, r.id, r.workflow, r.subject, r.step, r.status, r.reason, r.failure_kind, r.attention_kind,
    a.id, a.name, a.title, a.policy, a.requirement, a.state, a.version, a.opened_at, a.expires_at, a.decided_at, a.decided_by,
    a.asked,
    (SELECT count(*) FROM approvals_vote v WHERE v.approval_id = a.id AND v.version = a.version AND v.verdict = 'approve'),
    (SELECT max(v.version) FROM approvals_vote v WHERE v.approval_id = a.id AND v.voter_id = %(user)s),
    (SELECT count(*) FROM approvals_question q JOIN approvals_answer n ON n.question_id = q.id
        WHERE q.approval_id = a.id AND n.outcome = 'answered'),
    CASE WHEN w.kind = 'doubt' THEN (
        SELECT o.name FROM runs_operation o WHERE o.run_id = r.id AND o.status = 'pending' ORDER BY o.started_at LIMIT 1) END,
    h.claimed_by_id, h.claimed_by_name, h.snoozed_until, h.snoozed_by, h.changed_at, coalesce(h.version, 0), m.at,
    p.id, p.workflow, p.subject,
    (SELECT count(*) FROM (SELECT FROM runs_operation o JOIN runs_run c ON c.parent_operation_id = o.id AND c.finished_at IS NULL
        WHERE o.run_id = r.id AND o.kind = 'child'{seen} LIMIT %(children)s) AS some_of),
    CASE w.kind WHEN 'approval' THEN a.opened_at WHEN 'dead' THEN r.finished_at ELSE
        (SELECT e.at FROM runs_event e WHERE e.run_id = r.id AND e.kind = 'attention' ORDER BY e.seq DESC LIMIT 1) END,
    r.created_at, agentops_now()
FROM unnest(%(kinds)s::text[], %(items)s::uuid[]) WITH ORDINALITY AS w (kind, item, place)
LEFT JOIN approvals_approval a ON w.kind = 'approval' AND a.id = w.item
JOIN runs_run r ON r.id = CASE WHEN w.kind = 'approval' THEN a.run_id ELSE w.item END
LEFT JOIN approvals_item h ON h.item_id = w.item AND h.kind = w.kind
LEFT JOIN approvals_read_mark m ON m.user_id = %(user)s AND m.item_id = w.item AND m.kind = w.kind
LEFT JOIN runs_run p ON p.id = r.parent_id
ORDER BY w.place
"""


def lines(user: AbstractBaseUser, which: Iterable[tuple[ItemKind, uuid.UUID]]) -> list[Line]:
    """The items with these kinds and ids, in this order, without those that there are not or that are not this person's to see.

    One query.
    """
    wanted = list(which)
    if not wanted:
        return []
    parameters: dict[str, Any] = {
        "user": user.pk,
        "kinds": [str(kind) for kind, _ in wanted],
        "items": [item for _, item in wanted],
        "children": COUNT_LIMIT + 1,
    }
    # Child runs that are not theirs to see are not told of, not even by their number.
    seen = access.narrowing(user, "runs.view_run", "c.id", parameters)
    with connection.cursor() as cursor:
        cursor.execute(_LINES.format(seen=seen), parameters)
        found = [_line(user, row) for row in cursor.fetchall()]
    return [line for line in found if access.may(user, VIEWS[line.kind], line.run)]


def line(user: AbstractBaseUser, kind: ItemKind, item: uuid.UUID) -> Line | None:
    """One item, whether or not it still waits; None where there is none. One query."""
    return next(iter(lines(user, [(kind, item)])), None)


_APPROVAL = (
    "id",
    "name",
    "title",
    "policy",
    "requirement",
    "state",
    "version",
    "opened_at",
    "expires_at",
    "decided_at",
    "decided_by",
    "asked",
)


def _line(user: AbstractBaseUser, row: Sequence[Any]) -> Line:
    kind, item, run_id, workflow, subject, step, status, reason, failure_kind, attention_kind = row[:10]
    rest = row[10 + len(_APPROVAL) :]
    approval, run = None, Run(pk=run_id, workflow=workflow, subject=subject, reason=reason)
    run = content.shown(user, run)
    if row[10] is not None:
        columns = dict(zip(_APPROVAL, row[10:], strict=False))
        # Django's connection leaves JSON as text.
        columns["requirement"] = json.loads(columns["requirement"])
        approval = content.shown(user, Approval(run=run, **columns), run)
    parent = None
    if rest[11] is not None:
        parent = Run(pk=rest[11], workflow=rest[12], subject=rest[13])
        parent = parent if access.may(user, "runs.view_run", parent) else None
    return Line(
        kind=ItemKind(kind),
        item=item,
        run_id=run_id,
        workflow=workflow,
        subject=subject,
        step=step,
        status=status,
        reason=run.reason,
        failure_kind=failure_kind,
        attention_kind=attention_kind,
        approval=approval,
        in_favour=rest[0],
        voted_version=rest[1],
        answered=rest[2],
        doubtful=rest[3] or "",
        claimed_by_id=rest[4],
        claimed_by=rest[5] or "",
        snoozed_until=rest[6],
        snoozed_by=rest[7] or "",
        changed_at=rest[8],
        version=rest[9],
        read_at=rest[10],
        parent_id=parent.pk if parent else None,
        parent=(parent.subject or parent.workflow) if parent else "",
        children=rest[14],
        since=rest[15] or rest[16],
        looked_at=rest[17],
    )


def waits(line: Line) -> bool:
    """Whether the item still waits for people."""
    match line.kind:
        case ItemKind.APPROVAL:
            return line.approval is not None and line.approval.state == Approval.State.OPEN
        case ItemKind.DOUBT:
            return line.status == Status.ATTENTION and line.attention_kind == AttentionKind.IN_DOUBT
        case ItemKind.STUCK:
            return line.status == Status.ATTENTION and line.attention_kind != AttentionKind.IN_DOUBT
    return line.status == Status.FAILED and line.failure_kind != FailureKind.DECLARED
