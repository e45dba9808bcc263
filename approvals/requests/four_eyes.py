"""Guarded verbs: what somebody wants to do and others approve first (four eyes).

Where a policy guards a verb, calling it opens a request with the arguments frozen and raises `Asked`; the vote that completes
the policy's number carries the verb out, in its own transaction, as the person who asked. What was true when they asked must
still be: the frozen arguments hold the version that was seen, so that the verb itself refuses what has changed since.

Locks: requests before limits and runs. That the requester does not vote, that nothing is carried out without its votes and that
a thing has one open request are constraints of the database as well.
"""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import IntegrityError, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.urls import reverse
from django.utils.crypto import constant_time_compare

from approvals.models import Request, RequestVote, Vote
from approvals.policies import deciders, effective
from runs import access, clock, codec, lifecycle, redaction
from runs.clock import Now
from runs.errors import Asked, Invalid, NotAllowed, NotFound, Stale, StateMismatch, VerbError
from runs.lifecycle import Actor
from runs.models import AuditEvent, Operation, Run
from runs.models import Policy as Limits
from runs.models.operation import OpStatus
from runs.models.run import new_id
from runs.services import doubt, guards, limits
from runs.services.force_resume import preview_force_resume
from runs.services.verb import guard, label, lock, permit, require, verb

State = Request.State
Verdict = Vote.Verdict


# --- what can be guarded -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subject:
    """What a verb would be done to, looked at under its lock."""

    target: str
    title: str
    facts: dict[str, Any]
    """What the policy's expressions are tried on, and people read."""
    run: Run | None = None
    payload: Any = None
    """Decoded arguments of the effect that is in doubt: `arguments` in expressions, and not kept."""
    revision: int | None = None


@dataclass(frozen=True)
class Verb:
    """A verb that policies can guard."""

    title: str
    fields: tuple[str, ...]
    """What an expression can read."""
    look: Callable[[Actor, str, Mapping[str, Any]], Subject]
    """Raises what the verb itself would raise: NotAllowed, and for a stale page or a wrong state."""


def _force_resume(actor: Actor, function: str, arguments: Mapping[str, Any]) -> Subject:
    run = lock(arguments["run_id"])
    permit(actor, "runs.force_resume_run", run=run)
    guard(run, arguments.get("seen_version"))
    preview_force_resume(run)
    facts = {
        "workflow": run.workflow,
        "step": run.step,
        "status": str(run.status),
        "attention": str(run.attention_kind),
        "subject": run.subject,
        "tenant": run.tenant,
    }
    of = f"{run.workflow}, {run.subject}" if run.subject else run.workflow
    return Subject(f"run {run.pk}", f"Force on {of}, {label(run)} at step {run.step}", facts, run)


def _answer_doubt(actor: Actor, function: str, arguments: Mapping[str, Any]) -> Subject:
    found = Operation.objects.filter(pk=arguments["operation_id"]).first()
    if found is None:
        raise NotFound(f"there is no operation {arguments['operation_id']}")
    run = lock(found.run_id)
    permit(actor, "runs.resolve_doubt", run=run)
    guard(run, arguments.get("seen_version"))
    require(run, "resolve_doubt")
    found.refresh_from_db()
    if found.status != OpStatus.PENDING:
        raise StateMismatch(f"{found.name} is not in doubt any more: recorded as {found.status}")
    if not arguments["happened"] and not (proof := doubt.proof_of(found)).accepted:
        raise StateMismatch(f"“it did not happen” is not accepted yet: {proof.sentence}")
    facts = {
        "workflow": run.workflow,
        "step": run.step,
        "tool": found.name,
        "happened": arguments["happened"],
        "reference": arguments.get("reference", ""),
        "subject": run.subject,
        "tenant": run.tenant,
    }
    answer = "happened" if arguments["happened"] else "did not happen"
    payload = codec.decode(redaction.true_value(found.request, found.request_sealed))
    return Subject(f"operation {found.pk}", f"Say that {found.name} {answer}", facts, run, payload)


_NOT_FACTS = {"reason", "seen_revision", "scope", "name", "workflow"}


