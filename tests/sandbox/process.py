"""A sandbox as its users run it: a process of its own, to be killed and started again on the same ledger."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from standardwebhooks import Webhook

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"
SECRET = "whsec_c2FuZGJveCB0ZXN0cyBzaWduIHdpdGggdGhpcw=="


class SandboxProcess:
    """`manage.py sandbox` on any free ports. `start()` after `kill()` keeps the same folder and ports."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data, self.options = data, options
        self.port = self.smtp_port = 0
        self.url = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start and wait for the line that says where it listens (10 s)."""
        ports = ["--port", str(self.port), "--smtp-port", str(self.smtp_port)]
        self._process = subprocess.Popen(
            [sys.executable, str(MANAGE), "sandbox", *ports, "--data", str(self.data), *self.options],
            stdout=subprocess.PIPE,
            text=True,
            # No such database and no such app: the sandbox must look for neither.
            env={
                **os.environ,
                "AGENTOPS_WEBHOOK_SECRET": SECRET,
                "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
                "AGENTOPS_APPS": "no_such_app",
            },
        )
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], 10)[0], "the sandbox said nothing for 10 s"
        facts = json.loads(self._process.stdout.readline())
        self.url = facts["url"]
        self.port = int(self.url.rpartition(":")[2])
        self.smtp_port = int(facts["smtp"].rpartition(":")[2])

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """kill -9."""
        self.end(signal.SIGKILL)

    def end(self, number: signal.Signals) -> int:
        """Send a signal, wait (10 s) and return the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return code

    def stop(self) -> None:
        if self._process is not None:
            self.end(signal.SIGTERM)


class Receiver:
    """Takes webhooks, checks their signature, answers what the test says (`answers` in order, then 204)."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.received: list[dict[str, Any]] = []
        self.message_ids: list[str] = []
        self._signed = Webhook(SECRET)
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                payload = receiver._signed.verify(raw, dict(self.headers))
                status = receiver.answers.pop(0) if receiver.answers else 204
                # Kept first: whoever has the answer may look at once.
                receiver.message_ids.append(self.headers["webhook-id"])
                receiver.received.append(payload)
                self.send_response(status)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/signals/sandbox"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def orders(self) -> list[str]:
        return [payload["data"]["order_id"] for payload in self.received]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
