"""Workflows for tests that kill and stop processes; their tools talk to a real sandbox."""

import http.client
import json
import os
import time
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
from django.conf import settings
from pydantic import BaseModel

from runs.failpoints import failpoint
from runs.models import Blob
from runs.models.run import new_id
from runs.workflow import Complete, Goto, Retry, Workflow, tool

QUICK = Retry(max_attempts=20, base=0.1, maximum=0.5)


def post(path: str, body: dict[str, Any], key: str = "") -> dict[str, Any]:
    """POST that can be stopped in the middle: after the request was written, before the answer is read."""
    address = urlsplit(settings.AGENTOPS_SANDBOX_URL)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
    connection.request("POST", path, json.dumps(body), headers)
    failpoint("tool.in_request")
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if answer.status >= 400:
        request = httpx.Request("POST", settings.AGENTOPS_SANDBOX_URL + path)
        raise httpx.HTTPStatusError("refused", request=request, response=httpx.Response(answer.status))
    found: dict[str, Any] = json.loads(content)
    return found


class Given(BaseModel):
    order: str = "1"
    kind: str = "refund"
    seconds: float = 0.0


@tool(effect=True, idempotent=timedelta(hours=1), retry=QUICK)
def z_refund(order: str, *, idempotency_key: str) -> dict[str, Any]:
    return post("/refunds", {"order_id": order, "amount": "1.00", "currency": "EUR"}, idempotency_key)


def find_charge(order: str, idempotency_key: str) -> dict[str, Any] | None:
    answer = httpx.get(
        f"{settings.AGENTOPS_SANDBOX_URL}/charges", params={"reference": idempotency_key}, timeout=5
    )
    answer.raise_for_status()
    found = answer.json()["charges"]
    return found[0] if found else None


@tool(effect=True, verify=find_charge, settle=timedelta(seconds=1), retry=QUICK)
def z_charge(order: str, *, idempotency_key: str) -> dict[str, Any]:
    body = {"order_id": order, "amount": "1.00", "currency": "EUR", "reference": idempotency_key}
    return post("/charges", body)


@tool(effect=True, in_doubt="ask", settle=timedelta(seconds=1), retry=QUICK)
def z_ticket(order: str) -> dict[str, Any]:
    return post("/tickets", {"subject": f"order {order}", "order_id": order})


TOOLS = {"refund": z_refund, "charge": z_charge, "ticket": z_ticket}

zombie = Workflow("z_effect", input=Given)


@zombie.step(start=True, timeout=120)
def act(ctx: Any) -> Complete:
    ctx.call(TOOLS[ctx.input.kind], order=ctx.input.order)
    return Complete("done")


suicidal = Workflow("z_suicide", input=Given)


@suicidal.step(start=True, retry=Retry(max_attempts=50))
def die(ctx: Any) -> Complete:
    os._exit(1)


innocent = Workflow("z_innocent", input=Given)


@innocent.step(start=True)
def before(ctx: Any) -> Goto:
    ctx.call(z_refund, order=ctx.input.order)
    return Goto(linger)


@innocent.step
def linger(ctx: Any) -> Complete:
    time.sleep(ctx.input.seconds)
    return Complete("lived")


atomic = Workflow("z_atomic", input=Given)


@atomic.step(start=True, atomic=True)
def note(ctx: Any) -> Goto:
    """One row of this database for each execution that counts."""
    Blob.objects.create(sha256=f"{ctx.run_id} {new_id()}", body=b"x")
    return Goto(end)


@atomic.step
def end(ctx: Any) -> Complete:
    return Complete("done")


leaf = Workflow("z_leaf", input=Given)


@leaf.step(start=True)
def refund_a_part(ctx: Any) -> Complete:
    time.sleep(ctx.input.seconds)
    ctx.call(z_refund, order=ctx.input.order)
    return Complete(ctx.input.order)


family = Workflow("z_family", input=Given)


@family.step(start=True)
def join(ctx: Any) -> Complete:
    """Children that each refund once; after they have ended, one refund more."""
    parts = [{"order": f"{ctx.input.order}.{n}", "seconds": ctx.input.seconds * n} for n in range(3)]
    done = ctx.map(leaf, parts).results
    ctx.call(z_refund, order=f"{ctx.input.order} joined")
    return Complete(done)
