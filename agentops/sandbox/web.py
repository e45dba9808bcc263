"""HTTP in front of the world: keep-alive, a thread per connection, and misbehaviour on the socket itself."""

import json
import math
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import ValidationError

from agentops.sandbox import faults
from agentops.sandbox.faults import Fault, Plan, UnknownFault
from agentops.sandbox.ledger import COLUMNS, Ledger, LedgerClosed, Row, digest
from agentops.sandbox.webhooks import BadTarget, Deliverer, check_target, is_loopback
from agentops.sandbox.world import Answer, Call, Refused, World

LARGEST_BODY = 1024 * 1024
IDLE_TIMEOUT_S = 60.0
EARLY_WEBHOOK_TIMEOUT_S = 6.0


class _NoAnswer(Exception):
    """The connection is closed without an answer, as planned or because the client has gone."""


class Server(ThreadingHTTPServer):
    """The listening side. `stopping` ends whatever hangs on purpose; `smtp` is the mail side's address."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, host: str, port: int, ledger: Ledger, world: World, deliverer: Deliverer) -> None:
        """Bind at once. Raises OSError if the port is taken."""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.ledger, self.world, self.deliverer = ledger, world, deliverer
        self.stopping = threading.Event()
        self.smtp = ""
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer would ask a name server who it is.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Clients that hang up in the middle are this server's daily bread.
        if not isinstance(sys.exception(), ConnectionError | TimeoutError | LedgerClosed):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "sandbox"
    sys_version = ""
    timeout = IDLE_TIMEOUT_S
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave in one packet

    def do_GET(self) -> None:
        self._answer_request()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def handle_expect_100(self) -> bool:
        go_on = super().handle_expect_100()
        self.wfile.flush()
        return go_on

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent: the ledger has every request."""

    def _answer_request(self) -> None:
        try:
            answer = self._route()
        except (_NoAnswer, LedgerClosed):
            self.close_connection = True
            return
        except Refused as refusal:
            answer = Answer(refusal.status, {"error": refusal.error, "detail": refusal.detail})
        except (UnknownFault, BadTarget) as error:
            answer = Answer(422, {"error": "bad_request", "detail": str(error)})
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, p['loc'])) or 'body'}: {p['msg']}" for p in error.errors()]
            answer = Answer(422, {"error": "bad_request", "detail": "; ".join(problems)})
        self._send(answer)

    def _send(self, answer: Answer) -> None:
        raw = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        if answer.replayed:
            self.send_header("Idempotency-Replayed", "true")
        if answer.status == 429:
            self.send_header("Retry-After", str(math.ceil(answer.body["retry_after_s"])))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(raw)
        self.wfile.flush()

    def _route(self) -> Answer:
        raw = self._read_body()
        # A page in somebody's browser must not reach this server under a name of its own.
        try:
            parts = urlsplit(self.path)
            host = urlsplit(f"//{self.headers.get('Host', 'localhost')}").hostname
        except ValueError:
            raise Refused(400, "bad_request", "The address cannot be read.") from None
        if not is_loopback(host or ""):
            raise Refused(403, "not_local", "The sandbox answers on this machine only.")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        body = _decoded(raw)
        if self.command == "GET" and parts.path in _LOOK:
            return _LOOK[parts.path](self.server, query)
        if self.command == "POST" and parts.path in _PLAN:
            return _PLAN[parts.path](self.server, body)
        first, _, rest = parts.path.removeprefix("/").partition("/")
        endpoint = f"{self.command} /{first}"
        if endpoint not in self.server.world.endpoints or (rest and endpoint != "GET /orders"):
            raise Refused(404, "no_such_endpoint", f"There is no {self.command} {parts.path} here.")
        return self._serve_world(endpoint, unquote(rest), query, body)

    def _serve_world(self, endpoint: str, rest: str, query: dict[str, str], body: Row) -> Answer:
        """Admit, misbehave before the work, work, misbehave after it."""
        written_plan = body.pop("sandbox_fault", self.headers.get("X-Sandbox-Fault"))
        if written_plan is not None and not isinstance(written_plan, str):
            raise UnknownFault("sandbox_fault must be text such as 'latency:0.5, timeout_after'")
        key = self.headers.get("Idempotency-Key")
        if key is not None and not 0 < len(key) <= 255:
            raise Refused(422, "bad_request", "Idempotency-Key has 1 to 255 characters.")
        body_digest = digest(body)
        number, plan = self.server.ledger.admit(endpoint, key, body_digest, written_plan)
        if failure := self._before_work(plan):
            return failure
        call = Call(number, endpoint, rest, query, key, body, body_digest, plan)
        answer = self.server.world.endpoints[endpoint](call)
        if endpoint == "POST /refunds":
            self.server.deliverer.wake()
            if Fault.WEBHOOK_EARLY in plan and not answer.replayed:
                self.server.deliverer.wait_until_tried(answer.body["order_id"], EARLY_WEBHOOK_TIMEOUT_S)
        return self._after_work(plan) or answer

    def _before_work(self, plan: Plan) -> Answer | None:
        if Fault.LATENCY in plan:
            self._hang(plan[Fault.LATENCY])
        if Fault.LATE in plan and self.server.stopping.wait(plan[Fault.LATE]):
            raise _NoAnswer  # other than latency, this one works on for a client that has hung up
        if Fault.TIMEOUT_BEFORE in plan:
            self._hang(plan[Fault.TIMEOUT_BEFORE])
            raise _NoAnswer
        if Fault.CLOSE_BEFORE in plan:
            raise _NoAnswer
        if Fault.ERROR_500 in plan:
            return Answer(500, {"error": "internal", "detail": "Something broke. Nothing happened."})
        if Fault.ERROR_503 in plan:
            return Answer(503, {"error": "unavailable", "detail": "Out of service. Nothing happened."})
        if Fault.ERROR_429 in plan:
            pause_s = plan[Fault.ERROR_429]
            detail = f"Too many requests. Come back in {pause_s:g} s."
            return Answer(429, {"error": "rate_limited", "detail": detail, "retry_after_s": pause_s})
        return None

    def _after_work(self, plan: Plan) -> Answer | None:
        if Fault.TIMEOUT_AFTER in plan:
            self._hang(plan[Fault.TIMEOUT_AFTER])
            raise _NoAnswer
        if Fault.CLOSE_AFTER in plan:
            raise _NoAnswer
        if Fault.ERROR_500_AFTER in plan:
            return Answer(500, {"error": "internal", "detail": "Something broke. What happened, happened."})
        return None

    def _hang(self, seconds: float) -> None:
        """Say nothing for a time. Raises _NoAnswer when the client hangs up or the sandbox stops."""
        until = time.monotonic() + seconds
        poller = select.poll()
        poller.register(self.connection, select.POLLIN)
        while (left := until - time.monotonic()) > 0:
            if self.server.stopping.is_set():
                raise _NoAnswer
            if poller.poll(min(left, 0.2) * 1000):
                if not self.connection.recv(1, socket.MSG_PEEK):
                    raise _NoAnswer
                self.server.stopping.wait(min(left, 0.2))  # a pipelined request stays readable

    def _read_body(self) -> bytes:
        """Read the body whole, so that the connection can go on whatever the answer is. Raises Refused."""
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdecimal()):
            self.close_connection = True
            raise Refused(411, "length_required", "Send a Content-Length.")
        if len(length) > 9 or int(length) > LARGEST_BODY:
            self.close_connection = True
            raise Refused(413, "too_large", f"A body has at most {LARGEST_BODY} bytes.")
        raw = self.rfile.read(int(length))
        if len(raw) < int(length):
            raise _NoAnswer
        return raw


