"""Who may do what, on which runs.

The basis is Django's: a permission that a person has, directly or by a group, holds for every run. A grant
(`runs.models.Grant`) adds a capability, which is a handful of these permissions, for everything, for one workflow, or for the
runs whose subject begins with a text, such as “order ”. Nothing takes anything away: what a person may do is the union.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, cast
from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, User
from django.core.exceptions import EmptyResultSet, PermissionDenied
from django.db.models import F, Model, Q, QuerySet, Value
from django.db.models.functions import Lower
from django.db.models.lookups import StartsWith
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase

from runs.models import Grant, Run

type Person = AbstractBaseUser | AnonymousUser


@dataclass(frozen=True)
class Capability:
    """A handful of permissions that are granted together."""

    name: Grant.Capability
    sentence: str
    """What it lets a person do: follows “may”."""
    permissions: tuple[str, ...]
    includes: tuple[Grant.Capability, ...] = ()
    """Capabilities without which it would be of no use."""

    @property
    def label(self) -> str:
        return str(self.name.label)


_C = Grant.Capability
#: Every named permission is in at least one of these; tests/runs/test_access.py fails for one that is in none.
CAPABILITIES: dict[str, Capability] = {
    one.name: one
    for one in (
        Capability(
            _C.VIEW,
            "see runs: their status, steps, times, types of errors and history",
            (
                "runs.view_run",
                "runs.view_operation",
                "runs.view_event",
                "runs.view_policy",
                "runs.view_worker",
                "approvals.view_approval",
                "approvals.view_policy",
                "approvals.view_request",
            ),
        ),
        Capability(
            _C.PAYLOADS,
            "see what is in them: inputs, states, messages, results, texts of errors",
            ("runs.view_payload",),
            (_C.VIEW,),
        ),
        Capability(
            _C.APPROVE,
            "decide approvals, where the approval's policy names a group of theirs",
            ("approvals.decide_approval", "approvals.handle_item"),
            (_C.VIEW, _C.PAYLOADS),
        ),
        Capability(
            _C.OPERATE,
            "start, signal, retry, cancel and force runs on, and answer doubt",
            (
                "runs.start_run",
                "runs.signal_run",
                "runs.retry_run",
                "runs.cancel_run",
                "runs.force_resume_run",
                "runs.fork_run",
                "runs.skip_step",
                "runs.edit_state",
                "runs.resolve_doubt",
                "runs.handle_failures",
                "runs.bulk",
                "approvals.handle_item",
            ),
            (_C.VIEW,),
        ),
        Capability(
            _C.ADMINISTER,
            "change limits, declare workers gone, read the audit and change what people may do",
            (
                "runs.kill_run",
                "runs.change_limits",
                "approvals.change_policy",
                "runs.declare_gone",
                "runs.drain_worker",
                "runs.delete_run",
                "runs.view_auditevent",
                "runs.export_audit",
                "runs.manage_people",
            ),
            (_C.VIEW,),
        ),
    )
}

#: These concern no single run or workflow: a grant for a part does not contain them.
WHOLE = frozenset(
    {
        "runs.view_worker",
        "runs.declare_gone",
        "runs.drain_worker",
        "runs.delete_run",
        "runs.view_auditevent",
        "runs.export_audit",
        "runs.manage_people",
    }
)


def _granting() -> dict[str, frozenset[str]]:
    """For each permission the capabilities whose grant contains it, by themselves or by what they include."""
    found: dict[str, set[str]] = {}
    for one in CAPABILITIES.values():
        for part in (one.name, *one.includes):
            for permission in CAPABILITIES[part].permissions:
                found.setdefault(permission, set()).add(one.name)
    return {permission: frozenset(names) for permission, names in found.items()}


GRANTING = _granting()


# --- what a person has ---------------------------------------------------------------------------------------------------


def grants_of(user: Person) -> Sequence[Grant]:
    """The person's own grants and those of their groups. One query, kept with the user object as Django keeps permissions."""
    if not isinstance(user, User) or not user.is_active:
        return ()
    kept = cast("Sequence[Grant] | None", getattr(user, "_agentops_grants", None))
    if kept is None:
        groups = user.groups.values("pk")
        kept = tuple(Grant.objects.filter(Q(user=user) | Q(group__in=groups)))
        keep_grants(user, kept)
    return kept