def _change_limits(actor: Actor, function: str, arguments: Mapping[str, Any]) -> Subject:
    scope, name = _limits_of(arguments)
    limits.permit_limits(actor, scope, name)
    found = Limits.objects.filter(scope=scope, name=name).first()
    revision = found.revision if found else 0
    seen = arguments.get("seen_revision")
    if seen is not None and seen != revision:
        by = f" by {found.changed_by}" if found else ""
        raise Stale(f"these limits were changed{by} since the page was loaded")
    given = {key: value for key, value in arguments.items() if key not in _NOT_FACTS}
    what = ", ".join(f"{key.replace('_', ' ')} {_said(value)}" for key, value in sorted(given.items()))
    title = f"{function.replace('_', ' ').capitalize()}: {scope} {name}" + (f", {what}" if what else "")
    facts = {"action": function.partition("_")[0], "scope": scope, "name": name} | given
    return Subject(f"{scope} {name}", title, facts, revision=revision)


def _limits_of(arguments: Mapping[str, Any]) -> tuple[str, str]:
    """Scope and name of the limits that a verb would change."""
    if "workflow" in arguments:
        return Limits.Scope.WORKFLOW.value, arguments["workflow"]
    if "change_id" in arguments:
        change = AuditEvent.objects.filter(pk=arguments["change_id"]).values_list("target", flat=True).first()
        if change is None:
            raise NotFound("there is no such change of limits")
        scope, _, name = change.partition(" ")
        return scope, name
    return str(arguments["scope"]), str(arguments["name"])


def _said(value: Any) -> str:
    return "the default" if value is None else str(value)


VERBS: dict[str, Verb] = {
    "force_resume": Verb(
        "Force a run on",
        ("workflow", "step", "status", "attention", "subject", "tenant"),
        _force_resume,
    ),
    "answer_doubt": Verb(
        "Answer whether an effect happened",
        ("workflow", "step", "tool", "happened", "reference", "subject", "tenant", "arguments"),
        _answer_doubt,
    ),
    "change_limits": Verb(
        "Change limits, pause and resume",
        ("action", "scope", "name", "until", "limit", *limits.LIMITS),
        _change_limits,
    ),
}


# --- asking --------------------------------------------------------------------------------------------------------------


def before(actor: Actor, name: str, function: str, arguments: Mapping[str, Any]) -> None:
    """The hook of `runs.services.guards`. Raises Asked where a policy wants others to approve first."""
    if actor.request is not None:
        _check_carried(actor.request, function, arguments)
        return
    if effective.of_verb(name) is None:
        return
    asked = _ask(actor, name, function, arguments)
    if asked is not None:
        raise asked


def _check_carried(request_id: uuid.UUID, function: str, arguments: Mapping[str, Any]) -> None:
    """Raise NotAllowed unless this transaction is carrying out just this.

    Only the vote that completes the number sees an open request with all its votes; others see it short of a vote, or over.
    """
    found = Request.objects.filter(
        pk=request_id, state=State.OPEN, function=function, in_favour__gte=F("votes")
    ).first()
    if found is None or not codec.is_keyed_digest(_encoded(arguments), found.digest):
        raise NotAllowed(f"request {request_id} does not allow this")


@verb
def _ask(actor: Actor, name: str, function: str, arguments: Mapping[str, Any]) -> Asked | None:
    """Open the request and say so; None where the policy has no rule for this."""
    if actor.user is None:
        raise NotAllowed(
            f"{actor.name} is no person; others have to approve this, and only a person may ask them"
        )
    sent = codec.digest(_encoded(arguments))
    mine = _same_again(actor, name, function, sent)
    if mine is not None:
        return _asked(mine)
    # Before the run: a vote takes its locks in this order.
    open_ones = list(
        Request.objects.select_for_update().filter(verb=name, state=State.OPEN, target=_target(arguments))
    )
    now = clock.now()
    for one in open_ones:
        if one.expires_at is not None and one.expires_at <= now:
            # Not in the run's history, whose version is what the page has seen.
            _close(one, State.EXPIRED, "clock", "nobody decided in time", in_run=False)
    subject = VERBS[name].look(actor, function, arguments)
    row = effective.of_verb(name)
    facts = subject.facts | ({} if subject.payload is None else {"arguments": subject.payload})
    found = None if row is None else effective.match(effective.rules_of(row), facts)
    if row is None or found is None:
        return None
    try:
        with transaction.atomic():
            made = _open(
                actor, name, function, arguments, sent, subject, found, effective.reference(row, found), now
            )
    except IntegrityError:
        mine = _same_again(actor, name, function, sent)
        if mine is not None:
            return _asked(mine)
        other = Request.objects.filter(verb=name, target=subject.target, state=State.OPEN).first()
        by = other.requester_name if other else "somebody else"
        raise StateMismatch(f"{by} has already asked for this: others decide on that request first") from None
    return _asked(made)


