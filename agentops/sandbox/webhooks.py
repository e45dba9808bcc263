"""Webhooks out: signed as Standard Webhooks says, sent again with a growing pause until answered 2xx.

What is due stands in the ledger, so a killed sandbox goes on after its restart. A delivery is marked after
its answer: killed in between, it is sent again under the same message id, as the receiver must expect.
"""

import http.client
import ipaddress
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import urlsplit

from standardwebhooks import Webhook

from agentops.sandbox.ledger import Delivery, Ledger, LedgerClosed

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
ANSWER_TIMEOUT_S = 5.0
SENDERS = 4


class BadTarget(ValueError):
    """The webhook target cannot be used; the message says why."""


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine and nothing else."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_target(url: str) -> str:
    """Return the URL if webhooks may go there. Raises BadTarget: the sandbox talks to this machine only."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme == "http" and is_loopback(parts.hostname or "") and (parts.port or 80) > 0
    except ValueError:
        usable = False
    if not usable or not url.isascii() or any(character.isspace() for character in url):
        raise BadTarget(
            f"Webhooks go to http:// on this machine only (127.0.0.1, ::1, localhost), not to {url!r}."
        )
    return url


class Deliverer:
    """Sends what is due from a few threads, so that one slow answer does not hold up the rest."""

    def __init__(self, ledger: Ledger, signer: Webhook | None, target: Callable[[], str | None]) -> None:
        self._ledger, self._signer, self._target = ledger, signer, target
        self._changed = threading.Condition()
        self._busy: set[int] = set()
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"webhooks-{n}", daemon=True) for n in range(SENDERS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop sending; a request that hangs is left behind (it counts as unanswered)."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=0.5)

    def wake(self) -> None:
        """Look again: something was planned, or the target changed."""
        with self._changed:
            self._changed.notify_all()

    @property
    def ready(self) -> bool:
        """Whether there is a secret to sign with and a target to send to."""
        return self._signer is not None and self._target() is not None

    def wait_until_tried(self, order_id: str, timeout_s: float) -> None:
        """Wait until every delivery for an order was tried at least once, or the time is over."""
        with self._changed:
            self._changed.notify_all()
            if not self.ready:
                return
            self._changed.wait_for(lambda: self._stopping or not self._ledger.untried(order_id), timeout_s)

    def _work(self) -> None:
        try:
            while (delivery := self._next()) is not None:
                self._send(delivery)
        except LedgerClosed:
            return

    def _next(self) -> Delivery | None:
        """The next due delivery that no other sender has; waits for one. None when stopping."""
        with self._changed:
            while not self._stopping:
                pause_s: float | None = None
                if self.ready and (found := self._ledger.next_delivery(besides=self._busy)):
                    delivery, due_at = found
                    pause_s = due_at - time.time()
                    if pause_s <= 0:
                        self._busy.add(delivery.no)
                        return delivery
                self._changed.wait(pause_s)
        return None

    def _send(self, delivery: Delivery) -> None:
        target = self._target()
        if self._signer is None or target is None:
            status, outcome = 0, "no target"
        else:
            status, outcome = _post(target, self._signer, delivery)
        if 200 <= status < 300:
            self._ledger.delivered(delivery, outcome)
        else:
            pause_s = min(FIRST_PAUSE_S * 2 ** min(delivery.attempts, 10), LONGEST_PAUSE_S)
            self._ledger.not_delivered(delivery, outcome, pause_s)
        with self._changed:
            self._busy.discard(delivery.no)
            self._changed.notify_all()


def _post(target: str, signer: Webhook, delivery: Delivery) -> tuple[int, str]:
    """Send one signed request. Returns status (0 = no answer) and a line for the ledger."""
    parts = urlsplit(target)
    now = datetime.now(UTC)
    headers = {
        "Content-Type": "application/json",
        "webhook-id": delivery.message_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signer.sign(delivery.message_id, now, delivery.payload),
    }
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("POST", path, delivery.payload.encode(), headers)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return 0, f"no answer: {type(error).__name__}"
    finally:
        connection.close()
    return status, f"answered {status}"
