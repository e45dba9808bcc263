"""A failed run beside the last good one of its workflow: where did they part?

Both are read visit by visit. They part where they did something else: another step, another operation, another outcome. That
values differ is told apart: two orders never have the same id. Values are compared by digest and not read, so that a
comparison of large runs costs little. Somebody who may not see payloads sees what both did, and not which values were the same:
beside a run of one's own, with a guess as its input, that would confirm the guess.
"""

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from django.db.models import CharField, Q, QuerySet, TextField
from django.db.models.functions import MD5, Cast

from runs import access, blobs, history
from runs.diagnosis.failures import Person
from runs.models import Attempt, Operation, Run
from runs.models.operation import OpStatus
from runs.selectors import PAYLOADS
from runs.states import Outcome, Status

#: Visits that are read at once, and in all.
WINDOW, MOST = 200, 2000
#: Visits before the one where they part that the page shows.
BEFORE = 10
#: Completed runs among which one of the same version is looked for.
CANDIDATES = 200
#: Other values that are named; more are counted.
NAMED = 20


@dataclass(frozen=True)
class Did:
    """One operation, as it is compared."""

    id: uuid.UUID
    position: str
    kind: str
    name: str
    status: str
    error_type: str
    error: str
    asked: str
    """Digest of the arguments."""
    answered: str | None
    """Digest of the answer as people may see it."""

    @property
    def told(self) -> str:
        return f"{self.kind} {self.name}" if self.name else self.kind


@dataclass(frozen=True)
class Visit:
    """One visit of a run: its last try, and what it did."""

    number: int
    step: str
    tries: int
    outcome: str
    error_type: str
    error: str
    did: Sequence[Did] = ()


@dataclass(frozen=True)
class Parted:
    """Where two runs stopped doing the same."""

    visit: int
    step: str
    """Of the run that is looked at; of the good one where this one did not come so far."""
    good: str
    """What the good run did there: follows “the good run”."""
    this: str
    """Follows “this one”."""
    error: str = ""
    """The text of this run's error there; content of the run."""
    good_operation: uuid.UUID | None = None
    this_operation: uuid.UUID | None = None


@dataclass(frozen=True)
class Other:
    """A value that differs where both did the same."""

    visit: int
    name: str
    asked: bool
    """The arguments; else the answer."""


@dataclass(frozen=True)
class Row:
    """One visit of both, for the page."""

    number: int
    good: Visit | None
    this: Visit | None
    parted: bool


@dataclass
class Comparison:
    this: Run
    good: Run
    same: int = 0
    """Visits that went alike."""
    parted: Parted | None = None
    others: list[Other] = field(default_factory=list)
    others_in_all: int = 0
    rows: list[Row] = field(default_factory=list)
    all_read: bool = True

    @property
    def sentence(self) -> str:
        """What there is to say, without content of the runs."""
        if self.parted is None:
            if not self.all_read:
                return f"The same in the first {self.same:,} visits, which is as far as they are compared."
            return f"Both did the same in all {_visits(self.same)}."
        if self.same:
            begin = f"Same until visit {self.parted.visit}, step {self.parted.step}"
        else:
            begin = f"Different from visit {self.parted.visit} on, step {self.parted.step}"
        return f"{begin}: there the good run {self.parted.good}; this one {self.parted.this}."


def _visits(number: int) -> str:
    return "1 visit" if number == 1 else f"{number:,} visits"


def last_good(user: Person, run: Run) -> Run | None:
    """The newest completed run of the workflow that the person may see, of the same version if a late one is; else of any.

    Two queries, on `run_by_workflow_status`.
    """
    good = access.visible(user, Run.objects.filter(workflow=run.workflow, status=Status.COMPLETED)).exclude(
        pk=run.pk
    )
    newest = list(good.order_by("-pk").values_list("pk", "version")[:CANDIDATES])
    if not newest:
        return None
    chosen = next((key for key, version in newest if version == run.version), newest[0][0])
    return Run.objects.defer(*PAYLOADS).get(pk=chosen)


def compare(this: Run, good: Run) -> Comparison:
    """Read both up to the first difference. Two queries for each WINDOW of visits."""
    made = Comparison(this, good)
    for begin in range(0, MOST, WINDOW):
        ours, theirs = _read(this, good, begin)
        for number in range(begin + 1, begin + WINDOW + 1):
            mine, other = ours.get(number), theirs.get(number)
            if mine is None and other is None:
                return made
            made.parted = _parted(made, number, mine, other)
            made.rows.append(Row(number, other, mine, made.parted is not None))
            del made.rows[: -BEFORE - 1]
            if made.parted is not None:
                return made
            made.same += 1
    made.all_read = False
    return made


def _read(this: Run, good: Run, after: int) -> tuple[Mapping[int, Visit], Mapping[int, Visit]]:
    """Visits of both after this one, WINDOW of each: by the keys of both tables, which begin with run and visit."""
    part = Q(run_id__in=(this.pk, good.pk), step_seq__gt=after, step_seq__lte=after + WINDOW)
    did: dict[tuple[uuid.UUID, int], list[Did]] = defaultdict(list)
    for run_id, visit, *columns in _operations(Operation.objects.filter(part, forgotten=False)):
        did[run_id, visit].append(Did(*columns))
    tries = Attempt.objects.filter(part).order_by("step_seq", "attempt_no")
    found: dict[uuid.UUID, dict[int, Visit]] = {this.pk: {}, good.pk: {}}
    for run_id, visit, number, step, outcome, error_type, error in tries.values_list(
        "run_id", "step_seq", "attempt_no", "step", "outcome", "error_type", "error"
    ):
        # The last one counts: what came before it was tried again.
        found[run_id][visit] = Visit(
            visit, step, number, outcome, error_type, error, did.get((run_id, visit), ())
        )
    return found[this.pk], found[good.pk]


