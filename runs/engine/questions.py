"""Answering what people ask back about an open approval, on re-execution of the body that waits for it.

The answerer is the author's own code and uses `ctx` as any step does. What it asks has positions of its own below the request
(`…/question/1/1`), so that the positions of everything after the request are the same whatever was asked, and however far an
earlier attempt came with an answer. Only queries and model requests are allowed: an effect would happen while people still
decide.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runs import codec, waits
from runs.engine.database import cold
from runs.engine.requests import Block, Question, Requests, Respond, Within
from runs.errors import AgentopsError
from runs.models.operation import Kind

if TYPE_CHECKING:
    from runs.engine.visit import Visit


#: What this thread or task answers; siblings of it go on with positions of their own.
WITHIN: ContextVar[Within | None] = ContextVar("agentops_question", default=None)


def refuse_within() -> None:
    """Raise AgentopsError where a question is being answered: called by what changes the world, or waits."""
    if WITHIN.get() is not None:
        raise AgentopsError(
            "a question is answered with queries and model requests; nothing else may happen while people still decide"
        )


def respond(
    visit: Visit, operation_id: uuid.UUID, position: str, on_question: Callable[..., Any] | None
) -> Requests:
    """Answer what is unanswered about the request at `position`; a workflow that answers nothing says so once."""
    approvals: Any = waits.kind(Kind.APPROVAL)
    lease = visit.execution.lease
    asked = yield Block(lambda: cold(lambda unsure: approvals.unanswered(operation_id), lease))
    for one in asked:
        outcome, text = "nobody", ""
        if on_question is not None:
            within = Within(f"{position}/question/{one['number']}")
            question = Question(one["text"], one["by"], one["number"], one["version"])
            try:
                said = yield Respond(on_question, question, within)
                outcome, text = "answered", codec.clean_text(str(said))
            except Exception as error:
                # Recorded and shown to whoever asked: a question that cannot be answered must not end the run.
                outcome, text = "failed", f"{type(error).__name__}: {codec.error_text(error)}"
        answer = _Answer(one["id"], outcome, text)
        yield Block(lambda answer=answer: _record(visit, operation_id, answer))  # type: ignore[misc]


@dataclass(frozen=True)
class _Answer:
    question_id: uuid.UUID
    outcome: str
    text: str


def _record(visit: Visit, operation_id: uuid.UUID, answer: _Answer) -> None:
    approvals: Any = waits.kind(Kind.APPROVAL)
    visit.execution.under_lock(
        lambda run: approvals.answer(run, operation_id, answer.question_id, answer.outcome, answer.text), None
    )