def _decoded(raw: bytes) -> Row:
    if not raw:
        return {}
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "bad_json", "The body is not JSON.") from error
    if not isinstance(body, dict):
        raise Refused(422, "bad_request", "The body must be a JSON object.")
    return body


def _allowed(query: dict[str, str], known: Iterable[str]) -> dict[str, str]:
    if unknown := query.keys() - set(known):
        raise Refused(
            422, "bad_query", f"Ask by {', '.join(sorted(known))}, not by {', '.join(sorted(unknown))}."
        )
    return query


def _health(server: Server, query: dict[str, str]) -> Answer:
    return Answer(200, {"ok": True, "smtp": server.smtp, "webhooks_ready": server.deliverer.ready})


def _entries(server: Server, query: dict[str, str]) -> Answer:
    return Answer(200, {"entries": server.ledger.entries(**_allowed(query, COLUMNS["entries"]))})


def _summary(server: Server, query: dict[str, str]) -> Answer:
    return Answer(200, server.ledger.summary())


def _requests(server: Server, query: dict[str, str]) -> Answer:
    return Answer(200, {"requests": server.ledger.select("requests", **_allowed(query, COLUMNS["requests"]))})


def _mails(server: Server, query: dict[str, str]) -> Answer:
    names = {"message_id": "reference", "key": "key", "order_id": "order_id"}
    wanted = {names[name]: value for name, value in _allowed(query, names).items()}
    return Answer(200, {"mails": [entry["answer"] for entry in server.ledger.entries(kind="mail", **wanted)]})


