"""Each system check is triggered by a bad declaration, and names the line that it stands on."""

import functools
import inspect
import socket
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.core.checks import CheckMessage, Error, Warning
from pydantic import BaseModel

from runs import checks, registry, workflow
from runs.workflow import Complete, Goto, Workflow, tool

SOMEWHERE_ELSE = "nowhere"
MODULE_STEP: Any = None


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is declared but what the test declares."""
    registry.load()
    workflows: dict[str, Any] = {}
    tools: dict[str, Any] = {}
    for module in (workflow, registry, checks):
        monkeypatch.setattr(module, "WORKFLOWS", workflows)
        monkeypatch.setattr(module, "TOOLS", tools)


def found() -> list[CheckMessage]:
    return checks.check_workflows()


def only() -> CheckMessage:
    """The one message that there is; it names a place and says what to do."""
    messages = found()
    assert len(messages) == 1, messages
    (message,) = messages
    assert message.hint
    assert isinstance(message, Warning if ".W" in (message.id or "") else Error)
    return message


def place(message: CheckMessage) -> int:
    """Line of this file that the message points at."""
    path, _, line = str(message.obj).rpartition(":")
    assert path == __file__
    return int(line)


def line_of(text: str) -> int:
    """The number of the only line of this file that ends with the comment `# text`."""
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()  # type: ignore[arg-type]
    (number,) = [n for n, line in enumerate(lines, start=1) if line.endswith(f"# {text}")]
    return number


def fine(name: str = "fine", **options: Any) -> Workflow:
    made = Workflow(name, **options)

    @made.step(start=True)
    def begin(ctx: Any) -> Goto:
        return Goto(end)

    @made.step
    def end(ctx: Any) -> Complete:
        return Complete()

    return made


def test_a_right_workflow_with_right_tools_is_clean():
    fine()

    class Receipt(BaseModel):
        id: str

    @tool
    def find(order: str, *, timeout: float) -> Receipt | None:
        raise NotImplementedError

    @tool(effect=True, idempotent=timedelta(hours=1))
    def pay(order: str, amount: Decimal = Decimal(0), *, idempotency_key: str) -> Receipt:
        raise NotImplementedError

    @tool(effect=True, in_doubt="ask")
    def mail(to: list[str]) -> None: ...

    assert found() == []


# --- workflows -----------------------------------------------------------------------------------------------------------


def test_e001_a_version_that_is_declared_twice():
    fine()
    fine()
    message = only()
    assert message.id == "runs.E001"
    assert message.msg.count(__file__) == 2
    assert message.msg.startswith("workflow fine version 1 is declared 2 times")


def test_two_versions_of_a_workflow_are_no_mistake():
    fine(version=1)
    fine(version=2)
    assert found() == []


def test_e002_two_steps_of_one_name():
    made = fine()

    @made.step(name="end")  # the second end
    def other(ctx: Any) -> Complete:
        return Complete()

    message = only()
    assert (message.id, place(message)) == ("runs.E002", line_of("the second end"))
    assert message.msg == "workflow fine has two steps named end"
    assert message.hint is not None
    assert message.hint.startswith(f"The other one is at {__file__}:"), "a path keeps its capitals"


def test_e002_two_start_steps():
    made = fine()

    @made.step(start=True)  # the second start
    def other(ctx: Any) -> Complete:
        return Complete()

    message = only()
    assert (message.id, place(message)) == ("runs.E002", line_of("the second start"))
    assert message.msg == "workflow fine has two start steps"


def test_e003_a_workflow_without_steps():
    Workflow("empty")  # no steps
    message = only()
    assert (message.id, place(message)) == ("runs.E003", line_of("no steps"))


def test_e003_a_workflow_without_a_start():
    made = Workflow("headless")  # no start

    @made.step
    def end(ctx: Any) -> Complete:
        return Complete()

    message = only()
    assert (message.id, place(message)) == ("runs.E003", line_of("no start"))
    assert message.msg == "workflow headless has no start step"


def test_e004_an_atomic_step_that_is_async():
    made = Workflow("torn")

    @made.step(start=True, atomic=True)  # atomic and async
    async def begin(ctx: Any) -> Complete:
        return Complete()

    message = only()
    assert (message.id, place(message)) == ("runs.E004", line_of("atomic and async"))


# --- where a step goes ---------------------------------------------------------------------------------------------------


def test_e005_a_goto_to_a_name_that_is_no_step():
    made = Workflow("lost")

    @made.step(start=True)
    def begin(ctx: Any) -> Goto:
        if ctx.state:
            return Goto("begin")
        return Goto("nowhere")  # goes nowhere

    message = only()
    assert (message.id, place(message)) == ("runs.E005", line_of("goes nowhere"))
    assert message.msg == "step begin of lost goes to 'nowhere', which is not a step of it"
    assert message.hint == "Its steps are begin."


def test_e005_a_goto_to_a_step_of_another_workflow():
    other = fine("other").steps["end"]
    made = Workflow("lost")

    @made.step(start=True)
    def begin(ctx: Any) -> Goto:
        return Goto(other)  # goes abroad

    message = only()
    assert (message.id, place(message)) == ("runs.E005", line_of("goes abroad"))
    assert "end (a step of other version 1)" in message.msg


def test_e005_a_goto_to_something_that_is_no_step():
    made = Workflow("lost")

    @made.step(start=True)
    def begin(ctx: Any) -> Goto:
        return Goto(Decimal)  # type: ignore[arg-type]  # goes to a type

    message = only()
    assert (message.id, place(message)) == ("runs.E005", line_of("goes to a type"))
    assert "Decimal (not a step)" in message.msg


def test_e005_a_goto_to_a_name_that_does_not_exist():
    made = Workflow("lost")

    @made.step(start=True)
    def begin(ctx: Any) -> Goto:
        return Goto(misspelt)  # type: ignore[name-defined]  # noqa: F821  # goes astray

    message = only()
    assert (message.id, place(message)) == ("runs.E005", line_of("goes astray"))
    assert "goes to misspelt" in message.msg


def test_e005_a_goto_by_a_constant_by_keyword_and_by_module():
    made = Workflow("lost")

    @made.step(start=True)
    def begin(ctx: Any) -> Goto:
        if ctx.state:
            return Goto(SOMEWHERE_ELSE)
        if ctx.input:
            return Goto(step="gone")
        return workflow.Goto("away")

    assert [message.id for message in found()] == ["runs.E005"] * 3


def test_e005_a_goto_in_a_body_under_a_decorator_and_inside_a_text():
    made = Workflow("lost")

    def decorated(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def inner(ctx: Any) -> Any:
            return fn(ctx)

        return inner

    @made.step(start=True)
    @decorated
    def begin(ctx: Any) -> Goto:
        ctx.log("""