def keep_grants(user: User, grants: Sequence[Grant]) -> None:
    """These are all that the person has, themselves or by a group: whoever read the person read them as well."""
    user._agentops_grants = tuple(grants)  # type: ignore[attr-defined]


def basis(user: AbstractBaseUser) -> Hashable:
    """All of a person that the answers of this module depend on: the same basis, the same answers and the same conditions."""
    person = cast(User, user)
    who = (person.pk, person.get_username(), person.is_active, person.is_superuser)
    every = frozenset[str]() if person.is_superuser else frozenset(person.get_all_permissions())
    if person.is_superuser or every >= GRANTING.keys():
        return who, every  # no grant could add anything, so none is read
    return who, every, frozenset((grant.capability, grant.scope, grant.name) for grant in grants_of(person))


def everywhere(user: Person, permission: str) -> bool:
    """Whether the person has the permission for everything, runs to come included."""
    if not user.is_active:
        return False
    if cast(User, user).has_perm(permission):
        return True
    wanted = GRANTING.get(permission, frozenset())
    return any(g.capability in wanted and g.scope == Grant.Scope.EVERYTHING for g in grants_of(user))


def scopes(user: Person, permission: str) -> Sequence[Grant]:
    """The grants that give the person this permission for a part."""
    if permission in WHOLE:
        return ()
    wanted = GRANTING.get(permission, frozenset())
    return [g for g in grants_of(user) if g.capability in wanted and g.scope != Grant.Scope.EVERYTHING]


def reaches(grant: Grant, run: Run) -> bool:
    """Whether the run is in the grant's scope. The same rule as `_in_scope`, for a run that has been read."""
    match grant.scope:
        case Grant.Scope.EVERYTHING:
            return True
        case Grant.Scope.WORKFLOW:
            return run.workflow == grant.name
        case Grant.Scope.SUBJECT:
            return run.subject.startswith(grant.name)
    return False


def may(user: Person, permission: str, run: Run | None = None) -> bool:
    """Whether the person has the permission on this run; without a run: for any part at all.

    Without a run it lets somebody in to a page that then shows what is `visible`. It never suffices for a change: that asks
    with the run, or `everywhere`. A run may also be one that is about to start, or `Run(workflow=…)` for a whole workflow.
    """
    if everywhere(user, permission):
        return True
    parts = scopes(user, permission)
    return bool(parts) if run is None else any(reaches(grant, run) for grant in parts)


def may_see_payloads(user: Person, run: Run | None = None) -> bool:
    """Whether the person may see what is in the run, not just where it stands."""
    return may(user, "runs.view_payload", run)


def holders(permission: str, run: Run) -> QuerySet[User]:
    """Everybody who can sign in and has the permission on this run: by Django's, or by a grant that reaches it."""
    granting = GRANTING.get(permission, frozenset())
    grants = [one for one in Grant.objects.filter(capability__in=granting) if reaches(one, run)]
    if permission in WHOLE:
        grants = [one for one in grants if one.scope == Grant.Scope.EVERYTHING]
    backend = "django.contrib.auth.backends.ModelBackend"
    by_django: QuerySet[User] = User.objects.with_perm(permission, backend=backend)
    by_grant = Q(grants__in=[one.pk for one in grants]) | Q(groups__grants__in=[one.pk for one in grants])
    found: QuerySet[User] = User.objects.filter(Q(pk__in=by_django.values("pk")) | by_grant, is_active=True)
    return found.distinct()


# --- what a person sees --------------------------------------------------------------------------------------------------


