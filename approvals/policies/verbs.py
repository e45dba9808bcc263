"""The verbs on policies made of data: set, give back to the code, revert, and apply again to what is open."""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Group, User
from django.db import IntegrityError, connection, transaction
from django.db.models import Count, F, Q, QuerySet
from pydantic import ValidationError

from approvals import services, waits
from approvals.models import Approval, ApprovalVersion, Policy, PolicyRevision
from approvals.policies import declared, effective
from approvals.policies.effective import Rule
from approvals.requests import four_eyes
from runs import clock, codec, lifecycle, redaction, registry
from runs.clock import Now
from runs.errors import Invalid, NotFound, Stale
from runs.lifecycle import Actor
from runs.models import AuditEvent, Run
from runs.policies import POLICY_CHANNEL
from runs.services.verb import permit, verb
from runs.states import Status

Scope = Policy.Scope

#: Open approvals that one application looks at; they wait for people, so there are not many.
MOST_OPEN = 1_000


# --- what policies can be about ------------------------------------------------------------------------------------------


def known_names() -> Iterator[tuple[str, str]]:
    """Every (scope, name) that a policy can be made for, in the order of the list."""
    named = {tool.approval for tool in registry.tools() if tool.approval}
    rows = Policy.objects.filter(scope=Scope.POLICY).values_list("name", flat=True)
    yield from ((Scope.POLICY, name) for name in sorted(named | set(declared.names()) | set(rows)))
    yield from ((Scope.TOOL, tool.name) for tool in registry.tools() if tool.effect)
    yield from ((Scope.WORKFLOW, workflow.name) for workflow in registry.workflows())
    yield from ((Scope.VERB, name) for name in four_eyes.VERBS)


def check_known(scope: str, name: str) -> None:
    """Raise NotFound for what neither the code nor the database knows."""
    match scope:
        case Scope.VERB:
            known = name in four_eyes.VERBS
        case Scope.TOOL:
            known = any(tool.name == name and tool.effect for tool in registry.tools())
        case Scope.WORKFLOW:
            known = any(workflow.name == name for workflow in registry.workflows())
        case Scope.POLICY:
            known = name in declared.names() or any(tool.approval == name for tool in registry.tools())
            known = known or Policy.objects.filter(scope=scope, name=name).exists()
        case _:
            known = False
    if not known:
        raise NotFound(f"there is no {scope} {name!r} that a policy could be about")


def fields_of(scope: str, name: str) -> list[str]:
    """Fields that an expression can read here, as far as the code declares them; empty where anything may come."""
    match scope:
        case Scope.VERB:
            return list(four_eyes.VERBS[name].fields) if name in four_eyes.VERBS else []
        case Scope.TOOL:
            return _arguments(name)
        case Scope.POLICY:
            found = [_arguments(tool.name) for tool in registry.tools() if tool.approval == name]
            return sorted({argument for arguments in found for argument in arguments})
    return []


def _arguments(tool: str) -> list[str]:
    try:
        return list(registry.tool(tool).arguments.model_fields)
    except registry.UnknownWorkflow:
        return []


def made(given: Iterable[Mapping[str, Any]], scope: str, name: str) -> list[Rule]:
    """Rules out of what was given. Raises Invalid, naming the rule, for what is not one or reads fields that do not exist."""
    rules: list[Rule] = []
    for number, one in enumerate(given, start=1):
        try:
            rules.append(Rule.model_validate(one))
        except ValidationError as error:
            raise Invalid(f"rule {number}: {'; '.join(problems(error))}") from None
        for problem in misfits(rules[-1], scope, name):
            raise Invalid(f"rule {number}: {problem}")
    if not rules:
        raise Invalid("a policy has at least one rule")
    if len(rules) > effective.MOST_RULES:
        raise Invalid(f"a policy has at most {effective.MOST_RULES} rules")
    return rules


def problems(error: ValidationError) -> list[str]:
    """What is wrong, each as a sentence with the field in front."""
    said = []
    for one in error.errors():
        place = " ".join(str(part) for part in one["loc"]).replace("_", " ")
        message = one["msg"].removeprefix("Value error, ")
        said.append(f"{place}: {message}" if place else message)
    return said


def misfits(rule: Rule, scope: str, name: str) -> Iterator[str]:
    """What does not fit here, though it is a rule."""
    known = fields_of(scope, name)
    if rule.expression is not None and known:
        for read in rule.expression.fields:
            if read.partition(".")[0] not in known:
                yield f"there is no field “{read}” here; there are {', '.join(known)}"
    if scope == Scope.VERB and rule.on_expiry != "reject":
        yield "a verb that nobody decided on in time is not carried out"
    missing = set(rule.groups) | set(rule.escalate_to)
    missing -= set(Group.objects.filter(name__in=missing).values_list("name", flat=True))
    if missing:
        yield f"there is no group {', '.join(sorted(missing))}"


