"""The code in README.md and docs/authors.md works as it stands there."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agentops.demo import tools
from agentops.sandbox.client import SandboxLedger
from runs import clock, codec, services
from runs.checks import check_workflows
from runs.lifecycle import Actor
from runs.models import Operation, Run
from runs.models.operation import Kind
from runs.workflow import TOOLS, WORKFLOWS
from tests.demo.test_workflows import begin, vote
from tests.harness.processes import ROOT
from tests.runs.engine.conftest import running_worker, until


def module_of(document: str, folder: Path, **given: Any) -> dict[str, Any]:
    """The Python of a document, executed as one module in `folder`; what it declares is known until the test ends."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)
    path = folder / "workflows.py"
    path.write_text("\n\n".join(blocks))
    namespace: dict[str, Any] = {"__name__": "documented", **given}
    exec(compile(path.read_text(), str(path), "exec"), namespace)  # noqa: S102
    return namespace


@pytest.fixture(autouse=True)
def forget():
    known = {name: dict(versions) for name, versions in WORKFLOWS.items()}, dict(TOOLS)
    yield
    for table, before in zip((WORKFLOWS, TOOLS), known, strict=True):
        table.clear()  # type: ignore[attr-defined]
        table.update(before)  # type: ignore[attr-defined]


def problems() -> list[str]:
    return [str(message) for message in check_workflows()]


def test_the_first_workflow_of_the_readme_runs(world: SandboxLedger, quick: None, tmp_path: Path):
    module_of("README.md", tmp_path)
    assert problems() == []
    with running_worker():
        run = until(begin("late_parcel", order_id="1042"), "waiting")
        vote(run, "olivia")
        run = until(run)
    assert run.status == "completed", run.reason
    assert world.summary().counts == {"refund": 1}


def test_the_authors_guide_runs_from_top_to_bottom(world: SandboxLedger, quick: None, tmp_path: Path):
    rows: list[dict[str, Any]] = []
    module = module_of("docs/authors.md", tmp_path, record_return=lambda **row: rows.append(row))
    assert problems() == []
    module["test_a_paid_return_waits_for_the_parcel"]()
    number = next(n for n in range(1000, 1100) if tools.get_order(str(n), timeout=5).status == "delivered")
    world.script("POST /charges", "close_after")
    with running_worker():
        run = begin("returned_goods", order_id=str(number), amount="60")
        until(run, "waiting")
        vote(run, "olivia")
        until(run, "waiting", also=lambda run: run.step == "settle")
        send_scan(run)
        until(run, "waiting", also=lambda run: Operation.objects.filter(run=run, kind=Kind.TIMER).exists())
        clock.shift(timedelta(minutes=6))
        run = until(run)
        family = until(services.start(Actor("test"), "orders_check", {}).run)
    assert (family.status, family.result) == ("completed", {"checked": 3, "failed": 0}), family.reason
    assert run.status == "completed", run.reason
    assert codec.decode(run.result) == {"arrived": True, "orders": [str(number), "1043"]}
    assert [row["parcel"] for row in rows] == [{"weight": 3}]
    assert world.summary().counts == {"charge": 1}


def send_scan(run: Run) -> None:
    services.receive_signal(
        Actor("test"),
        name="parcel.scanned",
        payload={"weight": 3},
        external_id="1",
        source="carrier",
        run_id=run.pk,
    )
