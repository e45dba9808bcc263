"""The sandbox as one process: ledger, HTTP, SMTP and webhook senders, started and stopped together."""

import base64
import binascii
import errno
import threading
from dataclasses import dataclass
from pathlib import Path

from standardwebhooks import Webhook

from agentops.sandbox.faults import Rates
from agentops.sandbox.ledger import Ledger
from agentops.sandbox.mail import MailServer
from agentops.sandbox.web import Server
from agentops.sandbox.webhooks import Deliverer, check_target, is_loopback
from agentops.sandbox.world import World


class CannotStart(Exception):
    """The sandbox cannot start; the message is one sentence that says what to do."""


@dataclass(frozen=True)
class Options:
    """How to start. Port 0 = pick one. `settle_delay_s`: seconds from a refund to its webhook."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 0
    smtp_port: int = 0
    webhook_url: str | None = None
    webhook_secret: str = ""
    settle_delay_s: float = 2.0
    rates: tuple[Rates, ...] = ()


def signer_for(secret: str) -> Webhook | None:
    """The signer of a Standard Webhooks secret (base64, whsec_ before it or not); raises CannotStart."""
    if not secret:
        return None
    try:
        base64.b64decode(secret.removeprefix("whsec_") + "==", validate=False)
        return Webhook(secret)
    except (binascii.Error, ValueError, RuntimeError) as error:
        raise CannotStart("The webhook secret must be base64, with or without whsec_ before it.") from error


class Sandbox:
    """Bound and ready when made; `start()` begins to serve."""

    def __init__(self, options: Options) -> None:
        """Raises CannotStart, LedgerUnusable or BadTarget, each with one sentence."""
        if not is_loopback(options.host):
            raise CannotStart(
                f"The sandbox listens on this machine only: use --host 127.0.0.1, not {options.host}."
            )
        host = "127.0.0.1" if options.host == "localhost" else options.host
        signer = signer_for(options.webhook_secret)
        url = check_target(options.webhook_url) if options.webhook_url else None
        if url and signer is None:
            raise CannotStart(
                "Webhooks need a secret to be signed with: set AGENTOPS_WEBHOOK_SECRET or --webhook-secret."
            )
        self.ledger = Ledger(options.data)
        try:
            if url:
                self.ledger.set_setting("webhook_url", url)
            with self.ledger.write() as tx:
                for rates in options.rates:
                    self.ledger.set_rates(tx, rates)
            self._deliverer = Deliverer(self.ledger, signer, lambda: self.ledger.setting("webhook_url"))
            world = World(self.ledger, options.settle_delay_s)
            try:
                self._web = Server(host, options.port, self.ledger, world, self._deliverer)
            except OSError as error:
                raise CannotStart(_why_not(error, host, options.port, "--port")) from error
            try:
                self._mail = MailServer(host, options.smtp_port, self.ledger)
            except OSError as error:
                self._web.server_close()
                raise CannotStart(_why_not(error, host, options.smtp_port, "--smtp-port")) from error
        except BaseException:
            self.ledger.close()
            raise
        self.data = options.data
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._web.server_port}"
        self.smtp = self._web.smtp = f"{shown}:{self._mail.port}"
        self._thread = threading.Thread(target=self._web.serve_forever, args=(0.1,), name="http", daemon=True)

    def start(self) -> None:
        self._mail.start()
        self._deliverer.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop taking requests, cut what hangs, close the ledger. What was not answered was not answered."""
        self._web.stopping.set()
        self._web.shutdown()
        self._web.server_close()
        self._mail.stop()
        self._deliverer.stop()
        self.ledger.close()


def _why_not(error: OSError, host: str, port: int, option: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} on {host} is taken: stop what uses it, or choose another with {option} (0 = any)."
        )
    return (
        f"Port {port} of {host} cannot be opened ({error.strerror}): choose another with {option} (0 = any)."
    )
