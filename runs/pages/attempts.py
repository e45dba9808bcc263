"""What the page of one attempt tells: in a sentence how it ended, what it did, and its neighbours."""

import uuid
from collections.abc import Sequence
from typing import Any

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import F, OuterRef, Q, QuerySet
from django.db.models.functions import JSONObject

from agentops.console.times import duration
from runs import selectors
from runs.models import Attempt, LogLine, Message, Operation, Run
from runs.models.operation import WAIT_KINDS, Kind
from runs.pages import timeline
from runs.pages.sentences import Headline, sentence
from runs.states import BY_PEOPLE, Outcome, Status

#: Log lines on one page of an attempt.
LINES = 100


def find(run: Run, visit: int, number: int) -> Attempt | None:
    """An attempt of the run, also the one that goes on, which has no row yet (its `outcome` is empty). One query, or two.

    `earlier` and `later` are its neighbours as `selectors.Place`. The primary key's index, from its place on.
    """
    neighbours = {
        "before": ArraySubquery(_next_to(OuterRef("run_id"), OuterRef("step_seq"), OuterRef("attempt_no"))),
        "after": ArraySubquery(
            _next_to(OuterRef("run_id"), OuterRef("step_seq"), OuterRef("attempt_no"), later=True)
        ),
    }
    found: Any = (
        Attempt.objects.filter(run_id=run.pk, step_seq=visit, attempt_no=number)
        .annotate(**neighbours)
        .first()
    )
    if found is None:
        if not _goes_on(run, visit, number):
            return None
        found = _going_on(run)
        before = [one["row"] for one in _next_to(run.pk, visit, number)]
        found.earlier, found.later = _place(before), None
        return found  # type: ignore[no-any-return]
    found.earlier, found.later = _place(found.before), _place(found.after)
    if found.later is None and _goes_on(run, run.step_seq, run.attempt_no):
        found.later = selectors.Place(run.step_seq, run.attempt_no)
    return found  # type: ignore[no-any-return]


def _goes_on(run: Run, visit: int, number: int) -> bool:
    return run.status == Status.RUNNING and (run.step_seq, run.attempt_no) == (visit, number)


def _going_on(run: Run) -> Attempt:
    return Attempt(
        run_id=run.pk,
        step_seq=run.step_seq,
        attempt_no=run.attempt_no,
        epoch=run.epoch,
        step=run.step,
        outcome="",
        worker_id=run.worker_id,
        started_at=run.attempt_started_at or run.visit_started_at,
    )


def _next_to(run_id: Any, visit: Any, number: Any, *, later: bool = False) -> QuerySet[Attempt, Any]:
    of_run = Attempt.objects.filter(run_id=run_id)
    if later:
        chosen = of_run.filter(step_seq__gte=visit).filter(Q(step_seq__gt=visit) | Q(attempt_no__gt=number))
        chosen = chosen.order_by("step_seq", "attempt_no")
    else:
        chosen = of_run.filter(step_seq__lte=visit).filter(Q(step_seq__lt=visit) | Q(attempt_no__lt=number))
        chosen = chosen.order_by("-step_seq", "-attempt_no")
    return chosen.values(row=JSONObject(visit=F("step_seq"), number=F("attempt_no")))[:1]


def _place(rows: Sequence[dict[str, int]]) -> selectors.Place | None:
    return selectors.Place(rows[0]["visit"], rows[0]["number"]) if rows else None


def operations(attempt: Attempt) -> Sequence[Operation]:
    """What the attempt did, those that a later one sent again included; up to ROWS + 1. Index operation_identity."""
    of_visit = Operation.objects.filter(run_id=attempt.run_id, step_seq=attempt.step_seq)
    mine = Q(attempt_no=attempt.attempt_no) | Q(earlier_sends__contains=[{"attempt": attempt.attempt_no}])
    return list(selectors.in_brief(of_visit.filter(mine)).order_by("ordinal")[: selectors.ROWS + 1])


def messages(attempt: Attempt) -> Sequence[Message]:
    """What was said in it, up to ROWS + 1. Index message_identity."""
    said = Message.objects.filter(
        run_id=attempt.run_id, step_seq=attempt.step_seq, attempt_no=attempt.attempt_no
    )
    return list(said.order_by("id")[: selectors.ROWS + 1])


def lines(attempt: Attempt, after: uuid.UUID | None) -> tuple[Sequence[LogLine], uuid.UUID | None]:
    """A page of what it logged, and where the next one begins. Index log_line_identity."""
    written = LogLine.objects.filter(
        run_id=attempt.run_id, step_seq=attempt.step_seq, attempt_no=attempt.attempt_no
    )
    if after is not None:
        written = written.filter(pk__gt=after)
    found = list(written.order_by("id")[: LINES + 1])
    return found[:LINES], found[LINES - 1].pk if len(found) > LINES else None


def opening(run: Run, attempt: Attempt, done: Sequence[Operation], *, seen: bool) -> Headline:
    """How it ended, and what it changed outside. `seen`: the person may see texts of errors."""
    return Headline(sentence(_ended(attempt, done, seen)), _effects(run, attempt, done))


def _ended(attempt: Attempt, done: Sequence[Operation], seen: bool) -> str:
    if not attempt.outcome:
        return "It goes on at this moment"
    outcome = Outcome(attempt.outcome)
    if outcome in BY_PEOPLE:
        return f"{outcome.label} by {attempt.closed_by}" if attempt.closed_by else outcome.label
    took = duration((attempt.ended_at - attempt.started_at).total_seconds())
    told = f"{outcome.label} after {took}"
    if outcome == Outcome.SUSPENDED:
        asked = [timeline.ASKED[Kind(one.kind)] for one in done if one.kind in WAIT_KINDS]
        return f"{told}: it {asked[-1]}" if asked else told
    if attempt.error_type and outcome != Outcome.SUCCEEDED:
        error = f": {_first_line(attempt.error)}" if seen and attempt.error.strip() else ""
        return (
            f"{told}: {attempt.error_type}{error}"
            if attempt.error_type != outcome.label
            else f"{told}{error}"
        )
    return told


def _first_line(text: str, most: int = 300) -> str:
    line = text.strip().splitlines()[0]
    return line if len(line) <= most else f"{line[:most].rstrip()}…"


def _effects(run: Run, attempt: Attempt, done: Sequence[Operation]) -> str:
    effects = [one for one in done if one.kind == Kind.EFFECT]
    if not effects:
        return "It changed nothing outside." if attempt.outcome else "It has changed nothing outside so far."
    words = {
        "done": "happened",
        "failed": "did not happen",
        "retry": "has not happened so far",
        "pending": "is under way",
        "in_doubt": "may have happened",
    }
    told = [f"{one.name}, which {words[timeline.shown_status(run, one)[1]]}" for one in effects[:5]]
    more = f"; and {len(effects) - 5} more" if len(effects) > 5 else ""
    return f"It sent {'; '.join(told)}{more}."
