"""Mistakes in workflows and tools, found before anything runs: each with file and line."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Set
from types import CodeType
from typing import Any, get_type_hints

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from runs import registry, sizes
from runs.workflow import GIVEN, TOOLS, WORKFLOWS, Goto, Step, Tool, Workflow


@register("workflows")
def check_workflows(**kwargs: Any) -> list[CheckMessage]:
    """Declarations that would surprise somebody at run time."""
    registry.load()
    found: list[CheckMessage] = []
    for name, by_version in sorted(WORKFLOWS.items()):
        for version, declared in sorted(by_version.items()):
            if len(declared) > 1:
                places = ", ".join(w.where for w in declared)
                found.append(
                    Error(
                        f"workflow {name} version {version} is declared {len(declared)} times: {places}",
                        hint="Give each version a number of its own.",
                        obj=declared[-1].where,
                        id="runs.E001",
                    )
                )
            found += _check_workflow(declared[-1])
    for name, tools in sorted(TOOLS.items()):
        if len(tools) > 1:
            places = ", ".join(t.where for t in tools)
            found.append(
                Error(
                    f"tool {name} is declared {len(tools)} times: {places}",
                    hint="Policies attach to a tool's name: rename one of them (`@tool(name=…)`).",
                    obj=tools[-1].where,
                    id="runs.E006",
                )
            )
        found += _check_tool(tools[-1])
    return found


@register()
def check_payload_limits(**kwargs: Any) -> list[CheckMessage]:
    """A limit for a kind of payload that does not exist limits nothing."""
    unknown = sorted(set(settings.AGENTOPS_PAYLOAD_LIMITS) - set(sizes.KINDS))
    if not unknown:
        return []
    return [
        Error(
            f"AGENTOPS_PAYLOAD_LIMITS names no kind of payload: {', '.join(unknown)}",
            hint=f"There are {', '.join(sizes.KINDS)}.",
            id="runs.E012",
        )
    ]


def _check_workflow(workflow: Workflow) -> Iterator[CheckMessage]:
    for message, hint, where in workflow.mistakes:
        yield Error(message, hint=f"{hint[:1].upper()}{hint[1:]}.", obj=where, id="runs.E002")
    if not workflow.steps:
        yield Error(
            f"workflow {workflow.name} has no steps",
            hint=f"Declare one with @{workflow.name}.step(start=True).",
            obj=workflow.where,
            id="runs.E003",
        )
    elif workflow.start is None:
        yield Error(
            f"workflow {workflow.name} has no start step",
            hint="Mark one step with start=True.",
            obj=workflow.where,
            id="runs.E003",
        )
    for step in workflow.steps.values():
        if step.atomic and step.is_async:
            yield Error(
                f"step {step.name} of {workflow.name} is atomic and async",
                hint="An atomic step runs in a transaction of Django's connection: make it a plain def.",
                obj=step.where,
                id="runs.E004",
            )
        yield from _check_gotos(step)


def _check_gotos(step: Step) -> Iterator[CheckMessage]:
    """Every `Goto(x)` in the body whose target can be told from the source."""
    fn = inspect.unwrap(step.fn)
    try:
        # Under an `if`, a body of any indentation parses, also one that holds a text with lines further left.
        tree = ast.parse("if True:\n" + _indented(inspect.getsource(fn)))
    except (OSError, SyntaxError):
        return  # no source to read, such as in a zip application: the engine checks at run time
    nonlocals = inspect.getclosurevars(fn).nonlocals
    local = _local_names(fn.__code__) - nonlocals.keys()
    known = {name: value for name, value in {**fn.__globals__, **nonlocals}.items() if name not in local}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and _is_goto(node.func, known)):
            continue
        keywords = [k.value for k in node.keywords if k.arg == "step"]
        for target in [*node.args[:1], *keywords]:
            missing = _missing(step, target, known, local)
            if missing is not None:
                yield Error(
                    f"step {step.name} of {step.workflow.name} goes to {missing}, which is not a step of it",
                    hint=f"Its steps are {', '.join(step.workflow.steps)}.",
                    obj=f"{step.file}:{step.line + node.lineno - 2}",
                    id="runs.E005",
                )


def _indented(source: str) -> str:
    return source if source[:1].isspace() else textwrap.indent(source, " ", lambda line: True)


def _local_names(code: CodeType) -> set[str]:
    """Names that the code, or a function inside it, binds itself: what they hold is known at run time only."""
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return {*code.co_varnames, *code.co_cellvars}.union(*(_local_names(c) for c in inner))


def _is_goto(called: ast.expr, known: Mapping[str, Any]) -> bool:
    if isinstance(called, ast.Name):
        return known.get(called.id) is Goto
    return isinstance(called, ast.Attribute) and called.attr == "Goto"


def _missing(step: Step, target: ast.expr, known: Mapping[str, Any], local: Set[str]) -> str | None:
    """How to name a target that is no step of the workflow; None if it is one, or cannot be told."""
    if isinstance(target, ast.Constant):
        value = target.value
    elif isinstance(target, ast.Name) and target.id not in local:
        if target.id not in known:
            return target.id
        value = known[target.id]
    else:
        return None
    if isinstance(value, Step):
        same = value.workflow is step.workflow
        return (
            None
            if same
            else f"{value.name} (a step of {value.workflow.name} version {value.workflow.version})"
        )
    if isinstance(value, str):
        return None if value in step.workflow.steps else repr(value)
    return f"{ast.unparse(target)} (not a step)"


def _check_tool(tool: Tool) -> Iterator[CheckMessage]:
    try:
        hints = get_type_hints(tool.fn)
    except Exception as error:  # a hint may raise anything: NameError, TypeError, errors of its own
        yield Error(
            f"the type hints of tool {tool.name} cannot be read: {error}",
            hint="Import the names that its hints use.",
            obj=tool.where,
            id="runs.E007",
        )
        return
    untyped = [n for n in tool.signature.parameters if n not in hints and n not in GIVEN]
    if untyped:
        yield Error(
            f"tool {tool.name} has parameters without type hints: {', '.join(untyped)}",
            hint="Arguments are validated, recorded and shown by their types.",
            obj=tool.where,
            id="runs.E007",
        )
    yield from _check_types(tool)
    if "return" not in hints:
        yield Error(
            f"tool {tool.name} does not say what it returns",
            hint="A recorded answer is read back as its declared type; write `-> None` if it returns nothing.",
            obj=tool.where,
            id="runs.E008",
        )
    if "label" in tool.signature.parameters:
        yield Error(
            f"tool {tool.name} has a parameter named label, which ctx.call keeps for itself",
            hint="Rename the parameter.",
            obj=tool.where,
            id="runs.E009",
        )
    if tool.effect and tool.idempotent is not None and "idempotency_key" not in tool.given:
        yield Error(
            f"tool {tool.name} says that its provider is idempotent but takes no idempotency_key",
            hint="Add `*, idempotency_key: str` and send it.",
            obj=tool.where,
            id="runs.E010",
        )
    if tool.effect and tool.verify is None and tool.idempotent is None and not tool.in_doubt:
        yield Warning(
            f"effect {tool.name} can be neither verified nor repeated: each lost answer waits for a person",
            hint='Give it verify= or idempotent=, or say in_doubt="ask" if you know.',
            obj=tool.where,
            id="runs.W001",
        )
    if not tool.effect and (tool.verify or tool.idempotent or tool.approval or tool.compensate):
        yield Error(
            f"tool {tool.name} is a query but declares what only an effect has",
            hint="Add effect=True, or remove verify, idempotent, approval and compensate.",
            obj=tool.where,
            id="runs.E011",
        )
    if tool.summary is not None and not _takes(tool.summary, tool.signature.parameters.keys() - GIVEN):
        yield Error(
            f"the summary of tool {tool.name} cannot be called with the tool's arguments",
            hint="It gets them by name: name those that it shows, and take the others as `**_`.",
            obj=tool.where,
            id="runs.E013",
        )


def _takes(fn: Callable[..., Any], names: Set[str]) -> bool:
    """Whether `fn` can be called with these keyword arguments; True where nobody can tell, as of some builtins."""
    try:
        signature = inspect.signature(fn)
    except ValueError:
        return True
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError:
        return False
    return True


def _check_types(tool: Tool) -> Iterator[CheckMessage]:
    """Types that cannot be validated, or for which no schema can be made, would be a surprise at the first call."""
    for what, make, code in (
        ("arguments", lambda: tool.arguments, "E007"),
        ("answer", lambda: tool.returns, "E008"),
    ):
        try:
            make()
        except Exception as error:  # pydantic raises errors of its own, and whatever a type's own hooks raise
            yield Error(
                f"the {what} of tool {tool.name} cannot be validated: {str(error).splitlines()[0]}",
                hint="Use types that pydantic knows: text, numbers, datetimes, lists, dicts, dataclasses, pydantic models.",
                obj=tool.where,
                id=f"runs.{code}",
            )
