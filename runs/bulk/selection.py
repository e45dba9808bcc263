"""Which runs a bulk is for: its filter, and the runs that match, read a bounded number of rows at a time.

What narrows by an index is the status, and with it the workflow (`run_by_status`, `run_by_workflow_status`) or the failure group
(`run_by_fingerprint`); everything else is looked for among the rows that these give, a window of them after the other, so that no
query reads all runs.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from django.db.models import Exists, OuterRef, QuerySet, Value
from django.db.models.functions import Lower
from django.urls import reverse
from django.utils.http import urlencode

from runs import access
from runs.models import Bulk, Operation, Run
from runs.models.operation import OpStatus
from runs.search import matching
from runs.selectors import COUNT_LIMIT, PAYLOADS
from runs.states import UNFINISHED, FailureKind, Status

#: Rows of the index that one step of the choosing passes.
WINDOW = 10_000
#: Newest runs of each status among which the page of a new bulk counts; the dry run counts all.
COUNTED_AMONG = 20_000
#: Runs that the page of a new bulk shows as examples.
EXAMPLES = 10

#: A kind of failure that a filter may ask for: any that no workflow declared.
DEAD = "dead_letter"

#: Statuses that a verb is for at all; whether it applies to a run of such a status, the verb itself says.
STATUSES: Mapping[str, tuple[Status, ...]] = {
    Bulk.Verb.RETRY: (Status.FAILED, Status.RETRYING),
    Bulk.Verb.CANCEL: UNFINISHED,
    Bulk.Verb.FORCE_RESUME: tuple(status for status in UNFINISHED if status != Status.CANCELLING),
    Bulk.Verb.PRIORITISE: tuple(status for status in UNFINISHED if status != Status.RUNNING),
}
#: Where the filter names no status: those that people mean by the verb.
MEANT: Mapping[str, tuple[Status, ...]] = {**STATUSES, Bulk.Verb.RETRY: (Status.FAILED,)}


@dataclass(frozen=True)
class Filter:
    """What runs are chosen by, as in the address of the page; "" means any. Moments are in ISO form, of UTC by default."""

    status: str = ""
    workflow: str = ""
    step: str = ""
    tool: str = ""
    failure_kind: str = ""
    fingerprint: str = ""
    subject: str = ""
    queue: str = ""
    created_from: str = ""
    created_to: str = ""
    failed_from: str = ""
    failed_to: str = ""
    q: str = ""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "Filter":
        """The filter that an address or a row holds; what is no part of a filter is left out."""
        named = {field.name: str(given.get(field.name) or "").strip() for field in fields(cls)}
        return cls(**{name: value.replace("\x00", "") for name, value in named.items()})

    def given(self) -> dict[str, str]:
        """What it narrows by."""
        return {name: value for name, value in asdict(self).items() if value}

    def words(self) -> list[tuple[str, str]]:
        """(label, value) of each part, for people."""
        return [(LABELS[name], _word(name, value)) for name, value in self.given().items()]

    def statuses(self, verb: str) -> list[Status]:
        """Statuses in which runs are looked for; none where the filter asks for one that the verb is not for."""
        if not self.status:
            return list(MEANT[verb])
        return [status for status in STATUSES[verb] if status == self.status]

    def among(self, status: Status) -> QuerySet[Run]:
        """Runs of a status, narrowed by what there is an index for."""
        found = Run.objects.filter(status=status)
        if self.fingerprint:
            found = found.filter(fingerprint=self.fingerprint)
        return found.filter(workflow=self.workflow) if self.workflow else found

    def searched(self, user: access.Person) -> Sequence[uuid.UUID] | None:
        """What its search finds of what this person may see; None without a search. One query."""
        return matching(self.q, user) if self.q else None

    def narrowed(self, found: QuerySet[Run], searched: Sequence[uuid.UUID] | None = None) -> QuerySet[Run]:
        """Those of `found` that match all the rest of the filter."""
        for column in ("step", "queue"):
            if value := getattr(self, column):
                found = found.filter(**{column: value})
        if self.failure_kind == DEAD:
            found = found.exclude(failure_kind=FailureKind.DECLARED)
        elif self.failure_kind:
            found = found.filter(failure_kind=self.failure_kind)
        if self.subject:
            found = found.alias(low=Lower("subject"))
            found = found.filter(subject=self.subject, low=Lower(Value(self.subject)))
        if self.tool:
            broken = Operation.objects.filter(
                run_id=OuterRef("pk"),
                step_seq=OuterRef("step_seq"),
                name=self.tool,
                status=OpStatus.FAILED,
                forgotten=False,
            )
            found = found.filter(Exists(broken))
        for name, lookup in MOMENTS.items():
            if value := getattr(self, name):
                found = found.filter(**{lookup: moment(value)})
        return found if searched is None else found.filter(pk__in=searched)


def address(listed: Mapping[str, str]) -> str:
    """Where something can be done to all runs that the list shows for this query; "" where no verb is for them."""
    status = listed.get("status", "")
    given = {name: listed.get(name, "") for name in ("workflow", "subject", "q")}
    if status in ("", DEAD, Status.FAILED):
        given |= {"verb": Bulk.Verb.RETRY.value, "failure_kind": DEAD if status == DEAD else ""}
    elif status in STATUSES[Bulk.Verb.CANCEL]:
        given |= {"verb": Bulk.Verb.CANCEL.value, "status": status}
    else:
        return ""
    return f"{reverse('runs:bulk_new')}?{urlencode({name: value for name, value in given.items() if value})}"


LABELS = {
    "status": "Status",
    "workflow": "Workflow",
    "step": "Step",
    "tool": "Failed at the tool",
    "failure_kind": "Failure",
    "fingerprint": "Failure group",
    "subject": "Subject",
    "queue": "Queue",
    "created_from": "Created from",
    "created_to": "Created until",
    "failed_from": "Ended from",
    "failed_to": "Ended until",
    "q": "Search",
}
MOMENTS = {
    "created_from": "created_at__gte",
    "created_to": "created_at__lt",
    "failed_from": "finished_at__gte",
    "failed_to": "finished_at__lt",
}


def moment(text: str) -> datetime:
    """Raises ValueError for what is none."""
    read = datetime.fromisoformat(text)
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def _word(name: str, value: str) -> str:
    match name:
        case "status":
            return Status(value).label if value in Status else value
        case "failure_kind":
            if value == DEAD:
                return "any that no workflow declared"
            return FailureKind(value).label if value in FailureKind else value
        case "fingerprint":
            return value[:13]
        case "created_from" | "created_to" | "failed_from" | "failed_to":
            return f"{moment(value):%Y-%m-%d %H:%M} UTC"
    return value


# --- a look before anything is made -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Preview:
    """What a filter finds now."""

    number: int
    """Counted up to COUNT_LIMIT + 1, among the newest COUNTED_AMONG of each status."""
    all_counted: bool
    examples: Sequence[Run]

    @property
    def more(self) -> bool:
        return self.number > COUNT_LIMIT


def preview(chosen: Filter, verb: str, visible: QuerySet[Run], user: access.Person) -> Preview:
    """How many runs match, and the newest of them. Three queries (with a search, four)."""
    statuses = chosen.statuses(verb)
    if not statuses:
        return Preview(0, True, [])
    parts = list(_newest(chosen, statuses, visible, chosen.searched(user)))
    counted = _union([part.order_by("-pk").values("pk")[: COUNT_LIMIT + 1] for part in parts])
    number = min(counted.count(), COUNT_LIMIT + 1)
    beyond = _union(
        [
            chosen.among(status).order_by("-pk").values("pk")[COUNTED_AMONG : COUNTED_AMONG + 1]
            for status in statuses
        ]
    )
    narrowed = len(chosen.given()) > bool(chosen.status) + bool(chosen.workflow)
    newest = _union([part.order_by("-pk").values("pk")[:EXAMPLES] for part in parts])
    ids = sorted((row["pk"] for row in newest), reverse=True)[:EXAMPLES]
    examples = Run.objects.defer(*PAYLOADS).filter(pk__in=ids).order_by("-pk")
    return Preview(number, number > COUNT_LIMIT or not narrowed or not beyond.exists(), list(examples))


def _newest(
    chosen: Filter,
    statuses: Sequence[Status],
    visible: QuerySet[Run],
    searched: Sequence[uuid.UUID] | None,
) -> Iterator[QuerySet[Run]]:
    for status in statuses:
        newest = chosen.among(status).order_by("-pk").values("pk")[:COUNTED_AMONG]
        yield chosen.narrowed(visible.filter(pk__in=newest), searched)


def _union(parts: Sequence[QuerySet[Run, Any]]) -> QuerySet[Run, Any]:
    first, *others = parts
    return first.union(*others, all=True) if others else first


# --- the choosing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """A step of the choosing: runs that match, oldest first, with their versions; and where the next one begins."""

    runs: Sequence[tuple[uuid.UUID, int]]
    last: uuid.UUID | None
    """None: there is no next one."""


def window(
    chosen: Filter,
    status: Status,
    after: uuid.UUID | None,
    until: datetime,
    visible: QuerySet[Run],
    user: access.Person,
) -> Window:
    """The next WINDOW runs of a status after one of them, and which of these match. Two queries (with a search, three)."""
    rows = chosen.among(status)
    if after is not None:
        rows = rows.filter(pk__gt=after)
    last = rows.order_by("pk").values_list("pk", flat=True)[WINDOW - 1 : WINDOW].first()
    found = chosen.among(status) & visible
    if after is not None:
        found = found.filter(pk__gt=after)
    if last is not None:
        found = found.filter(pk__lte=last)
    matched = chosen.narrowed(found, chosen.searched(user)).filter(created_at__lte=until).order_by("pk")
    return Window(list(matched.values_list("pk", "event_seq")), last)
