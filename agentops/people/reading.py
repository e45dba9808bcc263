"""What the pages of people show: rows of the matrix, what somebody can do in words, and what a verb would change."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from django.contrib.auth.models import Group, User
from django.db.models import Count, F, Model, Q, QuerySet, Value
from django.db.models.functions import Lower
from django.db.models.lookups import StartsWith
from django.http import QueryDict

from agentops.console import hostile
from agentops.console.filters import link
from agentops.people import holding, services
from agentops.people.holding import Held, Holding
from approvals.models import Item, Policy
from approvals.policies import declared, effective
from runs import access, registry
from runs.models import AuditEvent, Grant, Run
from runs.selectors import COUNT_LIMIT

#: Rows of a page; members that a group's page names.
SIZE = 50
#: Of a capability in a cell; more are counted.
REACHES = 3
#: Names in a sentence.
NAMED = 5


# --- pages in the order of names -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NamePage[M: Model]:
    """Rows of one page in the order of names, and the links to its neighbours ("" where there is none)."""

    rows: list[M]
    earlier: str
    later: str

    @property
    def alone(self) -> bool:
        return not (self.earlier or self.later)


def by_name[M: Model](rows: QuerySet[M], query: QueryDict, *, key: str, size: int = SIZE) -> NamePage[M]:
    """The page that `query` asks for by `after` or `before`, a name. `key` is unique, and its index is walked."""
    after, before = _text(query, "after"), _text(query, "before")
    if before:
        found = list(rows.filter(**{f"{key}__lt": before}).order_by(f"-{key}")[: size + 1])
        more_before, more_after = len(found) > size, True
        found = found[:size][::-1]
    else:
        narrowed = rows.filter(**{f"{key}__gt": after}) if after else rows
        found = list(narrowed.order_by(key)[: size + 1])
        more_before, more_after = bool(after), len(found) > size
        found = found[:size]
    if not found:
        return NamePage([], link(query) if after or before else "", "")
    return NamePage(
        found,
        link(query, before=getattr(found[0], key)) if more_before else "",
        link(query, after=getattr(found[-1], key)) if more_after else "",
    )


def _text(query: QueryDict, name: str) -> str:
    return query.get(name, "").replace("\0", "")[:150]


# --- the matrix ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One capability of one person or group, as the matrix says it."""

    held: Held

    @property
    def label(self) -> str:
        return self.held.capability.label

    @property
    def whole(self) -> bool:
        return self.held.whole

    @property
    def some(self) -> str:
        """ "3 of 11 verbs", where not all are held everywhere; else ""."""
        if self.held.whole or not self.held.some:
            return ""
        return f"{self.held.some} of {self.held.of}"

    @property
    def places(self) -> list[str]:
        return sorted({part.short for part in self.held.shown if not part.everywhere})

    @property
    def shown(self) -> list[str]:
        return self.places[:REACHES]

    @property
    def more(self) -> int:
        return len(self.places) - len(self.shown)

    @property
    def empty(self) -> bool:
        return not self.held.parts


@dataclass(frozen=True)
class Row:
    """A person or a group with its cells."""

    one: User | Group
    holding: Holding
    groups: Sequence[str] = ()
    members: int = 0

    @property
    def cells(self) -> list[Cell]:
        return [Cell(held) for held in self.holding.capabilities]


def people(query: QueryDict, state: str) -> QuerySet[User]:
    """The people that the filters let through. Names are searched in all rows: people are thousands, not millions."""
    found = User.objects.filter(is_active=state != "off")
    name = _text(query, "q").strip()
    if name:
        found = found.filter(
            Q(username__icontains=name) | Q(first_name__icontains=name) | Q(last_name__icontains=name)
        )
    for permission in wanted_permissions(query) if state != "off" else ():
        found = found.filter(holding.people_with([permission], _text(query, "workflow")))
    return found


def groups(query: QueryDict) -> QuerySet[Group]:
    found = Group.objects.all()
    name = _text(query, "q").strip()
    if name:
        found = found.filter(name__icontains=name)
    for permission in wanted_permissions(query):
        found = found.filter(holding.groups_with([permission], _text(query, "workflow")))
    return found