def condition(user: Person, permission: str = "runs.view_run", *, through: str = "") -> Q | None:
    """The condition on rows under which the person has the permission on their run; None: all of them, no condition.

    `through` is the way from the row to its run, such as "run__". Workflows are found in run_by_workflow, subjects in
    run_subject_begins, whose text is in lower case: it narrows, and the exact text decides.
    """
    if everywhere(user, permission):
        return None
    found = Q(pk__in=[])
    parts = scopes(user, permission)
    workflows = sorted({grant.name for grant in parts if grant.scope == Grant.Scope.WORKFLOW})
    if workflows:
        found |= Q(**{f"{through}workflow__in": workflows})
    subject = f"{through}subject"
    for begins in sorted({grant.name for grant in parts if grant.scope == Grant.Scope.SUBJECT}):
        found |= (
            Q(StartsWith(Lower(F(subject)), Lower(Value(begins))))
            & Q(**{f"{subject}__startswith": begins})
            & ~Q(**{subject: ""})
        )
    return found


def visible[M: Model](
    user: Person, rows: QuerySet[M], permission: str = "runs.view_run", *, through: str = ""
) -> QuerySet[M]:
    """Those of the runs (or of the rows that belong to runs, `through` "run__") on which the person has the permission."""
    narrowed = condition(user, permission, through=through)
    return rows if narrowed is None else rows.filter(narrowed)


def narrowing(
    user: Person, permission: str, column: str, parameters: dict[str, object], *, also: str = "runs.view_run"
) -> str:
    """The same as SQL for statements by hand: " AND column IN (…)", its parameters added under names; "" for all runs.

    `also` has to hold as well: who may see what is in runs sees something of those alone that they see at all.
    """
    if condition(user, permission) is None and condition(user, also) is None:
        return ""
    rows = visible(user, visible(user, Run.objects.order_by(), also), permission)
    try:
        sql, given = rows.values("pk").query.sql_with_params()
    except EmptyResultSet:
        return " AND false"
    for number, value in enumerate(given):
        name = f"{permission.rpartition('.')[2]}_{number}"
        sql, parameters[name] = sql.replace("%s", f"%({name})s", 1), value
    return f" AND {column} IN ({sql})"


def run_or_404(
    user: Person,
    run_id: UUID,
    *permissions: str,
    view: str = "runs.view_run",
    rows: QuerySet[Run] | None = None,
) -> Run:
    """The run, for somebody who may see it and has these permissions on it. What belongs to it is then read by its id.

    Raises Http404 where there is none, and just so where it is not theirs to see; PermissionDenied where they see it and may
    not do this.
    """
    found = visible(user, Run.objects.all() if rows is None else rows, view).filter(pk=run_id).first()
    if found is None:
        raise Http404
    if not all(may(user, permission, found) for permission in permissions):
        raise PermissionDenied
    return found


def check_visible(user: Person, run_id: UUID, view: str = "runs.view_run") -> None:
    """The same for a page that reads the run otherwise: no query for whoever sees all runs. Raises Http404."""
    if condition(user, view) is not None:
        run_or_404(user, run_id, view=view, rows=Run.objects.only("pk"))


# --- at the door of a view -----------------------------------------------------------------------------------------------


def required[**P, R: HttpResponseBase](
    *permissions: str,
) -> Callable[[Callable[Concatenate[HttpRequest, P], R]], Callable[Concatenate[HttpRequest, P], R]]:
    """Answer 403 unless the person has all of these permissions for at least a part. The view narrows to that part."""

    def decorate(
        view: Callable[Concatenate[HttpRequest, P], R],
    ) -> Callable[Concatenate[HttpRequest, P], R]:
        @wraps(view)
        def guarded(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> R:
            if not all(may(request.user, permission) for permission in permissions):
                raise PermissionDenied
            return view(request, *args, **kwargs)

        return cast("Callable[Concatenate[HttpRequest, P], R]", guarded)

    return decorate


def words(permission: str) -> str:
    """The permission as words in a sentence: “retry run”."""
    return permission.rpartition(".")[2].replace("_", " ")


__all__ = [
    "CAPABILITIES",
    "Capability",
    "basis",
    "check_visible",
    "condition",
    "everywhere",
    "grants_of",
    "holders",
    "may",
    "may_see_payloads",
    "narrowing",
    "required",
    "run_or_404",
    "scopes",
    "visible",
    "words",
]