def too_few(rules: Iterable[Rule]) -> list[str]:
    """Rules whose votes cannot come together, as sentences: people who are in a group, active, and may decide."""
    rules = list(rules)
    counts = {}
    for number, rule in enumerate(rules, start=1):
        chosen = Q(groups__name__in=rule.groups) | Q(pk__in=[person.id for person in rule.users])
        counts[f"rule_{number}"] = Count("pk", filter=chosen, distinct=True)
    found = User.objects.filter(is_active=True).aggregate(**counts) if counts else {}
    said = []
    for number, rule in enumerate(rules, start=1):
        people = found[f"rule_{number}"]
        if people < rule.votes:
            has = (
                "nobody is" if not people else f"only {people} {'person is' if people == 1 else 'people are'}"
            )
            said.append(f"Rule {number} wants {rule.votes} votes, and {has} there to give them.")
    return said


# --- change --------------------------------------------------------------------------------------------------------------


@verb
def set_policy(
    actor: Actor,
    scope: str,
    name: str,
    *,
    rules: Sequence[Mapping[str, Any]],
    seen_revision: int | None = None,
    reason: str = "",
) -> Policy:
    """Let data decide instead of the code. Approvals that are open keep what they ask for.

    Args:
        rules: as `approvals.policies.effective.Rule`; the first whose expression holds counts.
        seen_revision: revision of the policy on the page, 0 for none; None: the caller has no page.

    Raises NotAllowed, NotFound, Invalid, Stale.
    """
    permit_change(actor, scope, name)
    check_known(scope, name)
    data = [rule.model_dump(mode="json") for rule in made(rules, scope, name)]
    return _write(actor, "approval_policy_set", scope, name, data, True, seen_revision, reason)


@verb
def clear_policy(
    actor: Actor, scope: str, name: str, *, seen_revision: int | None = None, reason: str = ""
) -> Policy:
    """Let the code decide again. The rules stay in the history. Raises NotAllowed, NotFound, Stale."""
    permit_change(actor, scope, name)
    policy = _find(scope, name)
    return _write(actor, "approval_policy_cleared", scope, name, policy.rules, False, seen_revision, reason)


@verb
def revert_policy(
    actor: Actor,
    scope: str,
    name: str,
    revision: int,
    *,
    seen_revision: int | None = None,
    reason: str = "",
) -> Policy:
    """Make a new revision that says what an earlier one said. Raises NotAllowed, NotFound, Invalid, Stale."""
    permit_change(actor, scope, name)
    policy = _find(scope, name)
    earlier = PolicyRevision.objects.filter(policy=policy, revision=revision).first()
    if earlier is None:
        raise NotFound(f"there is no revision {revision} of this policy")
    if earlier.active:
        made(earlier.rules, scope, name)
    return _write(
        actor, "approval_policy_reverted", scope, name, earlier.rules, earlier.active, seen_revision, reason
    )


def permit_change(actor: Actor, scope: str, name: str) -> None:
    """Raise NotAllowed unless the actor may change this policy; one of a workflow, with a grant for that workflow."""
    permit(actor, "approvals.change_policy", run=Run(workflow=name) if scope == Scope.WORKFLOW else None)


def _find(scope: str, name: str) -> Policy:
    found = Policy.objects.filter(scope=scope, name=name).first()
    if found is None:
        raise NotFound(f"no policy was ever made here for {scope} {name!r}")
    return found


def _write(
    actor: Actor,
    kind: str,
    scope: str,
    name: str,
    rules: list[Any],
    active: bool,
    seen_revision: int | None,
    reason: str,
) -> Policy:
    """The row, its revision, an audit event, and a hint to the workers. The same change sent twice is one."""
    policy = Policy.objects.select_for_update().filter(scope=scope, name=name).first()
    policy = policy or Policy(scope=scope, name=name, revision=0, active=False, rules=[])
    if seen_revision is not None and seen_revision != policy.revision:
        same = policy.changed_by == actor.name and (policy.rules, policy.active) == (rules, active)
        if same and policy.revision == seen_revision + 1:
            return policy
        raise Stale(f"this policy was changed by {policy.changed_by} since the page was loaded")
    old = {"active": policy.active, "rules": policy.rules} if policy.revision else None
    policy.rules, policy.active = rules, active
    policy.revision += 1
    policy.changed_by, policy.changed_at = actor.name, Now()
    try:
        with transaction.atomic():
            policy.save()
    except IntegrityError:
        raise Stale("this policy was made by somebody else at the same moment") from None
    assert actor.id is not None, "a person: permit"
    PolicyRevision.objects.create(
        policy=policy,
        revision=policy.revision,
        active=active,
        rules=rules,
        by=actor.name,
        by_user_id=actor.id,
        reason=reason,
    )
    AuditEvent.objects.create(
        kind=kind,
        target=f"approval policy of {scope} {name}",
        actor_user_id=actor.id,
        actor=actor.name,
        reason=reason,
        old=old,
        new={"active": active, "rules": rules, "revision": policy.revision},
    )
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [POLICY_CHANNEL, f"approvals {scope} {name}"])
    policy.refresh_from_db()
    return policy


# --- apply again to what is open -------------------------------------------------------------------------------------------