def wanted_permissions(query: QueryDict) -> tuple[str, ...]:
    """All that makes up the chosen capability; a workflow alone asks who may see its runs."""
    capability = query.get("capability", "")
    if capability not in access.CAPABILITIES:
        return ("runs.view_run",) if _text(query, "workflow") else ()
    return holding.wholly(capability)


def people_rows(people: Sequence[User]) -> list[Row]:
    """Three queries."""
    held = holding.of_people(people)
    return [Row(one, held[one.pk], groups=sorted(way.group for way in held[one.pk].groups)) for one in people]


def group_rows(groups: Sequence[Group]) -> list[Row]:
    """Three queries."""
    held = holding.of_groups(groups)
    members = members_of(groups)
    return [Row(one, held[one.pk], members=members.get(one.pk, 0)) for one in groups]


def members_of(groups: Iterable[Group]) -> dict[int, int]:
    """How many active people are in each."""
    rows = User.groups.through.objects.filter(group__in=[group.pk for group in groups], user__is_active=True)
    return dict(rows.values_list("group_id").annotate(number=Count("pk")))


def counted(rows: QuerySet[Any]) -> int:
    """How many, up to one more than the console counts."""
    return rows.order_by()[: COUNT_LIMIT + 1].count()


def workflows() -> list[str]:
    """What the code declares, and what has been granted; a name that shows otherwise than it is cannot be chosen."""
    granted = Grant.objects.filter(scope=Grant.Scope.WORKFLOW).values_list("name", flat=True)
    declared = {one.name for one in registry.workflows()}
    return sorted(declared | {name for name in granted if hostile.plain(name) == name})


# --- who decides ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """Whom one rule of a policy asks."""

    policy: str
    groups: tuple[str, ...]
    users: tuple[int, ...]
    votes: int
    when: str = ""
    excludes_starter: bool = False
    scope: str = Policy.Scope.POLICY

    @property
    def who(self) -> str:
        return " or ".join([*self.groups, *(["people named in it"] if self.users else [])])


def rules(active: Iterable[Policy]) -> Iterator[Asked]:
    """What every policy asks for now: those made of data, and those of the code that none of them replaces."""
    rows = {(row.scope, row.name): row for row in active}
    for row in rows.values():
        yield from _of_row(row)
    for name in declared.names():
        if (Policy.Scope.POLICY, name) not in rows:
            yield _of_code(name)


def _of_row(row: Policy) -> Iterator[Asked]:
    title = row.name if row.scope == Policy.Scope.POLICY else f"{row.get_scope_display().lower()} {row.name}"
    for rule in effective.rules_of(row):
        yield Asked(
            title,
            tuple(rule.groups),
            tuple(person.id for person in rule.users),
            rule.votes,
            rule.when,
            rule.exclude_starter,
            row.scope,
        )


def _of_code(name: str) -> Asked:
    said = declared.named(name)
    when = "only for some calls, which its code tells apart" if said.when else ""
    return Asked(name, said.groups, (), said.votes, when, said.exclude_starter)


def asked_for(what: str, workflow: str) -> list[Asked]:
    """Whom the approvals of a tool ("tool NAME") or under a policy ("policy NAME") ask, in a workflow or in any. One query."""
    kind, _, name = what.partition(" ")
    rows = {(row.scope, row.name): row for row in Policy.objects.filter(active=True)}
    found: list[Asked] = []
    if kind == "tool" and (row := rows.get((Policy.Scope.TOOL, name))):
        return list(_of_row(row))
    named = next(
        (tool.approval or "" for tool in registry.tools() if kind == "tool" and tool.name == name), ""
    )
    policy = name if kind == "policy" else named
    if policy:
        row = rows.get((Policy.Scope.POLICY, policy))
        found += _of_row(row) if row else [_of_code(policy)]
    of_workflow = rows.get((Policy.Scope.WORKFLOW, workflow)) if kind == "tool" else None
    return found + (list(_of_row(of_workflow)) if of_workflow else [])