text that stands further left than the code, such as Goto("text")
""")
        return Goto("nowhere")  # goes nowhere under a decorator

    message = only()
    assert (message.id, place(message)) == ("runs.E005", line_of("goes nowhere under a decorator"))


def test_a_goto_whose_target_is_known_at_run_time_only_is_no_mistake():
    made = Workflow("free")

    @made.step(start=True)
    def begin(ctx: Any) -> Goto:
        chosen = ctx.state["next"]
        SOMEWHERE_ELSE = ctx.state["other"]

        def later() -> Goto:
            return Goto(inner_target)

        inner_target = ctx.state["third"]
        ctx.log(later())
        return Goto(chosen) if ctx.input else Goto(SOMEWHERE_ELSE)

    assert found() == []


def test_a_goto_inside_an_inner_function_sees_the_names_of_the_module(monkeypatch: pytest.MonkeyPatch):
    made = Workflow("nested")

    @made.step(start=True)
    def begin(ctx: Any) -> Goto:
        def choose() -> Goto:
            return Goto(MODULE_STEP)

        return choose()

    @made.step
    def end(ctx: Any) -> Complete:
        return Complete()

    monkeypatch.setitem(globals(), "MODULE_STEP", end)
    assert found() == []


def test_another_thing_that_is_called_goto_is_none_of_ours():
    made = Workflow("other")

    @made.step(start=True)
    def begin(ctx: Any) -> Complete:
        def Goto(where: str) -> Complete:
            return Complete(where)

        return Goto("nowhere")

    assert found() == []


def test_a_step_without_source_is_left_to_the_engine():
    made = Workflow("typed_in")
    names: dict[str, Any] = {"Goto": Goto}
    exec("def begin(ctx):\n    return Goto('nowhere')", names)  # noqa: S102
    made.step(start=True)(names["begin"])
    assert found() == []


# --- tools ---------------------------------------------------------------------------------------------------------------


def test_e006_two_tools_of_one_name():
    @tool
    def find() -> None: ...

    @tool(name="find")  # the second find
    def other() -> None: ...

    message = only()
    assert (message.id, place(message)) == ("runs.E006", line_of("the second find"))
    assert message.msg.count(__file__) == 2


def test_e007_a_parameter_without_type():
    @tool  # no type
    def find(order, *, timeout) -> None: ...

    message = only()
    assert (message.id, place(message)) == ("runs.E007", line_of("no type"))
    assert message.msg == "tool find has parameters without type hints: order"


def test_e007_a_type_that_cannot_be_read():
    @tool  # unreadable
    def find(order: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    message = only()
    assert (message.id, place(message)) == ("runs.E007", line_of("unreadable"))
    assert "name 'Missing' is not defined" in message.msg


def test_e007_a_type_that_cannot_be_validated():
    @tool  # a socket
    def find(line: socket.socket) -> None: ...

    message = only()
    assert (message.id, place(message)) == ("runs.E007", line_of("a socket"))
    assert "the arguments of tool find cannot be validated" in message.msg


def test_e008_a_tool_that_does_not_say_what_it_returns():
    @tool  # returns something
    def find(order: str): ...

    message = only()
    assert (message.id, place(message)) == ("runs.E008", line_of("returns something"))


def test_e008_an_answer_that_cannot_be_validated():
    @tool  # returns a socket
    def find() -> socket.socket: ...  # type: ignore[empty-body]

    message = only()
    assert (message.id, place(message)) == ("runs.E008", line_of("returns a socket"))


def test_e009_a_parameter_that_the_call_keeps_for_itself():
    @tool  # takes a label
    def find(label: str) -> None: ...

    message = only()
    assert (message.id, place(message)) == ("runs.E009", line_of("takes a label"))


def test_e010_an_idempotent_provider_that_gets_no_key():
    @tool(effect=True, idempotent=timedelta(hours=1))  # no key
    def pay(order: str) -> None: ...

    message = only()
    assert (message.id, place(message)) == ("runs.E010", line_of("no key"))


@pytest.mark.parametrize(
    "options",
    [
        {"verify": lambda: None},
        {"idempotent": timedelta(hours=1)},
        {"approval": "refunds"},
        {"compensate": "undo"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_e011_a_query_that_declares_what_only_an_effect_has(options: dict[str, Any]):
    @tool(**options)  # a query with airs
    def find(order: str) -> None: ...

    message = only()
    assert (message.id, place(message)) == ("runs.E011", line_of("a query with airs"))


def test_e013_a_summary_that_cannot_take_the_arguments():
    @tool(effect=True, idempotent=timedelta(hours=1), summary=lambda arguments: "")  # takes them as one
    def pay(order: str, amount: int, *, idempotency_key: str) -> None: ...

    message = only()
    assert (message.id, place(message)) == ("runs.E013", line_of("takes them as one"))


@pytest.mark.parametrize(
    "summary",
    [lambda order, amount: "", lambda order, **_: "", lambda **_: "", "{order}".format],
    ids=["all", "one", "none", "builtin"],
)
def test_a_summary_names_what_it_shows(summary: Callable[..., str]):
    @tool(effect=True, idempotent=timedelta(hours=1), summary=summary)
    def pay(order: str, amount: int, *, idempotency_key: str) -> None: ...

    assert found() == []


def test_w001_an_effect_whose_lost_answer_nobody_can_find():
    @tool(effect=True)  # nobody told
    def post(letter: str) -> None: ...

    message = only()
    assert (message.id, place(message)) == ("runs.W001", line_of("nobody told"))
    assert message.hint is not None
    assert 'in_doubt="ask"' in message.hint