def _target(arguments: Mapping[str, Any]) -> str:
    """The target of a request for this, without looking at anything."""
    if "run_id" in arguments:
        return f"run {arguments['run_id']}"
    if "operation_id" in arguments:
        return f"operation {arguments['operation_id']}"
    return " ".join(_limits_of(arguments))


def _same_again(actor: Actor, name: str, function: str, sent: str) -> Request | None:
    """The open request that this person made with just this form: a double click, or the form sent again."""
    return Request.objects.filter(
        verb=name, function=function, requester_id=actor.id, sent_digest=sent, state=State.OPEN
    ).first()


def _encoded(arguments: Mapping[str, Any]) -> Any:
    return codec.encode(dict(arguments), path="arguments")


def _open(
    actor: Actor,
    name: str,
    function: str,
    arguments: Mapping[str, Any],
    sent: str,
    subject: Subject,
    found: effective.Match,
    reference: Mapping[str, Any],
    now: datetime,
) -> Request:
    rule = found.rule
    excluded: list[dict[str, Any]] = [{"id": actor.id, "name": actor.name, "as": "requester"}]
    frozen, run = dict(arguments), subject.run
    if run is not None and rule.exclude_starter and run.started_by_id is not None:
        excluded.append({"id": run.started_by_id, "name": run.started_by_name})
    made_id = new_id()
    if run is not None:
        lifecycle.append_event(
            run, "request_opened", actor, str(arguments.get("reason", "")), request=str(made_id), verb=name
        )
        frozen["seen_version"] = run.event_seq
    elif subject.revision is not None:
        frozen["seen_revision"] = subject.revision
    encoded = _encoded(frozen)
    display, sealed = redaction.split(encoded)
    limit = None if rule.time_limit_s is None else timedelta(seconds=rule.time_limit_s)
    escalates = limit is not None and bool(rule.escalate_to)
    more = timedelta(seconds=rule.escalate_for_s) if escalates else timedelta()
    made = Request.objects.create(
        id=made_id,
        verb=name,
        function=function,
        target=subject.target,
        run_id=run.pk if run else None,
        title=codec.clean_text(subject.title, 500),
        arguments=display,
        arguments_sealed=sealed,
        digest=codec.keyed_digest(encoded),
        sent_digest=sent,
        facts=codec.encode(subject.facts, lenient=True),
        reason=codec.clean_text(str(arguments.get("reason", "")), 10_000),
        requirement=rule.requirement(excluded, policy=dict(reference), problem=found.problem),
        votes=rule.votes,
        requester_id=_id(actor),
        requester_name=actor.name,
        escalates_at=now + limit if limit is not None and escalates else None,
        expires_at=None if limit is None else now + limit + more,
    )
    _audit("request_opened", made, actor, made.reason, new={"title": made.title, "votes": made.votes})
    return made


def _id(actor: Actor) -> int:
    assert actor.id is not None, "a person: checked before"
    return actor.id


def _asked(request: Request) -> Asked:
    needed = request.votes - request.in_favour
    people = "one other person has" if needed == 1 else f"{needed} other people have"
    return Asked(
        f"nothing was done yet: {people} to approve it first, and can see your request", url_of(request)
    )


def url_of(request: Request) -> str:
    return reverse("requests:request", args=[request.pk])


def _audit(
    kind: str, request: Request, actor: Actor, reason: str, *, new: Mapping[str, Any] | None = None
) -> None:
    AuditEvent.objects.create(
        kind=kind,
        target=f"request {request.pk}",
        actor_user_id=actor.id,
        actor=actor.name,
        reason=reason,
        new={"verb": request.verb, "target": request.target} | dict(new or {}),
    )


# --- deciding ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What a vote or a withdrawal did, in a sentence; `changed` is False where it did nothing."""

    request: Request
    sentence: str
    changed: bool = True


