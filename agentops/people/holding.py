"""What a person or a group holds, by which way, and the condition under which somebody holds something.

The rule itself is `runs.access`; here it is told for others than whoever is signed in. The condition and the telling agree:
tests/agentops/people/test_holding.py.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from django.contrib.auth.models import Group, Permission, User
from django.db.models import Q, QuerySet, Value

from runs import access
from runs.models import Grant

#: Of the command line alone; no group comes with it, so that nobody seems to lack it.
COMMAND_LINE = frozenset({"runs.delete_run"})

#: What each permission lets a person do: follows “may”.
WORDS: Mapping[str, str] = {
    "runs.view_run": "see runs",
    "runs.view_operation": "see the steps and effects of runs",
    "runs.view_event": "see the history of runs",
    "runs.view_policy": "see limits",
    "runs.view_worker": "see workers",
    "approvals.view_approval": "see the inbox",
    "approvals.view_policy": "see approval policies",
    "approvals.view_request": "see requests for guarded verbs",
    "runs.view_payload": "see what is in runs",
    "approvals.decide_approval": "decide approvals",
    "approvals.handle_item": "claim, assign and snooze what waits",
    "runs.start_run": "start runs",
    "runs.signal_run": "send signals to runs",
    "runs.retry_run": "retry failed runs",
    "runs.cancel_run": "cancel runs",
    "runs.force_resume_run": "force runs on",
    "runs.fork_run": "fork runs",
    "runs.skip_step": "let runs go on at another step",
    "runs.edit_state": "edit the state of runs",
    "runs.resolve_doubt": "say whether an effect happened",
    "runs.handle_failures": "say what becomes of failures",
    "runs.bulk": "use verbs on many runs at once",
    "runs.kill_run": "kill runs",
    "runs.change_limits": "change limits and pause workflows",
    "approvals.change_policy": "change approval policies",
    "runs.declare_gone": "declare workers gone",
    "runs.drain_worker": "drain and recycle workers",
    "runs.delete_run": "delete old runs, on the command line",
    "runs.view_auditevent": "read the audit",
    "runs.export_audit": "export the audit",
    "runs.manage_people": "change what people may do",
}


def telling(capability: str) -> tuple[str, ...]:
    """The permissions by which a capability is told apart: not those that another one contains as well."""
    others = {
        permission
        for name, one in access.CAPABILITIES.items()
        if name != capability
        for permission in one.permissions
    }
    own = access.CAPABILITIES[capability].permissions
    return tuple(one for one in own if one not in others and one not in COMMAND_LINE)


def containing(capability: str) -> frozenset[str]:
    """The capabilities whose grant contains this one."""
    return frozenset(
        name for name, one in access.CAPABILITIES.items() if name == capability or capability in one.includes
    )


# --- what one person or group holds --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """Through what somebody holds something: a group, or "" for themselves."""

    group: str = ""
    group_id: int | None = None

    @property
    def words(self) -> str:
        return f"through {self.group}" if self.group else "directly"


@dataclass(frozen=True)
class Part:
    """One capability for everything or a part, and the way."""

    way: Way
    scope: str
    name: str
    some: tuple[str, ...] = ()
    """The permissions, where they are not all of the capability."""
    grant: Grant | None = None
    """None: permissions of Django, given to the group or the person on the command line."""
    by: str = ""
    """The capability that was granted, where this one came with it."""

    @property
    def everywhere(self) -> bool:
        return self.scope == Grant.Scope.EVERYTHING

    @property
    def whole(self) -> bool:
        """The whole capability, for everything."""
        return self.everywhere and not self.some

    @property
    def where(self) -> str:
        match self.scope:
            case Grant.Scope.WORKFLOW:
                return f"workflow {self.name}"
            case Grant.Scope.SUBJECT:
                return f"subjects that begin with “{self.name}”"
        return "everywhere"

    @property
    def short(self) -> str:
        """The same for a cell of the matrix."""
        return f"“{self.name}…”" if self.scope == Grant.Scope.SUBJECT else self.where

    @property
    def verbs(self) -> list[str]:
        return [WORDS[permission] for permission in self.some]


@dataclass(frozen=True)
class Held:
    """One capability of somebody: all parts of it, the widest first."""

    capability: access.Capability
    parts: tuple[Part, ...]

    @property
    def whole(self) -> bool:
        return any(part.whole for part in self.parts)

    @property
    def shown(self) -> list[Part]:
        """The parts that count: those inside a wider one are left out, whichever way they come."""
        if self.whole:
            return [part for part in self.parts if part.whole][:1]
        found: dict[tuple[str, str], Part] = {}
        for part in self.parts:
            found.setdefault((part.scope, part.name), part)
        return list(found.values())

    @property
    def listed(self) -> list[Part]:
        """What a page lists: all parts, without those that came along with another capability where the whole is held anyway."""
        return [part for part in self.parts if part.whole or not (self.whole and part.by)]

    @property
    def some(self) -> int:
        """How many of its verbs are held everywhere, where not all are."""
        return len({permission for part in self.parts if part.everywhere for permission in part.some})

    @property
    def of(self) -> int:
        return len(telling(self.capability.name))


@dataclass
class Holding:
    """Everything that somebody holds, by way."""

    permissions: dict[Way, frozenset[str]] = field(default_factory=dict)
    """Permissions of Django."""
    grants: list[tuple[Way, Grant]] = field(default_factory=list)
    groups: list[Way] = field(default_factory=list)
    superuser: bool = False

    @property
    def own(self) -> list[Grant]:
        """The grants that are to this person or group itself."""
        return [grant for way, grant in self.grants if way == Way()]

    def of(self, capability: str) -> Held:
        parts = list(self._parts(capability))
        parts.sort(key=lambda part: (not part.whole, not part.everywhere, part.scope, part.name))
        return Held(access.CAPABILITIES[capability], tuple(parts))

    @property
    def capabilities(self) -> list[Held]:
        return [self.of(name) for name in access.CAPABILITIES]

    @property
    def nothing(self) -> bool:
        return not any(held.parts for held in self.capabilities)

    def _parts(self, capability: str) -> Iterator[Part]:
        wanted = telling(capability)
        for way, names in self.permissions.items():
            have = tuple(one for one in wanted if one in names)
            if have:
                yield Part(way, Grant.Scope.EVERYTHING, "", some=() if len(have) == len(wanted) else have)
        for way, grant in self.grants:
            if grant.capability not in containing(capability):
                continue
            partly = grant.scope != Grant.Scope.EVERYTHING
            # What concerns no part is worth a word only where it is most of the capability.
            lacking = partly and capability == Grant.Capability.ADMINISTER
            yield Part(
                way,
                grant.scope,
                grant.name,
                some=wholly(capability) if lacking else (),
                grant=grant,
                by="" if grant.capability == capability else grant.get_capability_display(),
            )


def contents(capability: str) -> frozenset[str]:
    """Every permission in a grant of this capability, what it includes with it."""
    one = access.CAPABILITIES[capability]
    return frozenset(
        permission
        for name in (capability, *one.includes)
        for permission in access.CAPABILITIES[name].permissions
    )


def of_people(people: Sequence[User]) -> dict[int, Holding]:
    """What these people hold, by id. Three queries however many they are."""
    return of_both(people, ())[0]


def of_groups(groups: Sequence[Group]) -> dict[int, Holding]:
    """What these groups hold, by id. Two queries."""
    return of_both((), groups)[1]


def of_person(person: User) -> Holding:
    return of_people([person])[person.pk]


def of_group(group: Group) -> Holding:
    return of_groups([group])[group.pk]


def of_both(people: Sequence[User], groups: Sequence[Group]) -> tuple[dict[int, Holding], dict[int, Holding]]:
    """What these people and what these groups hold, each by id. Three queries, two where there are no people."""
    ids = [person.pk for person in people]
    memberships = list(
        User.groups.through.objects.filter(user_id__in=ids)
        .order_by("group__name")
        .values_list("user_id", "group_id", "group__name")
    )
    group_ids = {group.pk for group in groups} | {group_id for _, group_id, _ in memberships}
    of_group = {group_id: Holding() for group_id in group_ids}
    found = {person.pk: Holding(superuser=person.is_superuser) for person in people}
    own, of_groups = _permissions(ids, group_ids)
    for person in people:
        mine = frozenset(WORDS) if person.is_superuser else own.get(person.pk)
        if mine:
            found[person.pk].permissions[Way()] = mine
    for group_id, names in of_groups.items():
        of_group[group_id].permissions[Way()] = names
    grants = list(Grant.objects.filter(Q(user__in=ids) | Q(group__in=group_ids)).order_by("id"))
    for grant in grants:
        if grant.group_id is not None:
            of_group[grant.group_id].grants.append((Way(), grant))
    for user_id, group_id, name in memberships:
        way = Way(name, group_id)
        found[user_id].groups.append(way)
        for names in of_group[group_id].permissions.values():
            found[user_id].permissions[way] = names
        found[user_id].grants += [(way, grant) for _, grant in of_group[group_id].grants]
    for grant in grants:
        if grant.user_id is not None:
            found[grant.user_id].grants.append((Way(), grant))
    return found, {group.pk: of_group[group.pk] for group in groups}


def _permissions(
    people: Collection[int], groups: Collection[int]
) -> tuple[dict[int, frozenset[str]], dict[int, frozenset[str]]]:
    """The permissions of Django that people have themselves, and those that groups have, each by id. One query."""
    columns = ("permission__content_type__app_label", "permission__codename")
    of_groups = Group.permissions.through.objects.filter(group_id__in=groups)
    own = User.user_permissions.through.objects.filter(user_id__in=people)
    rows = own.values_list(Value("person"), "user_id", *columns).union(
        of_groups.values_list(Value("group"), "group_id", *columns), all=True
    )
    found: dict[str, dict[int, set[str]]] = {"person": {}, "group": {}}
    for kind, pk, app, codename in rows:
        found[kind].setdefault(pk, set()).add(f"{app}.{codename}")
    own_found, of_groups_found = (
        {pk: frozenset(names) for pk, names in found[kind].items()} for kind in ("person", "group")
    )
    return own_found, of_groups_found


# --- who holds something -------------------------------------------------------------------------------------------------


def _grants(permissions: Collection[str], workflow: str) -> QuerySet[Grant]:
    names = {name for permission in permissions for name in access.GRANTING.get(permission, ())}
    found = Grant.objects.filter(capability__in=names)
    if all(permission in access.WHOLE for permission in permissions):
        return found.filter(scope=Grant.Scope.EVERYTHING)
    if workflow:
        found = found.exclude(Q(scope=Grant.Scope.WORKFLOW) & ~Q(name=workflow))
    return found


def _rows(permissions: Iterable[str]) -> QuerySet[Permission]:
    wanted = Q(pk__in=[])
    for one in permissions:
        app, _, codename = one.partition(".")
        wanted |= Q(content_type__app_label=app, codename=codename)
    return Permission.objects.filter(wanted)


def groups_with(permissions: Collection[str], workflow: str = "") -> Q:
    """Condition on groups: they hold any of these for everything, for this workflow, or for some subjects."""
    rows, grants = _rows(permissions), _grants(permissions, workflow)
    return Q(pk__in=Group.permissions.through.objects.filter(permission__in=rows).values("group_id")) | Q(
        pk__in=grants.filter(group__isnull=False).values("group_id")
    )


def people_with(permissions: Collection[str], workflow: str = "") -> Q:
    """Condition on active people: they hold any of these, as in `groups_with`.

    By the indexes of Django's tables on permission and group; grants are read whole, of which there are hundreds at most.
    """
    rows, grants = _rows(permissions), _grants(permissions, workflow)
    groups = Group.objects.filter(groups_with(permissions, workflow)).values("pk")
    ways = (
        Q(is_superuser=True)
        | Q(pk__in=User.user_permissions.through.objects.filter(permission__in=rows).values("user_id"))
        | Q(pk__in=grants.filter(user__isnull=False).values("user_id"))
        | Q(pk__in=User.groups.through.objects.filter(group__in=groups).values("user_id"))
    )
    return Q(is_active=True) & ways


def wholly(capability: str) -> tuple[str, ...]:
    """What somebody holds who holds all of a capability, at least for a part."""
    return tuple(one for one in telling(capability) if one not in access.WHOLE)
