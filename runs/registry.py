"""Which workflows this process knows.

`workflows.py` of every installed app is imported when first asked for; apps named in AGENTOPS_APPS are installed apps too.
"""

import functools
from collections.abc import Iterator

from django.utils.module_loading import autodiscover_modules

from runs import policies
from runs.workflow import TOOLS, WORKFLOWS, Rate, Step, Tool, Workflow


class UnknownWorkflow(LookupError):
    """No installed app declares this workflow, version or step."""


@functools.cache
def load() -> None:
    """Import `workflows.py` of every installed app, once."""
    autodiscover_modules("workflows")


def workflows() -> list[Workflow]:
    """The newest version of each workflow, by name."""
    load()
    return [versions[max(versions)][-1] for _, versions in sorted(WORKFLOWS.items())]


def workflow(name: str, version: int | None = None) -> Workflow:
    """A workflow by name, its newest version unless told. Raises UnknownWorkflow."""
    load()
    versions = WORKFLOWS.get(name)
    if not versions:
        known = ", ".join(sorted(WORKFLOWS)) or "none"
        raise UnknownWorkflow(f"there is no workflow {name!r}; known workflows: {known}")
    if version is None:
        version = max(versions)
    if version not in versions:
        raise UnknownWorkflow(f"workflow {name!r} has no version {version}; known: {sorted(versions)}")
    return versions[version][-1]


def step(name: str, version: int, step_name: str) -> Step:
    """A step of a workflow. Raises UnknownWorkflow."""
    found = workflow(name, version).steps.get(step_name)
    if found is None:
        raise UnknownWorkflow(f"workflow {name!r} version {version} has no step {step_name!r}")
    return found


def tool(name: str) -> Tool:
    """A declared tool by name. Raises UnknownWorkflow."""
    load()
    if name not in TOOLS:
        raise UnknownWorkflow(f"there is no tool {name!r}")
    return TOOLS[name][-1]


def tools() -> list[Tool]:
    load()
    return [declared[-1] for _, declared in sorted(TOOLS.items())]


def capabilities() -> list[str]:
    """What this process can execute, as `workflow@version/step`, the steps of compensations included."""
    load()
    return sorted(
        f"{w.name}@{version}/{name}"
        for by_version in WORKFLOWS.values()
        for version, declared in by_version.items()
        for w in declared[-1:]
        for name in (*w.steps, COMPENSATE)
    )


#: Name of the cursor while compensations run; no step of a workflow may have it.
COMPENSATE = "⟲ compensate"


def timeouts(overrides: policies.Overrides) -> dict[str, float]:
    """Seconds that an attempt may take, by capability."""
    load()
    return {
        f"{w.name}@{version}/{s.name}": policies.for_step(s, overrides).timeout
        for by_version in WORKFLOWS.values()
        for version, declared in by_version.items()
        for w in declared[-1:]
        for s in w.steps.values()
    }


def declared_limits() -> dict[str, dict[str, float]]:
    """Concurrency and rates that the code declares, by key (scope and name), as the SQL functions take them.

    Of several versions the newest says what holds for all of them.
    """
    load()
    return dict(_declared())


def _declared() -> Iterator[tuple[str, dict[str, float]]]:
    for name, by_version in WORKFLOWS.items():
        versions = [declared[-1] for _, declared in sorted(by_version.items())]
        yield from _limit(f"workflow {name}", versions[-1].concurrency, versions[-1].rate)
        steps = {step.name: step for version in versions for step in version.steps.values()}
        for step in steps.values():
            yield from _limit(f"step {name}/{step.name}", step.concurrency, step.rate)
    for name, declared in TOOLS.items():
        yield from _limit(f"tool {name}", declared[-1].concurrency, declared[-1].rate)


def _limit(key: str, concurrency: int | None, rate: Rate | None) -> Iterator[tuple[str, dict[str, float]]]:
    told: dict[str, float] = {}
    if concurrency is not None:
        told["concurrency"] = concurrency
    if rate is not None:
        told |= {"rate": rate.count, "period": rate.per.total_seconds()}
    if told:
        yield key, told