@verb
def vote(
    actor: Actor,
    request_id: uuid.UUID,
    *,
    digest: str,
    verdict: str,
    reason: str = "",
    signed_in_at: datetime | None = None,
) -> Outcome:
    """Approve or reject a request; the vote that completes the number carries the verb out, and one rejection ends it.

    What the verb refuses by then (the run has moved on, the requester may not do it any more) ends the request with that as
    its outcome: the votes stay, and nothing was done.

    Raises NotAllowed (not asked, or it is one's own request), NotFresh, NotFound, Invalid, Stale, StateMismatch.
    """
    request = _locked(request_id)
    of = _run_of(request)
    for permission in ("approvals.view_request", "approvals.decide_approval"):
        permit(actor, permission, run=of)
    if of is not None:
        permit(actor, "runs.view_payload", run=of)
    now = clock.now()
    deciders.check(actor, current_requirement(request, now))
    deciders.check_fresh(request.requirement, signed_in_at)
    earlier = RequestVote.objects.filter(request_id=request.pk, voter_id=actor.id).first()
    if earlier is not None and earlier.verdict == verdict:
        return Outcome(request, f"You had already {_past(verdict)} this.", changed=False)
    if _expire(request, now):
        return Outcome(request, "This request has expired: nobody decided in time.", changed=False)
    _check_open(actor, request)
    if not constant_time_compare(digest, request.digest):
        raise Stale("this is not the request that the page showed: read it again")
    if earlier is not None:
        raise StateMismatch(f"you had already {_past(earlier.verdict)} this")
    if verdict not in Verdict.values:
        raise Invalid(f"a verdict is approve or reject, not {verdict!r}")
    if verdict == Verdict.REJECT and not reason.strip():
        raise Invalid("say why you reject it: whoever asked for it will read this")
    RequestVote.objects.create(
        request_id=request.pk,
        requester_id=request.requester_id,
        digest=request.digest,
        verdict=verdict,
        voter_id=_id(actor),
        voter_name=actor.name,
        reason=reason,
    )
    _audit("request_vote", request, actor, reason, new={"verdict": str(verdict)})
    if verdict == Verdict.REJECT:
        _close(request, State.REJECTED, actor.name, reason, actor)
        return Outcome(request, "Rejected: nothing was done.")
    request.in_favour += 1
    request.save(update_fields=["in_favour"])
    if request.in_favour < request.votes:
        return Outcome(request, f"Your vote counts; {request.votes - request.in_favour} more needed.")
    return _carry_out(actor, request)


def _past(verdict: str) -> str:
    return "approved" if verdict == Verdict.APPROVE else "rejected"


def _locked(request_id: uuid.UUID) -> Request:
    try:
        return Request.objects.select_for_update(of=("self",)).select_related("requester").get(pk=request_id)
    except Request.DoesNotExist:
        raise NotFound(f"there is no request {request_id}") from None


def _run_of(request: Request) -> Run | None:
    """The run that it is about; None for a limit, and where retention has deleted it."""
    return None if request.run_id is None else Run.objects.filter(pk=request.run_id).first()


def current_requirement(request: Request, now: datetime) -> dict[str, Any]:
    """The frozen requirement, with the groups to which it has been escalated by `now`."""
    requirement: dict[str, Any] = request.requirement
    if request.escalates_at is None or request.escalates_at > now:
        return requirement
    further = requirement["escalation"]["groups"]
    return requirement | {"groups": sorted({*requirement["groups"], *further})}


def is_over(request: Request, now: datetime) -> bool:
    """Whether an open request has expired, though nobody has written that down yet."""
    return request.state == State.OPEN and request.expires_at is not None and request.expires_at <= now


def _expire(request: Request, now: datetime) -> bool:
    """Close it if its time is up. Committed, unlike what a refusal would do."""
    if not is_over(request, now):
        return False
    _close(request, State.EXPIRED, "clock", "nobody decided in time")
    return True


def _check_open(actor: Actor, request: Request) -> None:
    if request.state == State.OPEN:
        return
    by = "you" if request.closed_by == actor.name else request.closed_by
    said = {
        State.DONE: f"it was approved by {by} and carried out",
        State.REFUSED: f"it was approved by {by}, but nothing was done: {request.outcome}",
        State.REJECTED: f"it was rejected by {by}",
        State.WITHDRAWN: f"it was withdrawn by {by}",
        State.EXPIRED: "it has expired: nobody decided in time",
    }
    raise StateMismatch(f"this request is over: {said[State(request.state)]}")


