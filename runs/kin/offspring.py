"""Child runs on the page of their parent: how many stand how, those that need a look first, one page of them."""

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Case, IntegerField, QuerySet, Value, When

from runs import access, content, selectors
from runs.models import Operation, Run
from runs.models.operation import Kind
from runs.states import Status

#: Children on one page.
ROWS = 10
#: What a reader looks for comes first.
ORDER = (
    Status.ATTENTION,
    Status.FAILED,
    Status.CANCELLED,
    Status.RETRYING,
    Status.CANCELLING,
    Status.WAITING,
    Status.RUNNING,
    Status.QUEUED,
    Status.COMPLETED,
)


@dataclass(frozen=True)
class Children:
    """The child runs of one run."""

    total: int
    counts: Sequence[tuple[Status, int]]
    """By status, without those that none has; of the first CHILDREN_COUNTED."""
    rows: Sequence[Run]
    chosen: str
    """The status that `rows` are limited to; "": those that need a look come first."""
    after: uuid.UUID | None
    """Where the next page of the chosen status begins; None where there is none."""

    @property
    def counted_all(self) -> bool:
        return self.total <= selectors.CHILDREN_COUNTED


def children(
    user: access.Person,
    run_id: uuid.UUID,
    version: selectors.Version,
    *,
    status: str = "",
    after: uuid.UUID | None = None,
) -> Children:
    """A page of the child runs of a run, of one status if wanted. One query, for who sees only some of them another one."""
    chosen = status if status in Status.values else ""
    found = access.visible(user, of(run_id)).defer(*selectors.PAYLOADS)
    total, by_status = version.children, version.children_by_status
    if access.condition(user) is not None:
        # Others are not told of, not even by their number.
        by_status = Counter(found.values_list("status", flat=True)[: selectors.CHILDREN_COUNTED])
        total = sum(by_status.values())
    if chosen:
        found = found.filter(status=chosen).order_by("pk")
        if after is not None:
            found = found.filter(pk__gt=after)
    else:
        ranks = [When(status=one, then=Value(rank)) for rank, one in enumerate(ORDER)]
        found = found.annotate(rank=Case(*ranks, output_field=IntegerField())).order_by("rank", "pk")
    rows = content.shown_all(user, found[: ROWS + 1])
    more, rows = len(rows) > ROWS, rows[:ROWS]
    counts = [(one, by_status[one]) for one in ORDER if one in by_status]
    return Children(total, counts, rows, chosen, rows[-1].pk if more and chosen else None)


def of(run_id: uuid.UUID) -> QuerySet[Run]:
    """All child runs of a run, through its waits: no index leads from a parent to them."""
    waits = Operation.objects.filter(run_id=run_id, kind=Kind.CHILD).values("pk")
    return Run.objects.filter(parent_operation_id__in=waits)