def _operations(rows: QuerySet[Operation]) -> Any:
    answered = MD5(Cast("result", TextField()), output_field=CharField())
    return (
        rows.annotate(answered=answered)
        .order_by("step_seq", "ordinal")
        .values_list(
            "run_id",
            "step_seq",
            "pk",
            "position",
            "kind",
            "name",
            "status",
            "error_type",
            "error",
            "args_digest",
            "answered",
        )
    )


def _parted(made: Comparison, number: int, this: Visit | None, good: Visit | None) -> Parted | None:
    if this is None:
        assert good is not None, "one of them came so far"
        return Parted(number, good.step, f"went on with step {good.step}", f"stands {_stands(made.this)}")
    if good is None:
        return Parted(number, this.step, f"had {_stands(made.good)}", f"went on with step {this.step}")
    if this.step != good.step:
        return Parted(number, this.step, f"went to step {good.step}", f"to step {this.step}")
    for mine, other in zip_longest(this.did, good.did):
        difference = _difference(this, good, mine, other)
        if difference is not None:
            return difference
        _tell_values(made, number, mine, other)
    if _ends(this) != _ends(good):
        return Parted(number, this.step, _ended(good), _ended(this), this.error)
    return None


def _difference(this: Visit, good: Visit, mine: Did | None, other: Did | None) -> Parted | None:
    place = this.number, this.step
    if mine is None or other is None:
        assert mine or other, "one of them did more"
        if other is None:
            assert mine is not None
            return Parted(*place, "did nothing more in it", f"began {mine.told}", mine.error, None, mine.id)
        return Parted(*place, f"went on with {other.told}", _ended(this), this.error, other.id, None)
    if (mine.kind, mine.name, mine.position) != (other.kind, other.name, other.position):
        began = f"began {mine.told}"
        if mine.told == other.told:
            began += f" at another place ({mine.position}, not {other.position})"
        return Parted(*place, f"began {other.told}", began, mine.error, other.id, mine.id)
    if (mine.status, mine.error_type) != (other.status, other.error_type):
        return Parted(*place, _came(other), _came(mine), mine.error, other.id, mine.id)
    return None


def _tell_values(made: Comparison, visit: int, mine: Did, other: Did) -> None:
    for asked, differs in ((True, mine.asked != other.asked), (False, mine.answered != other.answered)):
        if differs:
            made.others_in_all += 1
            if len(made.others) < NAMED:
                made.others.append(Other(visit, mine.told, asked))


def _ends(visit: Visit) -> tuple[str, str]:
    return visit.outcome, visit.error_type


def _came(did: Did) -> str:
    """What came of an operation, as what a run got."""
    match did.status:
        case OpStatus.DONE:
            return f"got an answer from {did.told}"
        case OpStatus.FAILED:
            return f"got {did.error_type or 'an error'} from {did.told}"
        case OpStatus.PENDING:
            return f"does not know what came of {did.told}"
        case OpStatus.RETRY:
            return f"got {did.error_type or 'an error'} from {did.told}, which is tried again"
        case OpStatus.OPEN:
            return f"waits for {did.told}"
    return f"did not wait for {did.told} any more"


def _ended(visit: Visit) -> str:
    outcome = Outcome(visit.outcome).label.lower()
    tries = "" if visit.tries == 1 else f" at try {visit.tries}"
    return f"ended it as {outcome}{tries}" + (f" with {visit.error_type}" if visit.error_type else "")


def _stands(run: Run) -> str:
    return Status(run.status).label.lower()


# --- content: for who may see it -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Content:
    """What both were given where they parted; None where there is none."""

    good: Mapping[str, Any] | None
    this: Mapping[str, Any] | None
    state_good: Mapping[str, Any] | None = None
    state_this: Mapping[str, Any] | None = None
    unreadable: str = ""


def content(made: Comparison) -> Content:
    """Request and answer of the operations at which they parted, and the states with which both began that visit."""
    assert made.parted is not None, "without a difference there is nothing to look at"
    wanted = [key for key in (made.parted.good_operation, made.parted.this_operation) if key]
    rows = Operation.objects.filter(pk__in=wanted).values("pk", "request", "result", "error_type", "error")
    found = {row["pk"]: row for row in rows} if wanted else {}
    good, this = (
        found.get(key) if key else None for key in (made.parted.good_operation, made.parted.this_operation)
    )
    try:
        state_good, state_this = (_state_before(run, made.parted.visit) for run in (made.good, made.this))
    except (blobs.BlobDamaged, history.HistoryDamaged) as error:
        return Content(good, this, unreadable=str(error))
    return Content(good, this, state_good, state_this)


def _state_before(run: Run, visit: int) -> Mapping[str, Any]:
    before = history.restored(run.pk, visit, 0)
    return before.shown if before is not None and isinstance(before.shown, dict) else {}
