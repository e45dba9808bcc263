"""A workflow that meets every kind of statement of the engine, with tools of a real sandbox."""

from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Group

from runs.workflow import Complete, Goto, Workflow
from tests.chaos.app.workflows import QUICK, Given, z_charge, z_refund

rough = Workflow("rough", input=Given)
asking = Workflow("rough_signal", input=Given)


@rough.step(start=True, timeout=60, retry=QUICK)
def act(ctx: Any) -> Goto:
    ctx.state["refund"] = ctx.call(z_refund, order=ctx.input.order)["id"]
    return Goto(note)


@rough.step(atomic=True, retry=QUICK)
def note(ctx: Any) -> Goto:
    """One row of this database; the name is unique, so that a second execution would fail."""
    Group.objects.create(name=str(ctx.run_id))
    return Goto(wait)


@rough.step(timeout=60, retry=QUICK)
def wait(ctx: Any) -> Complete:
    ctx.sleep(timedelta(seconds=ctx.input.seconds))
    ctx.call(z_charge, order=ctx.input.order)
    return Complete("done")


@asking.step(start=True, retry=QUICK)
def listen(ctx: Any) -> Complete:
    ctx.wait_signal("go", timeout=timedelta(minutes=5))
    ctx.call(z_refund, order=ctx.input.order)
    return Complete("done")
