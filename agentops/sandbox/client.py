"""Typed clients of a running sandbox: the endpoints for customers, the ledger for tests."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self

import httpx

type Json = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One thing that happened. `at`: ISO 8601 UTC. `answer`: what the client was to be told."""

    no: int
    at: str
    kind: str
    key: str | None
    order_id: str | None
    reference: str | None
    business_key: str
    digest: str
    request_no: int
    answer: Json


@dataclass(frozen=True)
class Repeat:
    """Something that happened more than once. `what`: a business key or an order id."""

    kind: str
    what: str
    times: int


@dataclass(frozen=True)
class Summary:
    requests: int
    counts: dict[str, int]
    repeated: list[Repeat]
    repeated_by_order: list[Repeat]
    webhooks_delivered: int
    webhooks_pending: int
    webhook_attempts: int


@dataclass(frozen=True)
class Delivery:
    """One planned webhook. `due_at`: Unix seconds; `delivered_at` is None until answered 2xx."""

    no: int
    message_id: str
    order_id: str | None
    payload: Json
    due_at: float
    attempts: int
    delivered_at: str | None
    last_outcome: str | None


class _Client:
    def __init__(self, url: str, timeout_s: float = 10.0) -> None:
        # The sandbox is plain HTTP on this machine: no proxies, and no time spent on loading certificates.
        self._http = httpx.Client(base_url=url, timeout=timeout_s, trust_env=False, verify=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def _json(self, method: str, path: str, **request: Any) -> Json:
        answer: Json = self._http.request(method, path, **request).raise_for_status().json()
        return answer


class SandboxLedger(_Client):
    """Reads what happened and plans what shall go wrong. Errors are httpx's."""

    def entries(self, **equal: str) -> list[Entry]:
        """Entries by kind, key, order_id, reference or business_key; oldest first."""
        return [Entry(**row) for row in self._json("GET", "/ledger", params=equal)["entries"]]

    def count(self, **equal: str) -> int:
        """How often it happened; takes what `entries` takes."""
        return len(self.entries(**equal))

    def summary(self) -> Summary:
        row = self._json("GET", "/ledger/summary")
        return Summary(
            requests=row["requests"],
            counts=row["counts"],
            repeated=[Repeat(r["kind"], r["business_key"], r["times"]) for r in row["repeated"]],
            repeated_by_order=[
                Repeat(r["kind"], r["order_id"], r["times"]) for r in row["repeated_by_order"]
            ],
            webhooks_delivered=row["webhooks"]["delivered"],
            webhooks_pending=row["webhooks"]["pending"],
            webhook_attempts=row["webhooks"]["attempts"],
        )

    def requests(self, **equal: str) -> list[Json]:
        """Requests to the world by endpoint ("POST /refunds") or key, also those that failed on purpose."""
        rows: list[Json] = self._json("GET", "/requests", params=equal)["requests"]
        return rows

    def mails(self, **equal: str) -> list[Json]:
        """Accepted mails by message_id, key or order_id."""
        rows: list[Json] = self._json("GET", "/mails", params=equal)["mails"]
        return rows

    def deliveries(self, **equal: str) -> list[Delivery]:
        """Webhooks by order_id or message_id."""
        return [Delivery(**row) for row in self._json("GET", "/webhooks", params=equal)["deliveries"]]

    def fault_rates(self, chances: dict[str, float], *, endpoint: str = "*", seed: int = 0) -> None:
        """Replace the random misbehaviour of an endpoint; {} ends it."""
        self._json("POST", "/control/faults", json={**chances, "endpoint": endpoint, "seed": seed})

    def script(self, endpoint: str, *faults: str) -> None:
        """Plan the next requests of an endpoint, one text each, used up in order."""
        self._json("POST", "/control/script", json={"endpoint": endpoint, "faults": list(faults)})

    def send_webhooks_to(self, url: str) -> None:
        self._json("POST", "/control/webhooks", json={"url": url})

    def reset(self) -> None:
        self._json("POST", "/control/reset")


class SandboxClient(_Client):
    """The world's endpoints. `key`: Idempotency-Key; `fault`: what the call suffers. Errors are httpx's."""

    def get_order(self, order_id: str) -> Json:
        return self._json("GET", f"/orders/{order_id}")

    def refund(
        self,
        order_id: str,
        amount: Decimal,
        *,
        currency: str = "EUR",
        correlation: str | None = None,
        key: str | None = None,
        metadata: dict[str, str] | None = None,
        fault: str | None = None,
    ) -> Json:
        body = {"order_id": order_id, "amount": str(amount), "currency": currency, "correlation": correlation}
        return self._post("/refunds", body, key, metadata, fault)

    def find_refunds(self, **by: str) -> list[Json]:
        """Refunds by key, order_id or id."""
        found: list[Json] = self._json("GET", "/refunds", params=by)["refunds"]
        return found

    def charge(
        self,
        reference: str,
        amount: Decimal,
        *,
        currency: str = "EUR",
        order_id: str | None = None,
        key: str | None = None,
        metadata: dict[str, str] | None = None,
        fault: str | None = None,
    ) -> Json:
        body = {"reference": reference, "amount": str(amount), "currency": currency, "order_id": order_id}
        return self._post("/charges", body, key, metadata, fault)

    def find_charges(self, reference: str) -> list[Json]:
        found: list[Json] = self._json("GET", "/charges", params={"reference": reference})["charges"]
        return found

    def file_ticket(
        self,
        subject: str,
        text: str = "",
        *,
        order_id: str | None = None,
        key: str | None = None,
        metadata: dict[str, str] | None = None,
        fault: str | None = None,
    ) -> Json:
        return self._post(
            "/tickets", {"subject": subject, "text": text, "order_id": order_id}, key, metadata, fault
        )

    def grant_access(
        self,
        person: str,
        resource: str,
        role: str = "member",
        *,
        key: str | None = None,
        metadata: dict[str, str] | None = None,
        fault: str | None = None,
    ) -> Json:
        return self._post(
            "/access", {"person": person, "resource": resource, "role": role}, key, metadata, fault
        )

    def find_grants(self, **by: str) -> list[Json]:
        """Grants by key or person."""
        found: list[Json] = self._json("GET", "/access", params=by)["grants"]
        return found

    def fetch_page(self, cursor: str = "", *, fault: str | None = None) -> Json:
        return self._json("GET", "/pages", params={"cursor": cursor}, headers=_headers(None, fault))

    def _post(
        self, path: str, body: Json, key: str | None, metadata: dict[str, str] | None, fault: str | None
    ) -> Json:
        body = {name: value for name, value in body.items() if value is not None}
        if metadata:
            body["metadata"] = metadata
        return self._json("POST", path, json=body, headers=_headers(key, fault))


def _headers(key: str | None, fault: str | None) -> dict[str, str]:
    headers = {"Idempotency-Key": key, "X-Sandbox-Fault": fault}
    return {name: value for name, value in headers.items() if value is not None}
