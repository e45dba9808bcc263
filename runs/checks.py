"""Mistakes in workflows and tools, found before anything runs: each with file and line."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, get_type_hints

from django.core.checks import CheckMessage, Error, Warning, register

from runs import registry
from runs.workflow import GIVEN, TOOLS, WORKFLOWS, Step, Tool, Workflow


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


def _check_workflow(workflow: Workflow) -> Iterator[CheckMessage]:
    for message, hint, where in workflow.mistakes:
        yield Error(message, hint=hint.capitalize() + ".", obj=where, id="runs.E002")
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
    try:
        source = textwrap.dedent(inspect.getsource(step.fn))
        tree = ast.parse(source)
    except (OSError, SyntaxError):
        return  # no source to read, such as in a zip application: the engine checks at run time
    names = inspect.getclosurevars(step.fn)
    known = {**names.builtins, **names.globals, **names.nonlocals}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Goto" and node.args):
            continue
        target, where = node.args[0], f"{step.file}:{step.line + node.lineno - 1}"
        missing = None
        if isinstance(target, ast.Constant) and isinstance(target.value, str):
            if target.value not in step.workflow.steps:
                missing = target.value
        elif isinstance(target, ast.Name) and target.id not in known and target.id not in step.fn.__code__.co_varnames:
            missing = target.id
        elif isinstance(target, ast.Name) and target.id in known:
            value = known[target.id]
            if isinstance(value, Step) and value.workflow is not step.workflow:
                missing = f"{value.name} (a step of {value.workflow.name})"
            elif not isinstance(value, Step | str):
                missing = f"{target.id} (not a step)"
        if missing is not None:
            yield Error(
                f"step {step.name} of {step.workflow.name} goes to {missing}, which is not a step of it",
                hint=f"Its steps are {', '.join(step.workflow.steps)}.",
                obj=where,
                id="runs.E005",
            )


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
