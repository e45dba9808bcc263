"""The numbers in the navigation: what waits for one person, by the page that shows it."""

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db.models import QuerySet, TextField, Value

from approvals.inbox import compiled, worklist
from approvals.requests import four_eyes
from runs import access
from runs.diagnosis.failures import open_groups
from runs.models import Run
from runs.states import Status

#: Counted up to this: "99+".
LIMIT = 99


@dataclass(frozen=True)
class Waiting:
    """What waits for one person, each counted up to LIMIT + 1 (of the inbox: of each kind)."""

    inbox: int
    """All that the inbox shows: approvals, effects in doubt, stuck runs and dead letters that this person may act on."""
    attention: int
    """Runs that only a person can move on."""
    failures: int
    """Groups of failures that nobody has looked at yet."""
    requests: int
    """Guarded verbs that others want to use and this person may decide on."""


def waiting(user: AbstractBaseUser) -> Waiting:
    """What waits for this person. One query, each part of it on the index of the page that shows it."""
    found = compiled.rows(
        user,
        "navigation",
        lambda: _parts(user),
        "SELECT what, count(*) FROM ({}) AS found GROUP BY what",
    )
    counts = dict(found)
    return Waiting(*(counts.get(what, 0) for what in ("item", "run", "failure", "request")))


def _parts(user: AbstractBaseUser) -> QuerySet[Any, Any]:
    """A row for each thing that waits, which says where it is counted."""
    parts: list[tuple[QuerySet[Any, Any], str]] = [
        *((items, "item") for items in worklist.waiting(user)),
        (access.visible(user, Run.objects.filter(status=Status.ATTENTION)), "run"),
        (open_groups(user).order_by(), "failure"),
        (four_eyes.open_for(user).order_by(), "request"),
    ]
    first, *rest = (
        rows.annotate(what=Value(what, output_field=TextField())).values_list("what", flat=True)[: LIMIT + 1]
        for rows, what in parts
    )
    found: QuerySet[Any, Any] = first.union(*rest, all=True)
    return found
