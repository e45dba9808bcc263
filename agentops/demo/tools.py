"""Tools over the sandbox, one of each kind that a provider can be.

`refund` and `grant_access` honour idempotency keys, `charge` ignores them but can be looked up, `file_ticket` and `send_mail`
offer neither. Each takes the run's id, so that the provider's own records name the run.
"""

import functools
import smtplib
from datetime import timedelta
from decimal import Decimal
from email.message import EmailMessage
from typing import Annotated, Any
from urllib.parse import quote
from uuid import UUID

import httpx
from django.conf import settings
from pydantic import BaseModel, Field

from runs.errors import NotRetryable, Retryable
from runs.workflow import Retry, tool

OrderId = Annotated[str, Field(title="Order number", min_length=1, max_length=40)]
Amount = Annotated[Decimal, Field(title="Amount", gt=0, max_digits=12, decimal_places=2)]
Currency = Annotated[str, Field(title="Currency", pattern=r"^[A-Z]{3}$")]
#: One line: a line break would begin a header of the sender's own.
Line = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\r\n]+$")]
RunId = Annotated[UUID, Field(title="Run", json_schema_extra={"readOnly": True})]

#: The sandbox answers within moments, or never.
SETTLE = timedelta(seconds=10)
PATIENT = Retry(max_attempts=8, base=0.5, maximum=15)


# --- reading ---------------------------------------------------------------------------------------------------------


class Order(BaseModel):
    id: str
    customer: str
    email: str
    currency: str
    amount: Decimal
    status: str
    items: list[dict[str, Any]]


@tool(retry=PATIENT)
def get_order(order_id: OrderId, *, timeout: float) -> Order:
    """The order, its customer and what was bought."""
    return Order.model_validate(_get(f"/orders/{quote(order_id, safe='')}", timeout))


class Page(BaseModel):
    items: list[dict[str, Any]]
    next_cursor: str | None


@tool(retry=PATIENT)
def fetch_page(cursor: str, *, timeout: float) -> Page:
    """A page of the provider's price list; "" is the first."""
    return Page.model_validate(_get("/pages", timeout, {"cursor": cursor}))


@tool(retry=Retry(max_attempts=4, base=0.5, maximum=2))
def fetch_figures(fault: str, *, timeout: float) -> Page:
    """What a report is made of; `fault` asks the sandbox to misbehave (docs/sandbox.md)."""
    return Page.model_validate(_get("/pages", timeout, headers={"X-Sandbox-Fault": fault}))


@tool(retry=PATIENT)
def is_settled(refund_id: str, *, timeout: float) -> bool:
    """Whether the provider has paid a refund out; for the case that its webhook never came."""
    found = _get("/refunds", timeout, {"id": refund_id})["refunds"]
    return any(refund["status"] == "settled" for refund in found)


# --- a provider that honours idempotency keys ------------------------------------------------------------------------


class Refund(BaseModel):
    """A receipt. `amount` is unknown where a person entered nothing but the reference."""

    id: str
    amount: Decimal | None = None


def find_refund(idempotency_key: str, timeout: float) -> Refund | None:
    found = _get("/refunds", timeout, {"key": idempotency_key})["refunds"]
    return Refund.model_validate(found[0]) if found else None


@tool(
    effect=True,
    idempotent=timedelta(hours=24),
    verify=find_refund,  # after the day, and under a cancel, which must not send again
    approval="refunds",
    settle=SETTLE,
    retry=PATIENT,
    from_reference=lambda reference: Refund(id=reference),
    summary=lambda order_id, amount, currency, **_: f"Refund {amount:.2f} {currency} for order {order_id}",
)
def refund(
    order_id: OrderId,
    amount: Amount,
    currency: Currency,
    reason: str,
    run_id: RunId,
    *,
    idempotency_key: str,
    timeout: float,
) -> Refund:
    """Pay money back to the customer of an order. The settlement is announced by a webhook, `refund.settled`."""
    body = {"order_id": order_id, "amount": str(amount), "currency": currency, "reason": reason}
    return Refund.model_validate(_post("/refunds", body, run_id, "refund", timeout, idempotency_key))


class Grant(BaseModel):
    id: str
    person: str
    resource: str
    role: str


def find_grant(idempotency_key: str, timeout: float) -> Grant | None:
    found = _get("/access", timeout, {"key": idempotency_key})["grants"]
    return Grant.model_validate(found[0]) if found else None


@tool(
    effect=True,
    idempotent=timedelta(hours=24),
    verify=find_grant,
    settle=SETTLE,
    retry=PATIENT,
    summary=lambda result, **_: f"Take {result['resource']} away from {result['person']}",
)
def revoke_access(result: dict[str, Any], run_id: RunId, *, idempotency_key: str, timeout: float) -> Grant:
    """Take a grant back: the role "none" ends whatever was granted before. `result` is what `grant_access` returned."""
    body = {"person": result["person"], "resource": result["resource"], "role": "none"}
    return Grant.model_validate(_post("/access", body, run_id, "revoke", timeout, idempotency_key))


@tool(
    effect=True,
    idempotent=timedelta(hours=24),
    verify=find_grant,
    approval="access",
    compensate=revoke_access,
    settle=SETTLE,
    retry=PATIENT,
    summary=lambda person, resource, role, **_: f"Let {person} into {resource} as {role}",
)
def grant_access(
    person: Line, resource: Line, role: Line, run_id: RunId, *, idempotency_key: str, timeout: float
) -> Grant:
    """Let a person into a system. A cancel takes the grant back."""
    body = {"person": person, "resource": resource, "role": role}
    return Grant.model_validate(_post("/access", body, run_id, "grant", timeout, idempotency_key))


