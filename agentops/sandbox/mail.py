"""A real SMTP server whose accepted mails stand in the ledger, in an event loop of its own thread."""

import asyncio
import email
import email.policy
import socket
import threading
from email.message import EmailMessage
from typing import Any

from aiosmtpd.smtp import SMTP, Envelope, Session

from agentops.sandbox import faults
from agentops.sandbox.faults import Fault, UnknownFault
from agentops.sandbox.ledger import Ledger, LedgerClosed, digest, now_text
from agentops.sandbox.world import business_key

_LONGEST_TEXT = 100_000


class _Inbox:
    """What aiosmtpd calls with each mail."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        content = (
            envelope.content if isinstance(envelope.content, bytes) else (envelope.content or "").encode()
        )
        message = email.message_from_bytes(content, policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        key, body_digest = _header(message, "X-Idempotency-Key"), digest(content)
        try:
            # In a thread: the disk must not stop the other connections.
            number, plan = await asyncio.to_thread(
                self._ledger.admit, faults.SMTP, key, body_digest, _header(message, "X-Sandbox-Fault")
            )
        except UnknownFault as error:
            return f"554 5.6.0 {error}"
        except LedgerClosed:
            return _hang_up(server)
        await asyncio.sleep(plan.get(Fault.LATENCY, 0) + plan.get(Fault.TIMEOUT_BEFORE, 0))
        if plan.keys() & {Fault.TIMEOUT_BEFORE, Fault.CLOSE_BEFORE}:
            return _hang_up(server)
        if Fault.SMTP_451 in plan:
            return "451 4.3.0 Try again later"
        try:
            await asyncio.to_thread(self._accept, number, key, body_digest, envelope, message)
        except LedgerClosed:
            return _hang_up(server)
        await asyncio.sleep(plan.get(Fault.TIMEOUT_AFTER, 0))
        if plan.keys() & {Fault.TIMEOUT_AFTER, Fault.CLOSE_AFTER}:
            return _hang_up(server)
        return "250 2.0.0 Accepted"

    def _accept(
        self, number: int, key: str | None, body_digest: str, envelope: Envelope, message: EmailMessage
    ) -> None:
        message_id = _header(message, "Message-ID") or f"(none, request {number})"
        order_id = _header(message, "X-Order-Id")
        mail = {
            "message_id": message_id,
            "from": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "subject": _header(message, "Subject") or "",
            "key": key,
            "order_id": order_id,
            "text": _text(message)[:_LONGEST_TEXT],
            "accepted_at": now_text(),
        }
        run_id, operation = _header(message, "X-Run-Id"), _header(message, "X-Operation")
        with self._ledger.write() as tx:
            self._ledger.record(
                tx,
                "mail",
                key=key,
                order_id=order_id,
                reference=message_id,
                business_key=business_key(run_id, operation, key, f"mail:{message_id}"),
                body_digest=body_digest,
                request_no=number,
                answer=mail,
            )


def _header(message: EmailMessage, name: str) -> str | None:
    value = message.get(name)
    return _storable(str(value).strip()) if value is not None else None


def _text(message: EmailMessage) -> str:
    part = message.get_body(("plain", "html"))
    if part is None:
        return ""
    try:
        return _storable(str(part.get_content()))
    except LookupError:  # a character set that nobody knows
        raw = part.get_payload(decode=True)
        return raw.decode("ascii", "replace") if isinstance(raw, bytes) else ""


def _storable(text: str) -> str:
    """With plain line ends, and without the lone surrogates that stand for undecodable bytes."""
    return text.replace("\r\n", "\n").encode("utf-8", "replace").decode()


def _hang_up(server: SMTP) -> str:
    """Cut the connection at once; the line returned goes nowhere."""
    transport: Any = server.transport
    if transport is not None:
        transport.abort()
    return "421 4.3.0 Gone"


class MailServer:
    """The SMTP side of the sandbox. Bound when made; raises OSError if the port is taken."""

    def __init__(self, host: str, port: int, ledger: Ledger) -> None:
        self._inbox = _Inbox(ledger)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=128)
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="smtp", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(timeout=2)
        else:
            self._loop.close()
        self._socket.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await self._loop.create_server(self._connection, sock=self._socket)
        await self._stopping.wait()
        server.close()

    def _connection(self) -> SMTP:
        return SMTP(
            self._inbox, hostname="sandbox.localhost", ident="sandbox", enable_SMTPUTF8=True, loop=self._loop
        )