def approvals() -> list[tuple[str, str]]:
    """What approvals can be of: (value, label) of a choice."""
    tools = [tool.name for tool in registry.tools() if tool.effect]
    return [(f"tool {name}", f"Tool {name}") for name in sorted(tools)] + [
        (f"policy {name}", f"Policy {name}") for name in sorted(declared.names())
    ]


def decides_under(person: User, groups: Iterable[str]) -> list[str]:
    """The policies that name a group of theirs, or them. One query."""
    mine = set(groups)
    return sorted(
        {
            asked.policy
            for asked in rules(Policy.objects.filter(active=True))
            if mine & set(asked.groups) or person.pk in asked.users
        }
    )


def names_group(group: Group) -> list[str]:
    """The policies that let members of this group decide. One query."""
    return sorted(
        {asked.policy for asked in rules(Policy.objects.filter(active=True)) if group.name in asked.groups}
    )


def short_of_people(person: User, *, without: Group | None = None) -> list[str]:
    """Policies whose votes could not come together any more if this person left a group, or all of theirs. Two queries."""
    members: dict[str, set[int]] = {}
    rows = User.groups.through.objects.filter(user__is_active=True)
    for name, user_id in rows.values_list("group__name", "user_id"):
        members.setdefault(name, set()).add(user_id)
    said = []
    for asked in rules(Policy.objects.filter(active=True)):
        before = set(asked.users).union(*(members.get(name, set()) for name in asked.groups))
        stays = [
            members.get(name, set()) - ({person.pk} if without is None or without.name == name else set())
            for name in asked.groups
        ]
        after = set(asked.users).union(*stays)
        if len(after) < asked.votes <= len(before):
            left = {0: "nobody", 1: "only 1 person"}.get(len(after), f"only {len(after)} people")
            wants = "1 vote" if asked.votes == 1 else f"{asked.votes} votes"
            said.append(f"{asked.policy} needs {wants}, and {left} could decide")
    return sorted(set(said))


# --- one person, one group -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Story:
    """What somebody can do, as sentences."""

    one: User | Group
    holding: Holding

    @cached_property
    def capabilities(self) -> list[Held]:
        return self.holding.capabilities

    @property
    def sentence(self) -> str:
        """The whole in a few sentences: what they do everywhere, what in parts, which verbs besides, and what not."""
        whole = [_DOES[held.capability.name] for held in self.capabilities if held.whole]
        said = [f"{_and(whole)} everywhere"] if whole else []
        said += [f"{_and(does)} of {where}" for does, where in self._in_parts()]
        verbs = list(
            dict.fromkeys(
                verb
                for held in self.capabilities
                if not held.whole
                for part in held.parts
                if part.everywhere
                for verb in part.verbs
            )
        )
        if verbs:
            said.append(f"may {'also ' if said else ''}{_and(verbs)}, everywhere")
        if not said:
            return "Nothing: no group and no grant lets them see a run."
        lacking = [_DOES_NOT[held.capability.name] for held in self.capabilities if not held.parts]
        if lacking:
            said.append(f"may not {_or(lacking)}")
        return " ".join(f"{one[0].upper()}{one[1:]}." for one in said)

    def _in_parts(self) -> list[tuple[list[str], str]]:
        """What they do in parts only, places with the same things together; more than a few places are counted."""
        of_place: dict[str, list[str]] = {}
        for held in self.capabilities:
            for where in dict.fromkeys(part.where for part in held.shown if not part.everywhere):
                of_place.setdefault(where, []).append(_DOES[held.capability.name])
        alike: dict[tuple[str, ...], list[str]] = {}
        for where, does in sorted(of_place.items()):
            alike.setdefault(tuple(does), []).append(where)
        found = []
        for together, places in alike.items():
            shown = places[:REACHES]
            if len(places) > REACHES:
                shown.append(f"{len(places) - REACHES} more parts")
            found.append((list(together), _and(shown)))
        return found


