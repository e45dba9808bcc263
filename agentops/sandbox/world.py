"""What the outside world does with one request: one ledger transaction for each endpoint."""

import sqlite3
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from agentops.sandbox.faults import Fault, Plan
from agentops.sandbox.ledger import Ledger, Row, now_text
from agentops.sandbox.orders import order, order_of_email, page

Amount = Annotated[
    Decimal, Field(gt=0, max_digits=12, decimal_places=2), PlainSerializer(lambda amount: f"{amount:.2f}")
]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Currency = Annotated[str, Field(pattern=r"^[A-Z]{3}$")]


class Metadata(BaseModel):
    """Where a request came from, so that the ledger can say what happened more than once."""

    model_config = ConfigDict(extra="allow")
    run_id: str | None = None
    operation: str | None = None


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")
    metadata: Metadata = Metadata()


class RefundRequest(_Request):
    order_id: Name
    amount: Amount
    currency: Currency = "EUR"
    correlation: str | None = None
    reason: str | None = None


class ChargeRequest(_Request):
    amount: Amount
    currency: Currency = "EUR"
    reference: Name
    order_id: Name | None = None


class TicketRequest(_Request):
    subject: Name
    text: str = ""
    order_id: Name | None = None


class AccessRequest(_Request):
    person: Name
    resource: Name
    role: Name = "member"


