"""Prints parcel labels on a printer that a test switches on: a file that is there, or not."""

import os
import time
from pathlib import Path

from pydantic import BaseModel

from runs.engine.context import Context
from runs.workflow import Complete, Goto, Retry, Workflow, tool


class Order(BaseModel):
    order: str


label = Workflow(
    "print_label", input=Order, title="Print a label", subject=lambda given: f"order {given.order}"
)


@tool
def find_address(order: str) -> str:
    return f"{order} Main Street"


@label.step(start=True)
def look_up(ctx: Context) -> Goto:
    ctx.messages.add("customer", f"Please send order {ctx.input.order}.")
    ctx.state["address"] = ctx.call(find_address, order=ctx.input.order)
    return Goto(print_it)


@label.step(retry=Retry(max_attempts=2, base=0.05, maximum=0.1))
def print_it(ctx: Context) -> Complete:
    if not Path(os.environ["LABEL_PRINTER"]).exists():
        raise ConnectionError("the label printer is offline")
    time.sleep(float(os.environ.get("PRINTING_TAKES", "0")))
    return Complete({"printed for": ctx.state["address"]})