#: What holding a capability is, as the predicate of a sentence.
_DOES = {
    Grant.Capability.VIEW: "sees runs",
    Grant.Capability.PAYLOADS: "sees what is in them",
    Grant.Capability.APPROVE: "decides approvals",
    Grant.Capability.OPERATE: "operates runs",
    Grant.Capability.ADMINISTER: "administers",
}
_DOES_NOT = {
    Grant.Capability.VIEW: "see runs",
    Grant.Capability.PAYLOADS: "see what is in them",
    Grant.Capability.APPROVE: "decide approvals",
    Grant.Capability.OPERATE: "operate runs",
    Grant.Capability.ADMINISTER: "administer",
}


#: What the audit calls a change, in words.
_DONE = {
    "person_added": "Added",
    "group_added": "Added",
    "person_switched_off": "Switched off",
    "person_switched_on": "Switched on",
    "sign_in_link_made": "New sign-in link",
    "password_changed": "Chose a password",
    "person_changed": "Changed on the command line",
}


def what_was_done(event: AuditEvent) -> str:
    """A change of a person or group in words: what is new in the facts, or gone from them."""
    old, new = event.old or {}, event.new or {}
    match event.kind:
        case "capability_granted":
            return f"Granted {_names(new, old, 'grants')}"
        case "capability_taken_back":
            return f"Taken back {_names(old, new, 'grants')}"
        case "group_joined":
            return f"Put into {_names(new, old, 'groups')}"
        case "group_left":
            return f"Taken out of {_names(old, new, 'groups')}"
    return _DONE.get(event.kind, event.kind.replace("_", " ").capitalize())


def _names(of: dict[str, Any], without: dict[str, Any], what: str) -> str:
    return ", ".join(sorted(set(of.get(what, ())) - set(without.get(what, ()))))


def reached(scope: str, name: str) -> str:
    """How many runs a part reaches now, in words. Indexes run_by_workflow and run_subject_begins."""
    if scope == Grant.Scope.EVERYTHING:
        return "every run, and all to come"
    if scope == Grant.Scope.WORKFLOW:
        number = counted(Run.objects.filter(workflow=name))
    else:
        begins = Q(StartsWith(Lower(F("subject")), Lower(Value(name)))) & Q(subject__startswith=name)
        number = counted(Run.objects.filter(begins).exclude(subject=""))
    shown = f"{COUNT_LIMIT:,}+" if number > COUNT_LIMIT else f"{number:,}"
    return f"{shown} {'run' if number == 1 else 'runs'} now, and all to come"


# --- what a verb would change --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Preview:
    """What a verb would do now: a sentence, and what else should be known before pressing."""

    sentence: str
    seen: str
    """The version of what it was made from: with it, a form says what was on its page."""
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def preview_grant(one: User | Group, capability: str, scope: str, name: str) -> Preview:
    given = access.CAPABILITIES[capability]
    grant = Grant(capability=capability, scope=scope, name=name)
    where = "everywhere" if scope == Grant.Scope.EVERYTHING else f"in {grant.reach}"
    lines = [f"It reaches {reached(scope, name)}"]
    if given.includes:
        names = " and ".join(f"“{access.CAPABILITIES[part].label}”" for part in given.includes)
        lines.append(f"{names} {'come' if len(given.includes) > 1 else 'comes'} with it, for the same part")
    left_out = [one for one in given.permissions if one in access.WHOLE and one not in holding.COMMAND_LINE]
    if scope != Grant.Scope.EVERYTHING and left_out and capability == Grant.Capability.ADMINISTER:
        lines.append(f"For a part it does not let them {_or([holding.WORDS[one] for one in left_out])}")
    if capability == Grant.Capability.APPROVE:
        lines.append("They decide only approvals whose policy names a group of theirs, or them")
    warnings = []
    held = holding.of_person(one) if isinstance(one, User) else holding.of_group(one)
    wider = [part for part in held.of(capability).parts if part.whole]
    if wider:
        warnings.append(f"It changes nothing now: they hold it everywhere already, {wider[0].way.words}")
    if isinstance(one, User) and not one.is_active:
        warnings.append("They are switched off, and may do nothing until they are switched on")
    sentence = f"{_them(one)} may {_meaning(capability, scope)}, {where}."
    return Preview(sentence, services.version(one, held), tuple(lines), tuple(warnings))