# --- a provider that ignores keys, but can be asked ------------------------------------------------------------------


class Charge(BaseModel):
    id: str
    amount: Decimal | None = None


def find_charge(reference: str, timeout: float) -> Charge | None:
    found = _get("/charges", timeout, {"reference": reference})["charges"]
    return Charge.model_validate(found[0]) if found else None


@tool(
    effect=True,
    verify=find_charge,
    settle=SETTLE,
    retry=PATIENT,
    from_reference=lambda reference: Charge(id=reference),
    summary=lambda reference, amount, currency, **_: f"Pay {amount:.2f} {currency} for {reference}",
)
def charge(
    reference: Line,
    amount: Amount,
    currency: Currency,
    order_id: OrderId,
    run_id: RunId,
    *,
    idempotency_key: str,
    timeout: float,
) -> Charge:
    """Pay for something on our account. `reference` is our own and must name this one payment: it is what can be looked up.

    The provider notes the key and does not honour it.
    """
    body = {"reference": reference, "amount": str(amount), "currency": currency, "order_id": order_id}
    return Charge.model_validate(_post("/charges", body, run_id, "charge", timeout, idempotency_key))


# --- providers that can be neither asked nor repeated ----------------------------------------------------------------


class Ticket(BaseModel):
    id: str


@tool(
    effect=True,
    in_doubt="ask",
    settle=SETTLE,
    retry=PATIENT,
    from_reference=lambda reference: Ticket(id=reference),
    summary=lambda subject, **_: f"File a ticket: {subject}",
)
def file_ticket(
    subject: Line, text: str, order_id: OrderId, run_id: RunId, *, idempotency_key: str, timeout: float
) -> Ticket:
    """Tell the back office. Nobody can look a ticket up, so after a lost answer a person is asked.

    The provider notes the key and does not honour it.
    """
    body = {"subject": subject, "text": text, "order_id": order_id}
    return Ticket.model_validate(_post("/tickets", body, run_id, "ticket", timeout, idempotency_key))


class Mail(BaseModel):
    id: str
    """Its Message-ID."""


@tool(
    effect=True,
    in_doubt="ask",
    settle=SETTLE,
    timeout=10,
    retry=PATIENT,
    from_reference=lambda reference: Mail(id=reference),
    summary=lambda to, subject, **_: f"Mail {to}: {subject}",
)
def send_mail(
    to: Line,
    subject: Line,
    text: str,
    order_id: OrderId,
    run_id: RunId,
    *,
    idempotency_key: str,
    timeout: float,
) -> Mail:
    """Mail a customer. A mail that was cut in mid-send cannot be looked up, so a person is asked.

    The Message-ID is made from the key: should the same mail arrive twice, the recipient's server can tell.
    """
    message = _compose(to, subject, text, f"<{idempotency_key}@agentops.example>")
    message["X-Idempotency-Key"] = idempotency_key
    message["X-Order-Id"], message["X-Run-Id"], message["X-Operation"] = order_id, str(run_id), "mail"
    try:
        smtp = smtplib.SMTP(settings.AGENTOPS_SMTP_HOST, settings.AGENTOPS_SMTP_PORT, timeout=timeout)
        smtp.ehlo_or_helo_if_needed()
    except (OSError, smtplib.SMTPException) as error:
        raise Retryable(f"no mail server to hand it to: {error}") from error
    try:
        smtp.send_message(message)
    finally:
        # Closed without a QUIT: whatever were answered to that would say nothing about the mail.
        smtp.close()
    return Mail(id=str(message["Message-ID"]))


def _compose(to: str, subject: str, text: str, message_id: str) -> EmailMessage:
    message = EmailMessage()
    try:
        message["From"], message["To"], message["Subject"] = settings.DEFAULT_FROM_EMAIL, to, subject
        message["Message-ID"] = message_id
        message.set_content(text)
    except (ValueError, UnicodeError) as error:
        raise NotRetryable(f"this cannot be a mail: {error}") from error
    return message


# --- the sandbox over HTTP -------------------------------------------------------------------------------------------


@functools.cache
def _http() -> httpx.Client:
    # One for each process; plain HTTP on this machine needs neither proxies nor certificates.
    return httpx.Client(trust_env=False, verify=False)


def _get(
    path: str, timeout: float, query: dict[str, str] | None = None, headers: dict[str, str] | None = None
) -> Any:
    url = settings.AGENTOPS_SANDBOX_URL + path
    return _answer(_http().get(url, params=query, headers=headers, timeout=timeout))


def _post(
    path: str, body: dict[str, Any], run_id: UUID, operation: str, timeout: float, key: str | None = None
) -> Any:
    body |= {"metadata": {"run_id": str(run_id), "operation": operation}}
    headers = {"Idempotency-Key": key} if key else {}
    url = settings.AGENTOPS_SANDBOX_URL + path
    return _answer(_http().post(url, json=body, headers=headers, timeout=timeout))


def _answer(response: httpx.Response) -> Any:
    """The answer's JSON. An error is raised as httpx's, which the engine knows how to read, in the provider's words."""
    if response.is_success:
        return response.json()
    asked = f"{response.request.method} {response.request.url.path}"
    message = f"{asked} was answered {response.status_code}: {response.text[:500]}"
    raise httpx.HTTPStatusError(message, request=response.request, response=response)
