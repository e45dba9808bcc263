"""Asking back: the agent answers while the request stays open, and asks its model once, whatever dies."""

import uuid
from typing import Any

import pytest

from approvals import asking, waits
from approvals.models import Answer, Approval, Question
from approvals.services import decide
from runs.lifecycle import Actor
from runs.models import Message, Operation, Run
from runs.models.operation import Kind
from runs.services import start
from runs.workflow import Complete, Goto, Workflow, tool
from tests import factories
from tests.harness.waiting import wait_until
from tests.runs.engine.conftest import until
from tests.runs.engine.flows import QUICK

pytestmark = pytest.mark.usefixtures("worker")

looked: list[str] = []


@tool
def find_out(what: str) -> str:
    looked.append(what)
    return f"nothing about {what}"


@tool(effect=True, in_doubt="ask")
def shout(text: str) -> str:
    raise AssertionError("an answer has no effect")


answering = Workflow("t_answering", version=1)
silent = Workflow("t_silent", version=1)
acting = Workflow("t_acting", version=1)


@answering.step(start=True, retry=QUICK)
def ask(ctx: Any) -> Complete:
    def on_question(question: Any) -> str:
        ctx.messages.add("assistant", f"thinking about {question.text}")
        return f"{question.by}: {ctx.call(find_out, what=question.text)}"

    before = ctx.call(find_out, what="before")
    decision = ctx.ask("Go on?", {"n": 1}, on_question=on_question)
    after = ctx.call(find_out, what="after")
    return Complete([decision.verdict, [one["answer"] for one in decision.questions], before, after])


@silent.step(start=True)
def ask_silently(ctx: Any) -> Goto:
    decision = ctx.ask("Go on?", {"n": 1})
    ctx.state["told"] = [one["text"] for one in decision.questions]
    return Goto(end)


@silent.step
def end(ctx: Any) -> Complete:
    return Complete([ctx.state["told"], [one["content"] for one in ctx.messages]])


@acting.step(start=True)
def act(ctx: Any) -> Complete:
    return Complete(ctx.ask("Go on?", {}, on_question=lambda question: ctx.call(shout, text="x")).verdict)


@pytest.fixture(autouse=True)
def nothing_looked_up() -> None:
    looked.clear()


def begin(workflow: str) -> tuple[Run, Approval]:
    run = start(Actor("system"), workflow, {}).run
    until(run, "waiting")
    return run, Approval.objects.get(run=run)


def question(approval: Approval, text: str, person: Actor) -> uuid.UUID:
    token = uuid.uuid4()
    given: dict[str, Any] = {
        "version": approval.version,
        "digest": approval.digest,
        "text": text,
        "token": token,
    }
    assert asking.ask(person, approval.pk, **given).changed
    assert not asking.ask(person, approval.pk, **given).changed, "the same form again asks nothing"
    return token


def answered(token: uuid.UUID) -> Answer:
    wait_until(lambda: Answer.objects.filter(pk=token).exists(), 15, "the question is answered")
    return Answer.objects.get(pk=token)


def approve(approval: Approval, person: Actor) -> None:
    decide(person, approval.pk, version=approval.version, digest=approval.digest, verdict="approve")


def test_the_agent_answers_and_the_request_stays_open_and_what_follows_is_as_if_nobody_had_asked() -> None:
    run, approval = begin("t_answering")
    olga = factories.operator("olga")
    first = answered(question(approval, "why?", olga))
    second = answered(question(approval, "really?", olga))
    assert (first.outcome, first.text) == ("answered", "olga: nothing about why?")
    assert second.text == "olga: nothing about really?"
    approval.refresh_from_db()
    assert (approval.state, approval.asked) == ("open", 2)
    until(run, "waiting")
    approve(approval, olga)
    assert until(run).result == [
        "approved",
        [first.text, second.text],
        "nothing about before",
        "nothing about after",
    ]
    assert looked == ["before", "why?", "really?", "after"]
    positions = Operation.objects.filter(run=run, kind=Kind.QUERY).values_list("position", flat=True)
    assert sorted(positions) == ["1", "2/question/1/1", "2/question/2/1", "3"]


def test_a_failure_between_the_answerers_work_and_its_answer_neither_loses_nor_repeats_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, approval = begin("t_answering")
    recorded, cut = waits.ApprovalWait.answer, [1]

    def lost(*given: Any) -> None:
        if cut and cut.pop():
            raise RuntimeError("cut off before the answer was recorded")
        recorded(*given)

    monkeypatch.setattr(waits.ApprovalWait, "answer", staticmethod(lost))
    token = question(approval, "why?", factories.operator("olga"))
    assert answered(token).outcome == "answered"
    until(run, "waiting")
    assert Answer.objects.count() == 1
    approve(approval, factories.operator())
    assert until(run).result[0] == "approved"
    said = Message.objects.filter(run_id=run.pk).values_list("role", "content")
    assert sorted(said) == [
        ("assistant", "olga: nothing about why?"),
        ("assistant", "thinking about why?"),
        ("user", "why?"),
    ]


def test_a_workflow_that_answers_nothing_reads_the_questions_with_the_decision() -> None:
    run, approval = begin("t_silent")
    token = question(approval, "why?", factories.operator("olga"))
    assert not Answer.objects.exists()
    assert Question.objects.get(pk=token).number == 1
    approve(approval, factories.operator())
    assert until(run).result == [["why?"], ["why?"]]


def test_an_answerer_that_would_change_the_world_is_refused_and_the_run_goes_on_waiting() -> None:
    run, approval = begin("t_acting")
    answer = answered(question(approval, "why?", factories.operator("olga")))
    assert answer.outcome == "failed"
    assert "nothing else may happen while people still decide" in answer.text
    until(run, "waiting")
    approve(approval, factories.operator())
    assert until(run).result == "approved"