def preview_take_back(one: User | Group, grant: Grant) -> Preview:
    given = access.CAPABILITIES[grant.capability]
    before = holding.of_person(one) if isinstance(one, User) else holding.of_group(one)
    held = replace(before, grants=[(way, other) for way, other in before.grants if other.pk != grant.pk])
    left = held.of(grant.capability)
    lines = []
    if left.whole:
        lines.append(
            f"They keep it everywhere, {left.shown[0].way.words}: taking this back changes nothing now"
        )
    else:
        kept = sorted({f"{part.where}, {part.way.words}" for part in left.parts})
        lines += [f"They keep it in part: {one}" for one in kept[:NAMED]]
        gone = [access.CAPABILITIES[part].label for part in given.includes if not held.of(part).parts]
        if gone:
            lines.append(
                f"{_and([f'“{name}”' for name in gone])} {'go' if len(gone) > 1 else 'goes'} with it"
            )
    where = "everywhere" if grant.scope == Grant.Scope.EVERYTHING else f"in {grant.reach}"
    meaning = _meaning(grant.capability, grant.scope)
    sentence = f"{_them(one)} may no longer {meaning}, {where}."
    return Preview(sentence, services.version(one, before), tuple(lines))


def _meaning(capability: str, scope: str) -> str:
    """What a grant lets people do; of administering, a part contains little."""
    if scope != Grant.Scope.EVERYTHING and capability == Grant.Capability.ADMINISTER:
        return _and([holding.WORDS[permission] for permission in holding.wholly(capability)])
    return access.CAPABILITIES[capability].sentence


def preview_join(person: User, group: Group) -> Preview:
    of_people, of_groups = holding.of_both([person], [group])
    story = Story(group, of_groups[group.pk])
    lines = [f"{held.capability.label}: {_places(held)}" for held in story.capabilities if held.parts]
    if under := names_group(group):
        lines.append(f"Policies that let its members decide: {', '.join(under)}")
    sentence = f"{person.get_username()} holds everything that {group.name} holds, from the next page on."
    seen = services.version(person, of_people[person.pk])
    return Preview(sentence, seen, tuple(lines) or ("The group holds nothing yet",))


def preview_leave(person: User, group: Group) -> Preview:
    before = holding.of_person(person)
    after = Holding(
        {way: names for way, names in before.permissions.items() if way.group_id != group.pk},
        [(way, grant) for way, grant in before.grants if way.group_id != group.pk],
    )
    member = any(way.group_id == group.pk for way in before.groups)
    return Preview(
        f"{person.get_username()} loses what only {group.name} gives them.",
        services.version(person, before),
        tuple(_lost(before, after)) or ("They lose no capability: they hold all of it by another way",),
        tuple(short_of_people(person, without=group)) if member else (),
    )


def preview_switch_off(person: User) -> Preview:
    claims = Item.objects.filter(claimed_by=person).count()
    claimed = {0: "They have claimed nothing", 1: "1 claim of theirs is released, for others to take"}
    lines = (
        "Their sessions end at once, in every browser",
        "Their password and their links are void: coming back takes a new link",
        claimed.get(claims, f"{claims} claims of theirs are released, for others to take"),
        "Groups and grants stay, for the day they come back; their name stays in the history",
    )
    return Preview(
        f"{person.get_username()} signs in no more, and may do nothing.",
        services.version(person),
        lines,
        tuple(short_of_people(person)),
    )


def preview_switch_on(person: User) -> Preview:
    held = holding.of_person(person)
    lines = (
        "You get a link, shown once, with which they choose a password; it holds for three days",
        f"Their groups: {', '.join(way.group for way in held.groups) or 'none'}",
    )
    sentence = f"{person.get_username()} may sign in again, and then: {Story(person, held).sentence}"
    return Preview(sentence, services.version(person, held), lines)


def preview_renew_link(person: User) -> Preview:
    lines = (
        "Their sessions end at once, in every browser, and their password is void",
        "You get a link, shown once, with which they choose a new password; it holds for three days",
        "Earlier links are void",
    )
    sentence = f"{person.get_username()} signs in with the new link only."
    return Preview(sentence, services.version(person), lines)


