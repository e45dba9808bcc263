"""What is content, and the one way in which it is kept from people who may not see it.

A person without `runs.view_payload` for a run sees where it stands: status, step, times, kinds and types of errors, keys and
references of providers, who did what. What was said, asked, sent, answered and computed is content. `CONTENT` names it, field by
field; `shown` blanks these fields of a row that has been read, before anything is made of it, so that no sentence, title or
line that is composed later can tell them. Blanked rows are copies for reading: saving one is refused.

What is read without models (SQL, JSON made by the database) passes `words` instead.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from django.db.models import Model

from runs import access
from runs.models import Run


class Hidden(str):
    """Stands in the place of content that a person may not see. Templates show it with where to ask (`|visible`)."""

    __slots__ = ()


HIDDEN = Hidden("hidden from you")

#: By model, the fields that are content; annotations of queries that are made from them are named, too. A new field of one of
#: these models is in here, or in `OPEN` of tests/security/test_content.py.
CONTENT: Mapping[str, frozenset[str]] = {
    label: frozenset(fields.split())
    for label, fields in {
        "runs.run": "input state result external reason",
        "runs.attempt": "error traceback trace_end state_after",
        "runs.operation": "request approved response result error",
        "runs.message": "content",
        "runs.logline": "text data",
        "runs.signal": "payload",
        "runs.event": "reason data",
        "runs.evidence": "name body",
        "runs.failuregroup": "message",
        # Of those about runs and their failures; what was said of limits and policies is for all who see these.
        "runs.auditevent": "reason",
        "approvals.approval": "title why payload reason schema",
        "approvals.approvalversion": "payload reason",
        "approvals.vote": "reason",
        "approvals.comment": "text",
        "approvals.question": "text",
        "approvals.answer": "text",
        "approvals.request": "arguments facts reason outcome",
        "approvals.requestvote": "reason",
    }.items()
}


def words(seen: bool, text: str) -> str:
    """The text for somebody who may see it; for others the marker, unless there is nothing to hide."""
    return text if seen or not text else HIDDEN


def shown[M: Model](user: access.Person, row: M, run: Run | None = None) -> M:
    """The row as this person may see it: itself, or a copy without its content. `run` is the one that it belongs to.

    Of what belongs to no single run (None), the content is for who may see that of all.
    """
    of = row if isinstance(row, Run) else run
    seen = access.everywhere(user, "runs.view_payload") if of is None else access.may_see_payloads(user, of)
    return row if seen else _blank(row)


def shown_all[M: Model](user: access.Person, rows: Iterable[M], run: Run | None = None) -> list[M]:
    """The same for rows of one run, or for runs."""
    return [shown(user, row, run) for row in rows]


def like[M: Model](run: Run, rows: Iterable[M]) -> list[M]:
    """Rows that belong to a run, as the run itself is shown."""
    return [_blank(row) for row in rows] if is_hidden(run) else list(rows)


def is_hidden(row: Model) -> bool:
    """Whether the row is a copy without its content."""
    return "_hidden" in row.__dict__


def _blank[M: Model](row: M) -> M:
    if is_hidden(row):
        return row
    made = copy.copy(row)
    made._state = copy.copy(row._state)
    made.__dict__["_hidden"] = True
    for name in CONTENT[row._meta.label_lower]:
        # Also what was not read: reading it later would show it.
        field = next((one for one in row._meta.concrete_fields if one.attname == name), None)
        if name in row.__dict__ or field is not None:
            made.__dict__[name] = HIDDEN if row.__dict__.get(name, HIDDEN) else row.__dict__[name]
    made.save = _refuse  # type: ignore[method-assign]
    made.refresh_from_db = _refuse  # type: ignore[method-assign]
    return made


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError("a row without its content is for reading")


__all__: Sequence[str] = (
    "CONTENT",
    "HIDDEN",
    "Hidden",
    "is_hidden",
    "like",
    "shown",
    "shown_all",
    "words",
)
