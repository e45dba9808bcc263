"""What people did to a run, and policies in their place: lines for its timeline, with name, reason and the way to more."""

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import F, OuterRef, Q, QuerySet, Subquery, TextField, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce, Concat, JSONObject, StrIndex
from django.db.models.lookups import Exact
from django.urls import reverse

from agentops.console.badges import BAD, IDLE, OK, WAIT
from runs import access, content, selectors
from runs.clock import Now
from runs.models import Attempt, AuditEvent, Event, Run
from runs.models.audit import ACTED
from runs.models.policy import ALL, Policy
from runs.pages import limit_page

#: Newest acts that a page of a timeline shows, and changes of limits among them.
ACTS, CHANGES = 50, 20
#: Characters of a reason; the line of the run's history has all of it.
REASON = 400


@dataclass(frozen=True)
class Act:
    """One thing that somebody did."""

    at: datetime
    who: str
    did: str
    """Follows the name: “retried it”."""
    reason: str
    key: str
    icon: str = "user"
    tone: str = IDLE
    url: str = ""


def beside(user: access.Person, before: selectors.Place | None) -> Mapping[str, Combinable]:
    """What `of_run` needs, to be read with the run itself: its newest acts, or those before a place in its attempts.

    Indexes event_acted_on_run and audit_by_kind.
    """
    events = Event.objects.filter(ACTED, run_id=OuterRef("pk")).exclude(kind__in=_ABOUT_ITEMS)
    changes = AuditEvent.objects.filter(
        _of_its_limits(), kind__in=limit_page.KINDS_OF_CHANGE, at__gte=OuterRef("created_at")
    ).filter(at__lte=Coalesce(OuterRef("finished_at"), Now()))
    if not access.may(user, "runs.view_policy"):
        changes = changes.none()
    if before is not None:
        place = Attempt.objects.filter(
            run_id=OuterRef(OuterRef("pk")), step_seq=before.visit, attempt_no=before.number
        )
        until = Subquery(place.values("started_at"))
        events, changes = events.filter(at__lt=until), changes.filter(at__lt=until)
    return {
        "acts": ArraySubquery(_rows(events.order_by("-seq")[:ACTS], "seq", "data")),
        "changes": ArraySubquery(
            _rows(changes.order_by("-at", "-id")[:CHANGES], "id", "target", "old", "new")
        ),
    }


def _rows[Q: QuerySet[Any]](of: Q, *more: str) -> Any:
    columns = {name: F(name) for name in ("at", "kind", "actor", "reason", *more)}
    return of.values(row=JSONObject(**columns))


def _text(value: str) -> Value:
    return Value(value, output_field=TextField())


def _of_its_limits() -> Q:
    """Changes of what may limit the run: its steps, workflow and queue, everything; of tools all, as these are known later."""
    workflow = Concat(_text(f"{Policy.Scope.WORKFLOW} "), OuterRef("workflow"))
    queue = Concat(_text(f"{Policy.Scope.QUEUE} "), OuterRef("queue"))
    steps = Concat(_text(f"{Policy.Scope.STEP} "), OuterRef("workflow"), _text("/"))
    return (
        Q(target=workflow)
        | Q(target=queue)
        | Q(target=f"{Policy.Scope.EVERYTHING} {ALL}")
        | Q(target__startswith=f"{Policy.Scope.TOOL} ")
        | Q(Exact(StrIndex(F("target"), steps), 1))
    )


def of_run(run: Run, *, since: datetime | None, tools: Collection[str], seen: bool) -> list[Act]:
    """What was done, oldest first; `run` was read with what `beside` says. `since` leaves out what a page of earlier attempts
    shows; of limits of tools, those of `tools` count. `seen`: the person may see what was said to the agent.
    """
    told = [*_told(run, run.acts[::-1], seen)]  # type: ignore[attr-defined]
    told += _limits((run.changes or [])[::-1], tools)  # type: ignore[attr-defined]
    return sorted((act for act in told if since is None or act.at >= since), key=lambda act: act.at)


# --- events of the run ---------------------------------------------------------------------------------------------------

#: Who looks after something is not what became of the run.
_ABOUT_ITEMS = ("item_claimed", "item_released", "item_assigned", "item_snoozed", "item_woken")

_DECIDED = "approval_decided"
_VERDICTS = {"approve": "approved", "reject": "rejected", "approved": "approved", "rejected": "rejected"}

_DID = {
    "started": "started it",
    "force_resumed": "forced it on",
    "state_edited": "edited the state",
    "prioritised": "changed its priority",
    "cancel_requested": "asked for its cancel",
    "killed": "killed it",
    "forked": "forked it",
    "asked_back": "asked the agent back",
    "approval_reminded": "reminded those who may decide",
    "approval_parked": "gave it to a person: nobody had decided",
    "approval_policy_applied": "asked anew under the present policy",
    "item_commented": "commented",
}