class Refused(Exception):
    """The world says no; nothing happened. `error` is a word for programs, `detail` a sentence for people."""

    def __init__(self, status: int, error: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.error, self.detail = status, error, detail


@dataclass(frozen=True)
class Call:
    """One admitted request. `rest` is what follows the endpoint's path ("1042" in /orders/1042)."""

    no: int
    endpoint: str
    rest: str
    query: dict[str, str]
    key: str | None
    body: Row
    body_digest: str
    plan: Plan


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    replayed: bool = False
    """Whether this is the stored answer of an earlier request with the same Idempotency-Key."""


def business_key(run_id: str | None, operation: str | None, key: str | None, otherwise: str) -> str:
    """What should happen once: the run (and operation) that was named, else the key, else e.g. the order."""
    if run_id:
        return f"run:{run_id}/{operation}" if operation else f"run:{run_id}"
    return f"key:{key}" if key else otherwise


class World:
    """The endpoints. Each takes a Call and returns an Answer, or raises Refused or ValidationError."""

    def __init__(self, ledger: Ledger, settle_delay_s: float) -> None:
        self.ledger = ledger
        self.settle_delay_s = settle_delay_s
        self.endpoints: dict[str, Callable[[Call], Answer]] = {
            "GET /orders": self.get_orders,
            "POST /refunds": self.post_refund,
            "GET /refunds": self.get_refunds,
            "POST /charges": self.post_charge,
            "GET /charges": self.get_charges,
            "POST /tickets": self.post_ticket,
            "POST /access": self.post_access,
            "GET /access": self.get_access,
            "GET /pages": self.get_page,
        }

    def get_orders(self, call: Call) -> Answer:
        if call.rest:
            return Answer(200, order(call.rest))
        if "email" in call.query:
            order_id = order_of_email(call.query["email"])
            return Answer(200, {"orders": [order(order_id)] if order_id else []})
        first = _whole_number(call.query, "first", 1000, 10**9)
        limit = _whole_number(call.query, "limit", 20, 100)
        return Answer(200, {"orders": [order(str(number)) for number in range(first, first + limit)]})

    def post_refund(self, call: Call) -> Answer:
        """Refund once per Idempotency-Key; the settlement webhook is planned in the same transaction."""
        wanted = RefundRequest.model_validate(call.body)
        with self.ledger.write() as tx:
            if stored := self._stored(tx, "refund", call):
                return Answer(200, _settled_or_not(stored), replayed=True)
            due_at = time.time() if Fault.WEBHOOK_EARLY in call.plan else time.time() + self.settle_delay_s
            receipt: Row = {
                "id": f"re_{uuid.uuid4().hex[:16]}",
                "order_id": wanted.order_id,
                "amount": f"{wanted.amount:.2f}",
                "currency": wanted.currency,
                "correlation": wanted.correlation,
                "created_at": now_text(),
                "settles_at": due_at,
            }
            self._record(
                tx, "refund", call, wanted, order_id=wanted.order_id, reference=receipt["id"], answer=receipt
            )
            self._plan_webhook(tx, call, receipt, wanted.metadata.run_id, due_at)
        return Answer(201, _settled_or_not(receipt))

    def _plan_webhook(
        self, tx: sqlite3.Connection, call: Call, receipt: Row, run_id: str | None, due_at: float
    ) -> None:
        if Fault.WEBHOOK_OUT_OF_ORDER in call.plan:
            due_at += 1 + 2 * self.settle_delay_s
        names = ("order_id", "amount", "currency", "correlation")
        data = {"refund_id": receipt["id"], "run_id": run_id} | {name: receipt[name] for name in names}
        payload = {"type": "refund.settled", "timestamp": now_text(), "data": data}
        message_id = f"msg_{uuid.uuid4().hex}"
        for _ in range(2 if Fault.WEBHOOK_DUPLICATE in call.plan else 1):
            self.ledger.schedule_delivery(tx, message_id, receipt["order_id"], payload, due_at)

    def get_refunds(self, call: Call) -> Answer:
        names = {"key": "key", "order_id": "order_id", "id": "reference"}
        return Answer(
            200, {"refunds": [_settled_or_not(found) for found in self._found("refund", call, names)]}
        )

    def post_charge(self, call: Call) -> Answer:
        """Charge each time it is asked: an Idempotency-Key is noted and ignored."""
        wanted = ChargeRequest.model_validate(call.body)
        receipt = {
            "id": f"ch_{uuid.uuid4().hex[:16]}",
            "reference": wanted.reference,
            "order_id": wanted.order_id,
            "amount": f"{wanted.amount:.2f}",
            "currency": wanted.currency,
            "created_at": now_text(),
        }
        with self.ledger.write() as tx:
            self._record(
                tx,
                "charge",
                call,
                wanted,
                order_id=wanted.order_id,
                reference=wanted.reference,
                answer=receipt,
            )
        return Answer(201, receipt)

    def get_charges(self, call: Call) -> Answer:
        return Answer(200, {"charges": self._found("charge", call, {"reference": "reference"})})

    def post_ticket(self, call: Call) -> Answer:
        """File a ticket each time it is asked, and offer no way to look it up."""
        wanted = TicketRequest.model_validate(call.body)
        ticket = {"id": f"tk_{uuid.uuid4().hex[:16]}", "subject": wanted.subject, "created_at": now_text()}
        with self.ledger.write() as tx:
            self._record(
                tx, "ticket", call, wanted, order_id=wanted.order_id, reference=ticket["id"], answer=ticket
            )
        return Answer(201, ticket)

    def post_access(self, call: Call) -> Answer:
        """Grant once per Idempotency-Key."""
        wanted = AccessRequest.model_validate(call.body)
        with self.ledger.write() as tx:
            if stored := self._stored(tx, "access", call):
                return Answer(200, stored, replayed=True)
            grant = {"id": f"gr_{uuid.uuid4().hex[:16]}", "created_at": now_text()}
            grant |= {"person": wanted.person, "resource": wanted.resource, "role": wanted.role}
            self._record(tx, "access", call, wanted, order_id=None, reference=wanted.person, answer=grant)
        return Answer(201, grant)

    def get_access(self, call: Call) -> Answer:
        return Answer(200, {"grants": self._found("access", call, {"key": "key", "person": "reference"})})

    def get_page(self, call: Call) -> Answer:
        found = page(call.query.get("cursor", ""))
        if found is None:
            raise Refused(404, "no_such_page", "This cursor was never given out.")
        return Answer(200, found)

    def _stored(self, tx: sqlite3.Connection, kind: str, call: Call) -> Row | None:
        """The stored answer to this key, None without one; raises Refused(422) if its body was another."""
        if call.key is None:
            return None
        for entry in self.ledger.entries(kind=kind, key=call.key):
            if entry["digest"] != call.body_digest:
                raise Refused(422, "key_reused", "This Idempotency-Key was used with another body.")
            answer: Row = entry["answer"]
            return answer
        return None

    def _found(self, kind: str, call: Call, columns: dict[str, str]) -> list[Row]:
        """Answers of the entries that the query asks for; a look-up without a question is refused."""
        if not call.query or call.query.keys() - columns.keys():
            raise Refused(422, "bad_query", f"Look up by {' or '.join(columns)}.")
        wanted = {columns[name]: value for name, value in call.query.items()}
        return [entry["answer"] for entry in self.ledger.entries(kind=kind, **wanted)]

    def _record(
        self,
        tx: sqlite3.Connection,
        kind: str,
        call: Call,
        wanted: _Request,
        *,
        order_id: str | None,
        reference: str,
        answer: Row,
    ) -> None:
        otherwise = f"order:{order_id}" if order_id else f"{kind}:{reference}"
        self.ledger.record(
            tx,
            kind,
            key=call.key,
            order_id=order_id,
            reference=reference,
            business_key=business_key(wanted.metadata.run_id, wanted.metadata.operation, call.key, otherwise),
            body_digest=call.body_digest,
            request_no=call.no,
            answer=answer,
        )


def _settled_or_not(stored: Row) -> Row:
    """A refund's receipt as it reads now: its settlement time (Unix seconds) turned into a status."""
    receipt = dict(stored)
    settles_at: float = receipt.pop("settles_at")
    return receipt | {"status": "settled" if settles_at <= time.time() else "pending"}


def _whole_number(query: dict[str, str], name: str, default: int, most: int) -> int:
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and int(text) <= most):
        raise Refused(422, "bad_query", f"{name} must be a whole number from 0 to {most}.")
    return int(text)
