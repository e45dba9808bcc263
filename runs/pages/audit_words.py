"""What stands in the audit, as sentences: who did what, on what.

A phrase follows the name of whoever did it; {names} in it become text or links. A kind without a phrase is told by its name, so
that nothing is left out because nobody thought of it here.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

from django.urls import NoReverseMatch, reverse

from runs.models import AuditEvent, Policy
from runs.pages import limit_page
from runs.pages.timeline import step_name


@dataclass(frozen=True)
class Part:
    """A piece of a sentence: text, and where it leads; "" for none."""

    text: str
    url: str = ""


type Sentence = tuple[Part, ...]


def plain(sentence: Sentence) -> str:
    return "".join(part.text for part in sentence)


@dataclass(frozen=True)
class Family:
    """Kinds that people look for together; a value of the filter."""

    label: str
    kinds: Mapping[str, str]
    """Kind, and what the filter calls it."""


#: The filter “what”, in the order in which people look for them.
FAMILIES: Mapping[str, Family] = {
    "decisions": Family(
        "Decisions",
        {
            "vote": "Vote",
            "approval_decided": "Approval decided",
            "approval_edited": "Approval edited",
            "asked_back": "Asked back",
            "approval_escalated": "Approval escalated",
            "approval_parked": "Approval parked",
            "approval_reminded": "Reminder",
            "doubt_answered": "Doubt answered",
        },
    ),
    "runs": Family(
        "Verbs on runs",
        {
            "started": "Start",
            "signal": "Signal",
            "retried": "Retry",
            "cancel_requested": "Cancel",
            "killed": "Kill",
            "force_resumed": "Force resume",
            "forked": "Fork",
            "skipped": "Skip a step",
            "state_edited": "Edit the state",
            "prioritised": "Change the priority",
        },
    ),
    "inbox": Family(
        "Inbox",
        {
            "item_claimed": "Claim",
            "item_released": "Release",
            "item_assigned": "Assign",
            "item_snoozed": "Snooze",
            "item_woken": "End of a snooze",
            "item_commented": "Comment",
        },
    ),
    "limits": Family(
        "Limits and pauses",
        {
            "limits_changed": "Limits changed",
            "limits_cleared": "Limits taken away",
            "limits_reverted": "Limits reverted",
            "limits_ended": "Limits ended by time",
            "waiting_sorted": "Waiting runs sorted",
            "workflow_paused": "Workflow paused",
            "workflow_resumed": "Workflow resumed",
            "queue_paused": "Queue paused",
            "queue_resumed": "Queue resumed",
            "everything_paused": "Everything paused",
            "everything_resumed": "Everything resumed",
        },
    ),
    "policies": Family(
        "Approval policies",
        {
            "approval_policy_set": "Policy set",
            "approval_policy_cleared": "Policy taken away",
            "approval_policy_reverted": "Policy reverted",
            "approval_policy_applied": "Policy applied",
        },
    ),
    "requests": Family(
        "Requests",
        {
            "request_opened": "Request opened",
            "request_vote": "Vote on a request",
            "request_done": "Request carried out",
            "request_refused": "Request not done",
            "request_rejected": "Request rejected",
            "request_withdrawn": "Request withdrawn",
            "request_expired": "Request expired",
        },
    ),
    "failures": Family(
        "Failure groups",
        {
            "failure_acknowledged": "Acknowledged",
            "failure_fixed": "Fixed",
            "failure_handled": "Handled",
            "failure_reopened": "Opened again",
            "failure_note": "Note",
        },
    ),
    "bulks": Family(
        "Bulks",
        {
            "bulk_made": "Bulk made",
            "bulk_started": "Bulk started",
            "bulk_continued": "Bulk continued",
            "bulk_paused": "Bulk paused",
            "bulk_resumed": "Bulk resumed",
            "bulk_stopped": "Bulk stopped",
            "bulk_done": "Bulk done",
        },
    ),
    "workers": Family(
        "Workers",
        {
            "worker_drain": "Drain",
            "worker_recycle": "Recycle",
            "worker_resume": "Take runs again",
            "worker_declared_gone": "Declared gone",
        },
    ),
    "people": Family(
        "People",
        {
            "person_added": "Person added",
            "person_changed": "Person changed",
            "person_switched_off": "Person switched off",
            "person_switched_on": "Person switched on",
            "sign_in_link_made": "Sign-in link made",
            "group_added": "Group added",
            "group_joined": "Put into a group",
            "group_left": "Taken out of a group",
            "capability_granted": "Capability granted",
            "capability_taken_back": "Capability taken back",
        },
    ),
    "sign_ins": Family(
        "Sign-ins and passwords",
        {
            "signed_in": "Sign-in",
            "signed_in_again": "Password given again",
            "sign_in_failed": "Failed sign-in",
            "signed_out": "Sign-out",
            "password_changed": "Password changed",
        },
    ),
    "data": Family(
        "Exports and deletions",
        {
            "audit_exported": "Audit exported",
            "bundle_exported": "Support bundle",
            "runs_deleted": "Runs deleted",
        },
    ),
}


def kinds_of(value: str) -> tuple[str, ...]:
    """The kinds that a value of the filter stands for: those of a family, or one."""
    family = FAMILIES.get(value)
    return tuple(family.kinds) if family else (value,)


def name_of(kind: str) -> str:
    """A kind as words: “Cancel”, and for one that nobody named “Cancel requested”."""
    for family in FAMILIES.values():
        if kind in family.kinds:
            return family.kinds[kind]
    return kind.replace("_", " ").capitalize()


# --- on runs -------------------------------------------------------------------------------------------------------------

_VERDICTS = {
    "approved": "approved {approval} of {run}",
    "rejected": "rejected {approval} of {run}",
    "expired": "let {approval} of {run} expire",
}
_VOTES = {
    "approve": "voted to approve {approval} of {run}",
    "reject": "voted to reject {approval} of {run}",
}

type _Phrase = str | Callable[[Mapping[str, Any]], str]


def _decided(data: Mapping[str, Any]) -> str:
    return _VERDICTS.get(str(data.get("verdict")), "decided {approval} of {run}")


def _voted(data: Mapping[str, Any]) -> str:
    return _VOTES.get(str(data.get("verdict")), "voted on {approval} of {run}")


def _started(data: Mapping[str, Any]) -> str:
    return "started {run} as a fork of {source}" if data.get("forked_from") else "started {run}"


def _retried(data: Mapping[str, Any]) -> str:
    return "made {run} try step {step} again at once" if data.get("now") else "retried {run} at step {step}"


def _answered(data: Mapping[str, Any]) -> str:
    did = "happened" if data.get("happened") else "did not happen"
    return f"said that {{operation}} of {{run}} {did}"


_OF_RUNS: Mapping[str, _Phrase] = {
    "started": _started,
    "signal": "sent the signal {name} to {run}",
    "signal_conflict": "sent a signal to {run} a second time, with other content",
    "retried": _retried,
    "cancel_requested": "asked for {run} to be cancelled",
    "cancelled": "ended {run} as cancelled",
    "failed": "ended {run} as failed",
    "completed": "ended {run} as completed",
    "compensating": "set {run} to undo what it had done",
    "killed": "killed {run}",
    "force_resumed": "forced {run} on",
    "resumed": "let {run} go on, since the outcome is known",
    "forked": "forked {run} into {made}",
    "skipped": "let {run} skip step {step} and go on at step {to}",
    "state_edited": "edited the state of {run}",
    "prioritised": "gave {run} priority {priority}",
    "doubt_answered": _answered,
    "vote": _voted,
    "approval_decided": _decided,
    "approval_edited": "edited {approval} of {run}, which is version {version} now",
    "approval_policy_applied": "applied the policy anew to {approval} of {run}",
    "approval_escalated": "escalated {approval} of {run} to {to}",
    "approval_parked": "parked {run}, since nobody decided {approval} in time",
    "approval_reminded": "reminded people of {approval} of {run}",
    "asked_back": "asked about {approval} of {run}",
    "item_claimed": "claimed {item} of {run}",
    "item_released": "gave back {item} of {run}",
    "item_assigned": "assigned {item} of {run} to {to}",
    "item_snoozed": "snoozed {item} of {run}",
    "item_woken": "took {item} of {run} back into the inbox",
    "item_commented": "commented on {item} of {run}",
    "request_opened": "opened {request} about {run}",
    "request_done": "{request} about {run} was carried out",
    "request_refused": "{request} about {run} was approved, and refused by then",
    "request_rejected": "rejected {request} about {run}",
    "request_withdrawn": "withdrew {request} about {run}",
    "request_expired": "let {request} about {run} expire",
}
_ITEMS = {
    "approval": "a request for approval",
    "doubt": "an effect in doubt",
    "stuck": "a stop that needs a person",
    "dead": "a dead letter",
}


def of_run(
    kind: str, data: Mapping[str, Any], run_id: uuid.UUID, workflow: str, subject: str, *, content: bool
) -> Sentence:
    """What happened to a run. `content`: whether names from inside of it may be told."""
    phrase = _OF_RUNS.get(kind, "{run}: " + kind.replace("_", " "))
    told = phrase if isinstance(phrase, str) else phrase(data)
    words: dict[str, Callable[[], Part]] = {
        "run": lambda: Part(subject or f"a run of {workflow}", reverse("runs:run", args=[run_id])),
        "source": lambda: _run_link(data.get("forked_from")),
        "made": lambda: _run_link(data.get("run")),
        "approval": lambda: Part("a request for approval", _url("approvals:approval", data.get("approval"))),
        "request": lambda: Part("a request to others", _url("requests:request", data.get("request"))),
        "item": lambda: Part(
            _ITEMS.get(str(data.get("item_kind")), "an item"),
            _url("approvals:item", data.get("item_kind"), data.get("item")),
        ),
        "operation": lambda: Part(
            str(data.get("tool") or "an effect"), _url("runs:operation", run_id, data.get("operation"))
        ),
        "name": lambda: Part(f"“{data.get('name')}”" if content else "of some name"),
        "step": lambda: Part(step_name(str(data.get("step", "")))),
        "to": lambda: Part(_listed(data.get("to"))),
        "version": lambda: Part(str(data.get("version", ""))),
        "priority": lambda: Part(str(data.get("priority", ""))),
    }
    return tuple(_parts(told, words))


def _listed(value: Any) -> str:
    return (
        ", ".join(str(one) for one in value)
        if isinstance(value, Sequence) and not isinstance(value, str)
        else str(value)
    )


def _run_link(run_id: Any) -> Part:
    return Part(f"run {str(run_id)[:13]}", _url("runs:run", run_id))


def _parts(phrase: str, words: Mapping[str, Callable[[], Part]]) -> Iterator[Part]:
    for text, name, _, _ in Formatter().parse(phrase):
        if text:
            yield Part(text)
        if name:
            yield words[name]()


def _url(name: str, *args: Any) -> str:
    """The address of a page; "" where the entry does not say which, or the app that has it is not installed."""
    try:
        return reverse(name, args=args) if all(args) else ""
    except NoReverseMatch:
        return ""


# --- outside runs --------------------------------------------------------------------------------------------------------

_OUTSIDE: Mapping[str, str] = {
    "limits_changed": "changed the limits of {target}",
    "limits_cleared": "took away the limits set for {target}",
    "limits_reverted": "reverted the limits of {target}",
    "limits_ended": "ended limits of {target} whose time was over",
    "waiting_sorted": "sorted the waiting runs of {target} by priority",
    "bundle_exported": "took a support bundle of {target}",
    "worker_drain": "asked {target} to take no new runs",
    "worker_recycle": "asked {target} to end and be replaced",
    "worker_resume": "let {target} take runs again",
    "worker_declared_gone": "declared {target} gone for good",
    "failure_acknowledged": "acknowledged {target}",
    "failure_fixed": "said that {target} is fixed in version {fixed_in}",
    "failure_handled": "said that {target} is handled",
    "failure_reopened": "opened {target} again",
    "failure_note": "wrote a note on {target}",
    "bulk_made": "made {target}",
    "bulk_started": "started {target}",
    "bulk_continued": "let {target} go on after its first runs",
    "bulk_paused": "paused {target}",
    "bulk_resumed": "resumed {target}",
    "bulk_stopped": "stopped {target}",
    "bulk_done": "finished {target}",
    "runs_deleted": "deleted {runs} finished runs of {target}",
    "approval_policy_set": "changed {target}",
    "approval_policy_cleared": "took away {target}",
    "approval_policy_reverted": "reverted {target}",
    "approval_policy_applied": "applied {target} to {approvals} open requests",
    "request_opened": "asked others to approve {target}",
    "request_vote": "voted to {verdict} {target}",
    "request_done": "{target} was carried out",
    "request_refused": "{target} was approved, and refused by then",
    "request_rejected": "rejected {target}",
    "request_withdrawn": "withdrew {target}",
    "request_expired": "let {target} expire",
    "person_added": "added {target}",
    "person_changed": "changed {target}",
    "person_switched_off": "switched {target} off",
    "person_switched_on": "switched {target} on again",
    "sign_in_link_made": "made a sign-in link for {target}",
    "group_added": "added {target}",
    "group_joined": "put {target} into a group",
    "group_left": "took {target} out of a group",
    "capability_granted": "granted {target} a capability",
    "capability_taken_back": "took a capability back from {target}",
    "password_changed": "changed their own password",
    "signed_in": "signed in",
    "signed_in_again": "gave their password again",
    "sign_in_failed": "failed to sign in as {whom}{tries}",
    "signed_out": "signed out",
    "audit_exported": "exported the audit as {format}",
}


def outside(event: AuditEvent) -> Sentence:
    """What somebody changed outside a run."""
    phrase = _OUTSIDE.get(event.kind)
    if phrase is None and event.kind.endswith(("_paused", "_resumed")):
        phrase = f"{event.kind.rpartition('_')[2]} {{target}}"
    old, new = event.old or {}, event.new or {}
    words: dict[str, Callable[[], Part]] = {
        "target": lambda: target(event.target, new),
        "fixed_in": lambda: Part(str(new.get("fixed_in", ""))),
        "runs": lambda: Part(_number(old.get("runs"))),
        "approvals": lambda: Part(_number(new.get("approvals"))),
        "verdict": lambda: Part(str(new.get("verdict", ""))),
        "whom": lambda: Part(event.target.partition(" of ")[2] or "somebody who is not known here"),
        "tries": lambda: Part(_tries(new.get("tries"))),
        "format": lambda: Part(_FORMATS.get(str(new.get("format")), "a file")),
    }
    return tuple(_parts(phrase or "{target}: " + event.kind.replace("_", " "), words))


_FORMATS = {"csv": "CSV", "jsonl": "JSON Lines"}


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "some"


def _tries(number: Any) -> str:
    return f", for the {number:,}th time in five minutes" if isinstance(number, int) and number > 1 else ""


_SCOPES = frozenset(Policy.Scope.values)


def target(text: str, new: Mapping[str, Any] | None = None) -> Part:
    """What an audit event is about, as words and a link. `new` may hold a name for it."""
    told = new or {}
    word, _, name = text.partition(" ")
    if word in _SCOPES and name:
        return Part(limit_page.title(word, name), _url("runs:limit", word, name))
    if text.startswith("approval policy of "):
        scope, _, name = text.removeprefix("approval policy of ").partition(" ")
        return Part(f"the approval policy of {scope} {name}", _url("policies:policy", scope, name))
    match word:
        case "run":
            return _run_link(name)
        case "worker":
            return Part(f"worker {name[:13]}", _url("runs:workers"))
        case "failure":
            return Part("a group of failures", _url("runs:failure", name))
        case "bulk":
            called = f"the bulk “{told['name']}”" if told.get("name") else "a bulk"
            return Part(called, _url("runs:bulk", name))
        case "request":
            called = f"the request “{told['title']}”" if told.get("title") else "a request"
            return Part(called, _url("requests:request", name))
    return Part(text)


def said(event: AuditEvent) -> Sequence[tuple[str, str]]:
    """What it changed, one after the other: (“retry limit”, “5 attempts to 8 attempts”), (“groups”, “+ support”)."""
    return limit_page.told(event) or tuple(_lists(event.old or {}, event.new or {}))


def _lists(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What came to the groups and grants of somebody, and what went."""
    for name in ("groups", "grants"):
        was, now = old.get(name), new.get(name)
        if isinstance(now, list) and was != now:
            before = was if isinstance(was, list) else []
            came, went = [one for one in now if one not in before], [one for one in before if one not in now]
            yield name, ", ".join([f"+ {one}" for one in came] + [f"− {one}" for one in went])


__all__ = [
    "FAMILIES",
    "Family",
    "Part",
    "Sentence",
    "kinds_of",
    "name_of",
    "of_run",
    "outside",
    "plain",
    "said",
    "target",
]