#: Icon and tone of what decides something; all else is a person's.
_LOOKS = {
    "approved": ("a-approved", OK),
    "rejected": ("a-rejected", BAD),
    "expired": ("a-expired", IDLE),
    "asked_back": ("a-asked", WAIT),
    "approval_edited": ("a-edited", IDLE),
    "approval_escalated": ("a-escalated", WAIT),
    "state_edited": ("a-edited", IDLE),
    "forked": ("k-child", IDLE),
    "signal": ("k-event", IDLE),
}


def _told(run: Run, rows: Sequence[dict[str, Any]], seen: bool) -> Iterable[Act]:
    for place, row in enumerate(rows):
        kind, data = row["kind"], row["data"]
        following = rows[place + 1] if place + 1 < len(rows) else None
        if kind == "vote" and following and (following["kind"], following["at"]) == (_DECIDED, row["at"]):
            continue  # the decision that it led to is the next line, by the same person
        verdict = _VERDICTS.get(str(data.get("verdict", "")), str(data.get("verdict", "")))
        icon, tone = _LOOKS.get(verdict if kind == _DECIDED else kind, ("user", IDLE))
        yield Act(
            at=datetime.fromisoformat(row["at"]),
            who=row["actor"],
            did=_did(kind, data, verdict),
            reason=content.words(seen, _short(row["reason"])),
            key=f"act-{row['seq']}",
            icon=icon,
            tone=tone,
            url=_url(run, kind, data, row["seq"]),
        )


def _did(kind: str, data: dict[str, Any], verdict: str) -> str:
    match kind:
        case "vote":
            return f"voted: {verdict}"
        case "approval_decided":
            return verdict.replace("_", " ") or "decided"
        case "retried":
            return "let it try again at once" if data.get("now") else "retried it"
        case "skipped":
            return f"skipped step {data.get('step', '')}, on to {data.get('to', '')}"
        case "doubt_answered":
            return f"said that {data.get('tool', 'it')} {'happened' if data.get('happened') else 'did not happen'}"
        case "approval_edited":
            return f"edited the request: version {data.get('version', '')}"
        case "approval_escalated":
            return f"escalated to {', '.join(map(str, data.get('to') or ())) or 'others'}"
        case "signal":
            return f"sent signal {data.get('name', '')}"
        case "request_opened":
            return f"asked others to approve: {str(data.get('verb', '')).replace('_', ' ')}"
    return _DID.get(kind) or kind.replace("_", " ")


def _url(run: Run, kind: str, data: dict[str, Any], seq: int) -> str:
    """Where more of it stands: what it was about, else its line of the history."""
    if kind == "forked" and (made := _id(data.get("run"))):
        return reverse("runs:run", args=[made])
    if kind == "doubt_answered" and (operation := _id(data.get("operation"))):
        return reverse("runs:operation", args=[run.pk, operation])
    if approval := _id(data.get("approval")):
        return reverse("approvals:approval", args=[approval])
    if run.event_seq - seq >= selectors.ROWS:
        return ""
    return f"{reverse('runs:run', args=[run.pk])}?part=events#event-{seq}"


def _id(value: Any) -> uuid.UUID | None:
    try:
        return uuid.UUID(str(value))
    except ValueError:
        return None


def _short(text: str) -> str:
    return text if len(text) <= REASON else f"{text[: REASON - 1]}…"


# --- limits that act on it -----------------------------------------------------------------------------------------------


def _limits(rows: Sequence[dict[str, Any]], tools: Collection[str]) -> Iterable[Act]:
    for row in rows:
        event = AuditEvent(
            **{name: row[name] for name in ("kind", "actor", "reason", "target", "old", "new")}
        )
        change = limit_page.change(event)
        if change.scope == Policy.Scope.TOOL and change.name not in tools:
            continue
        yield Act(
            at=datetime.fromisoformat(row["at"]),
            who=event.actor,
            did=_changed(change),
            reason=_short(event.reason),
            key=f"act-{row['id']}",
            icon="limits",
            url=reverse("runs:limit", args=[change.scope, change.name]),
        )


def _changed(change: limit_page.Change) -> str:
    said = ", ".join(f"{limit}: {values}" for limit, values in change.said)
    match change.verb:
        case "paused" | "resumed":
            return f"{change.verb} {change.title}"
        case "sorted":
            return f"sorted the waiting runs of {change.title} by priority"
        case "ended":
            return f"had set for a while, for {change.title}; {said or 'a pause'}"
    return f"{change.verb} for {change.title}: {said or 'what it was'}"