def _webhooks(server: Server, query: dict[str, str]) -> Answer:
    rows = server.ledger.select("deliveries", **_allowed(query, COLUMNS["deliveries"]))
    return Answer(200, {"deliveries": [row | {"payload": json.loads(row["payload"])} for row in rows]})


def _set_rates(server: Server, body: Row) -> Answer:
    rates = faults.rates_from(body)
    with server.ledger.write() as tx:
        server.ledger.set_rates(tx, rates)
    return Answer(200, {"endpoint": rates.endpoint, "chances": rates.chances, "seed": rates.seed})


def _get_rates(server: Server, query: dict[str, str]) -> Answer:
    rows = server.ledger.rows("SELECT * FROM rates ORDER BY endpoint")
    return Answer(200, {"rates": [row | {"chances": json.loads(row["chances"])} for row in rows]})


def _add_to_script(server: Server, body: Row) -> Answer:
    endpoint = faults.check_endpoint(str(body.get("endpoint", "")))
    plans = body.get("faults")
    if not isinstance(plans, list) or not all(isinstance(text, str) for text in plans):
        raise UnknownFault("faults must be a list of texts, one for each request")
    for text in plans:
        if endpoint in faults.ENDPOINTS:
            faults.parse_for(endpoint, text)
        else:
            faults.parse(text)
    with server.ledger.write() as tx:
        server.ledger.add_to_script(tx, endpoint, plans)
    return _get_script(server, {})


def _get_script(server: Server, query: dict[str, str]) -> Answer:
    return Answer(200, {"script": server.ledger.rows("SELECT endpoint, faults FROM script ORDER BY no")})


def _set_webhook_target(server: Server, body: Row) -> Answer:
    server.ledger.set_setting("webhook_url", check_target(str(body.get("url", ""))))
    server.deliverer.wake()
    return _health(server, {})


def _reset(server: Server, body: Row) -> Answer:
    server.ledger.reset()
    return Answer(200, {"ok": True})


_LOOK: dict[str, Callable[[Server, dict[str, str]], Answer]] = {
    "/healthz": _health,
    "/ledger": _entries,
    "/ledger/summary": _summary,
    "/requests": _requests,
    "/mails": _mails,
    "/webhooks": _webhooks,
    "/control/faults": _get_rates,
    "/control/script": _get_script,
}
_PLAN: dict[str, Callable[[Server, Row], Answer]] = {
    "/control/faults": _set_rates,
    "/control/script": _add_to_script,
    "/control/webhooks": _set_webhook_target,
    "/control/reset": _reset,
}