def _lost(before: Holding, after: Holding) -> Iterator[str]:
    for was, held in zip(before.capabilities, after.capabilities, strict=True):
        if was.parts and not held.parts:
            yield f"No longer: {was.capability.label.lower()} ({_places(was)})"
        elif _places(was) != _places(held):
            yield f"{was.capability.label}: {_places(held)} instead of {_places(was)}"


def _places(held: Held) -> str:
    cell = Cell(held)
    if held.whole:
        return "everywhere"
    said = [f"{cell.some} verbs everywhere"] if cell.some else []
    said += cell.shown
    if cell.more:
        said.append(f"{cell.more} more parts")
    return ", ".join(said)


def _them(one: User | Group) -> str:
    return one.get_username() if isinstance(one, User) else f"Everybody in {one.name}"


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _or(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


# --- who can do this? ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Able:
    """Somebody who can do what was asked for, where and how they can."""

    person: User
    ways: tuple[str, ...]
    """Each a sentence: "everywhere, through operators"."""
    rules: tuple[str, ...] = ()


def able(people: Sequence[User], permission: str, workflow: str, asked: Sequence[Asked]) -> list[Able]:
    """How each of these people can do it. Three queries."""
    held = holding.of_people(people)
    found = []
    for person in people:
        holds = held[person.pk]
        ways = list(dict.fromkeys(_ways(holds, permission, workflow)))
        mine = {way.group for way in holds.groups}
        named = tuple(
            dict.fromkeys(
                _why(one, mine) for one in asked if mine & set(one.groups) or person.pk in one.users
            )
        )
        found.append(Able(person, tuple(ways), named))
    return found


def _why(asked: Asked, mine: set[str]) -> str:
    through = [name for name in asked.groups if name in mine]
    said = f"{asked.policy} names {' and '.join(through)}" if through else f"{asked.policy} names them"
    return f"{said} where {asked.when}" if asked.when and "code" not in asked.when else said


def _ways(holds: Holding, permission: str, workflow: str) -> Iterator[str]:
    if holds.superuser:
        yield "everywhere, as a superuser"
    for way, names in holds.permissions.items():
        if permission in names and not (holds.superuser and not way.group):
            yield f"everywhere, {way.words}"
    capabilities = access.GRANTING.get(permission, frozenset())
    for way, grant in holds.grants:
        if grant.capability not in capabilities:
            continue
        everything = grant.scope == Grant.Scope.EVERYTHING
        if permission in access.WHOLE and not everything:
            continue
        if workflow and grant.scope == Grant.Scope.WORKFLOW and grant.name != workflow:
            continue
        where = "everywhere" if everything else f"in {grant.reach}"
        yield f"{where}, {'by a grant to ' + way.group if way.group else 'by a grant of their own'}"


def who_can(permission: str, workflow: str, asked: Sequence[Asked] | None) -> QuerySet[User]:
    """The people; `asked` narrows to those whom one of these rules names. None: any policy."""
    found = User.objects.filter(holding.people_with([permission], workflow))
    if permission == "approvals.decide_approval":
        # Nobody decides on what they cannot read.
        found = found.filter(holding.people_with(["runs.view_payload"], workflow))
    if asked is None:
        return found
    groups = {name for one in asked for name in one.groups}
    users = {user_id for one in asked for user_id in one.users}
    in_groups = User.groups.through.objects.filter(group__name__in=groups).values("user_id")
    return found.filter(Q(pk__in=in_groups) | Q(pk__in=users))


def verbs() -> list[tuple[str, list[tuple[str, str]]]]:
    """Everything that one can ask for, by capability, for a choice."""
    found: dict[str, list[tuple[str, str]]] = {}
    seen: set[str] = set()
    for one in access.CAPABILITIES.values():
        names = [name for name in one.permissions if name not in seen and name not in holding.COMMAND_LINE]
        seen.update(names)
        found[one.label] = [(name, holding.WORDS[name].capitalize()) for name in names]
    return list(found.items())
