"""Charges customers, and prints parcel labels on a printer that a test switches on: a file that is there, or not."""

import os
import time
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

from django.conf import settings
from pydantic import BaseModel

from agentops.sandbox.client import SandboxClient
from runs.engine.context import Context
from runs.workflow import Complete, Goto, Retry, Workflow, tool


class Order(BaseModel):
    order: str


class Charge(BaseModel):
    id: str
    amount: Decimal


checkout = Workflow("checkout", input=Order, title="Check out", subject=lambda given: f"order {given.order}")


def find_charge(order: str, timeout: float) -> Charge | None:
    with SandboxClient(settings.AGENTOPS_SANDBOX_URL, timeout) as provider:
        found = provider.find_charges(f"order {order}")
    return Charge.model_validate(found[0]) if found else None


@tool(
    effect=True, verify=find_charge, settle=timedelta(), retry=Retry(max_attempts=5, base=0.05, maximum=0.1)
)
def charge_customer(
    order: str, amount: Decimal, currency: str, *, idempotency_key: str, timeout: float
) -> Charge:
    """Charge once; the provider ignores keys, but can be asked what it charged for an order."""
    with SandboxClient(settings.AGENTOPS_SANDBOX_URL, timeout) as provider:
        made = provider.charge(
            f"order {order}", amount, currency=currency, order_id=order, key=idempotency_key
        )
    return Charge.model_validate(made)


@checkout.step(start=True)
def charge(ctx: Context) -> Complete:
    ctx.messages.add("customer", f"I take order {ctx.input.order}.")
    receipt = ctx.call(charge_customer, order=ctx.input.order, amount=Decimal("184.50"), currency="EUR")
    return Complete({"charge": receipt.id})


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