def _carry_out(actor: Actor, request: Request) -> Outcome:
    names = ", ".join(
        RequestVote.objects.filter(request_id=request.pk, verdict=Verdict.APPROVE)
        .order_by("at", "id")
        .values_list("voter_name", flat=True)
    )
    requester = request.requester
    arguments = codec.decode(redaction.true_value(request.arguments, request.arguments_sealed))
    by = Actor(request.requester_name, requester, request.pk)
    try:
        with transaction.atomic():
            done = guards.carry_out(by, request.function, arguments)
    except VerbError as error:
        _close(request, State.REFUSED, names, str(error), actor)
        return Outcome(request, f"Approved, but nothing was done: {error}.")
    sentence = getattr(done, "sentence", "") or f"{request.title}."
    _close(request, State.DONE, names, sentence, actor)
    return Outcome(request, f"Approved and carried out. {sentence}")


def _close(
    request: Request,
    state: State,
    by: str,
    outcome: str,
    actor: Actor = lifecycle.CLOCK,
    *,
    in_run: bool = True,
) -> None:
    """End an open request; its run's history tells of it too."""
    request.state, request.closed_by, request.outcome = state, by, codec.clean_text(outcome, 10_000)
    request.closed_at = Now()
    request.save(update_fields=["state", "closed_by", "outcome", "closed_at"])
    request.refresh_from_db(fields=["closed_at"])
    _audit(f"request_{state}", request, actor, request.outcome, new={"by": by})
    run = _run_of(request)
    if run is not None and in_run:
        run = lifecycle.lock_run(run.pk)
        lifecycle.append_event(
            run, f"request_{state}", actor, request.outcome, request=str(request.pk), verb=request.verb, by=by
        )


@verb
def withdraw(actor: Actor, request_id: uuid.UUID, *, reason: str = "") -> Outcome:
    """Take one's own request back. Said twice, it changes nothing. Raises NotAllowed, NotFound, StateMismatch."""
    request = _locked(request_id)
    if actor.user is None or not actor.user.is_active or request.requester_id != actor.id:
        raise NotAllowed(f"only {request.requester_name} may withdraw this request")
    if request.state == State.WITHDRAWN:
        return Outcome(request, "You had already withdrawn this.", changed=False)
    if _expire(request, clock.now()):
        return Outcome(request, "This request had expired.", changed=False)
    _check_open(actor, request)
    _close(request, State.WITHDRAWN, actor.name, reason or "withdrawn", actor)
    return Outcome(request, "Withdrawn: nothing was done.")


# --- what pages read -----------------------------------------------------------------------------------------------------


def open_for(user: AbstractBaseUser) -> QuerySet[Request]:
    """Open requests that this person may decide and has not voted on, the soonest to expire first. Index request_inbox."""
    if not access.may(user, "approvals.decide_approval"):
        return Request.objects.none()
    voted = RequestVote.objects.filter(request_id=OuterRef("pk"), voter_id=user.pk)
    further = Q(escalates_at__lte=Now()) & deciders.asks_further(user)
    return (
        visible(user, _open_now(), "approvals.decide_approval")
        .filter(deciders.asks(user) | further)
        .exclude(Exists(voted))
        .order_by(F("expires_at").asc(nulls_last=True), "id")
    )


def visible(
    user: AbstractBaseUser, rows: QuerySet[Request], permission: str = "approvals.view_request"
) -> QuerySet[Request]:
    """Those of the requests on whose run the person has the permission; those about limits need it for everything."""
    if access.everywhere(user, permission):
        return rows
    runs = access.visible(user, Run.objects.order_by(), permission)
    return rows.filter(run_id__in=runs.values("pk"))


def _open_now() -> QuerySet[Request]:
    return Request.objects.filter(state=State.OPEN).filter(
        Q(expires_at__isnull=True) | Q(expires_at__gt=Now())
    )


def open_others(user: AbstractBaseUser) -> QuerySet[Request]:
    """Open requests that are not this person's to decide (now): one's own, others', or voted on."""
    mine = open_for(user).order_by().values("pk")
    return (
        visible(user, _open_now()).exclude(pk__in=mine).order_by(F("expires_at").asc(nulls_last=True), "id")
    )


def why_not_decide(user: AbstractBaseUser, request: Request, now: datetime) -> str:
    """Why this person may not decide, as a sentence; "" if they may. The state of the request is another question."""
    if request.requester_id == user.pk:
        return "you asked for this, so somebody else has to decide"
    if not access.may(user, "approvals.decide_approval", _run_of(request)):
        return "your account does not have the permission to decide"
    try:
        deciders.check(Actor.of(user), current_requirement(request, now))
    except NotAllowed as refusal:
        return str(refusal)
    return ""


def register() -> None:
    guards.register(before)
