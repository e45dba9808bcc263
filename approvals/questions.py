"""What people ask back about a request, as rows, as messages of the conversation, and as the agent answers them.

A question is a row, and at once a message of the run's conversation; the request stays open (`approvals.asking` is the verb).
Where the workflow declares who answers (`ctx.call(…, on_question=…)`, `ctx.ask(…, on_question=…)`), the run is woken, its body
comes to the request again, answers what is unanswered, and waits on. Otherwise the agent reads the questions with the decision.

An answer is written once, under the run's lock and the worker's fence, by whoever executes the body. What the answerer asks of
tools and models on its way is recorded as operations of the request, so that a crash before the answer repeats none of it.
"""

import uuid
from typing import Any

from django.db.models import F

from approvals.models import Answer, Approval, Item, ItemKind, Question
from runs import codec, lifecycle, redaction
from runs.clock import Now
from runs.lifecycle import AGENT
from runs.models import Message, Operation, Run

#: Characters of an answer; longer ones are cut, and say so.
ANSWER_LENGTH = 20_000


def say(operation: Operation, number: int, what: str, role: str, text: str) -> None:
    """Make it a message of the conversation, in the request's own visit: later visits read it, replay does not look for it."""
    encoded = codec.encode(text)
    display, sealed = redaction.split(encoded)
    Message.objects.create(
        run_id=operation.run_id,
        step_seq=operation.step_seq,
        position=f"{operation.position}/{what}/{number}",
        attempt_no=operation.attempt_no,
        role=role,
        content=display,
        content_sealed=sealed,
        digest=codec.digest([role, encoded]),
    )


# --- the agent's side: everything here runs under the run's lock ---------------------------------------------------------


def waiting(operation_id: uuid.UUID) -> bool:
    """Whether there is something to answer for a workflow that answers. One query (question_once)."""
    asked = Question.objects.filter(approval_id=operation_id, approval__answers=True)
    return asked.filter(answer__isnull=True).exists()


def unanswered(operation_id: uuid.UUID) -> list[dict[str, Any]]:
    """What is still to be answered, oldest first."""
    asked = Question.objects.filter(approval_id=operation_id, answer__isnull=True).order_by("number")
    return [dict(one) for one in asked.values("id", "number", "text", "by", "version")]


def answer(run: Run, operation_id: uuid.UUID, question_id: uuid.UUID, outcome: str, text: str) -> None:
    """Record what became of a question; nothing where that is recorded already (the commit's answer was lost)."""
    question = Question.objects.select_related("approval__operation").get(pk=question_id)
    if Answer.objects.filter(pk=question_id).exists():
        return
    said = codec.clean_text(text, ANSWER_LENGTH)
    Answer.objects.create(question=question, run_id=run.pk, outcome=outcome, text=said)
    if outcome == Answer.Outcome.ANSWERED:
        say(question.approval.operation, question.number, "answer", "assistant", said)
    # It comes back to those who had read it, or put it away.
    Item.objects.filter(item_id=operation_id, kind=ItemKind.APPROVAL).update(
        changed_at=Now(), snoozed_until=None, snoozed_by="", version=F("version") + 1
    )
    lifecycle.append_event(
        run,
        "question_answered",
        AGENT,
        "",
        approval=str(operation_id),
        question=question.number,
        outcome=outcome,
        digest=codec.digest(said),
    )


def told(approval: Approval) -> list[dict[str, Any]]:
    """What people asked, for the result of the decision. No query where nobody asked."""
    if not approval.asked:
        return []
    asked = Question.objects.filter(approval=approval).select_related("answer").order_by("number")
    return [
        {"text": one.text, "by": one.by, "answer": one.answer.text if hasattr(one, "answer") else ""}
        for one in asked
    ]