@dataclass
class Application:
    """What applying a policy to the open approvals would do, or has done."""

    changed: list[Approval] = field(default_factory=list)
    same: int = 0
    parked: int = 0
    """Left alone: their time is over, and their runs need attention."""
    votes_lost: int = 0

    @property
    def sentence(self) -> str:
        count = len(self.changed)
        if not count:
            return "Every open approval asks for this already."
        votes = "" if not self.votes_lost else f"; {self.votes_lost} votes on them become void"
        return f"{count} open {'approval asks' if count == 1 else 'approvals ask'} for something else{votes}."


def open_under(scope: str, name: str) -> QuerySet[Approval]:
    """Open approvals that a policy is about. Index approval_inbox."""
    about = {
        Scope.POLICY: Q(policy=name),
        Scope.TOOL: Q(name=name),
        Scope.WORKFLOW: Q(run__workflow=name),
    }.get(Scope(scope), Q(pk__in=[]))
    return Approval.objects.filter(about, state=Approval.State.OPEN).order_by("id")


def preview_reapply(scope: str, name: str) -> Application:
    """What `reapply` would do now."""
    found = Application()
    opened = list(open_under(scope, name).select_related("run").prefetch_related("votes")[:MOST_OPEN])
    # One query for what they are about, and one for all policies: there may be many approvals.
    current = ApprovalVersion.objects.filter(approval__in=opened, version=F("approval__version"))
    payloads = {one.approval_id: redaction.true_value(one.payload, one.payload_sealed) for one in current}
    active = list(Policy.objects.filter(active=True))
    for approval in opened:
        if approval.requirement.get("parked"):
            found.parked += 1
        elif _asks_the_same(
            approval.requirement, _requirement(approval, approval.run, payloads[approval.pk], active)
        ):
            found.same += 1
        else:
            found.changed.append(approval)
            found.votes_lost += sum(vote.version == approval.version for vote in approval.votes.all())
    return found


def reapply(
    actor: Actor, scope: str, name: str, *, seen_revision: int | None = None, reason: str = ""
) -> Application:
    """Let the open approvals ask for what the policy says now, each in a transaction of its own.

    Each gets a new version of the same payload, so that earlier votes are void and open pages are stale; its time begins anew.

    Raises NotAllowed, NotFound, Stale.
    """
    permit_change(actor, scope, name)
    policy = Policy.objects.filter(scope=scope, name=name).first()
    if policy is None:
        raise NotFound(f"no policy was ever made here for {scope} {name!r}")
    if seen_revision is not None and seen_revision != policy.revision:
        raise Stale(f"this policy was changed by {policy.changed_by} since the page was loaded")
    done = Application()
    for approval in preview_reapply(scope, name).changed:
        if _apply_to(actor, approval.pk, reason):
            done.changed.append(approval)
    AuditEvent.objects.create(
        kind="approval_policy_applied",
        target=f"approval policy of {scope} {name}",
        actor_user_id=actor.id,
        actor=actor.name,
        reason=reason,
        new={"revision": policy.revision, "approvals": len(done.changed)},
    )
    return done


@verb
def _apply_to(actor: Actor, approval_id: uuid.UUID, reason: str) -> bool:
    """False where it was decided meanwhile, or asks for the same by now."""
    run, operation, approval = services.locked(approval_id)
    asked = _requirement(approval, run, waits.true_arguments(approval))
    over = approval.state != Approval.State.OPEN or approval.requirement.get("parked")
    if over or _asks_the_same(approval.requirement, asked):
        return False
    now, limit_s = clock.now(), asked["time_limit_s"]
    services.new_version(actor, approval, waits.true_arguments(approval), reason or "the policy changed")
    approval.requirement, approval.reminded_at, approval.opened_at = asked, None, now
    approval.expires_at = None if limit_s is None else now + timedelta(seconds=limit_s)
    approval.save(update_fields=["requirement", "reminded_at", "opened_at", "expires_at"])
    operation.expires_at = waits.next_look(approval, now)
    operation.save(update_fields=["expires_at"])
    lifecycle.append_event(
        run,
        "approval_policy_applied",
        actor,
        reason,
        approval=str(approval.pk),
        version=approval.version,
        policy=asked.get("policy"),
    )
    if run.status == Status.WAITING:
        lifecycle.set_due(run)  # which finds nothing to do, and sets its wake time by the new limit
    return True


def _requirement(
    approval: Approval, run: Run, encoded: Any, active: Sequence[Policy] | None = None
) -> dict[str, Any]:
    tool = services.tool_of(approval)
    call = effective.Call(approval.policy, approval.name if tool else "", run.workflow)
    return effective.requirement(call, codec.decode(encoded), run, active)


def _asks_the_same(now: Mapping[str, Any], then: Mapping[str, Any]) -> bool:
    """Whether it is the same rule, or another that asks for the same."""
    if now.get("policy") is not None and now.get("policy") == then.get("policy"):
        return True
    progress = ("policy", "problem", "escalated", "parked")
    one, other = ({k: v for k, v in each.items() if k not in progress and v} for each in (now, then))
    return one == other and not now.get("escalated")
