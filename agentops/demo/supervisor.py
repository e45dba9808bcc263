"""The demo: sets everything up, looks after it, stops it."""

import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

import httpx
from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, InterfaceError, connection
from django.urls import reverse
from rich.console import Console
from rich.table import Table

from agentops import embedded
from agentops.cluster.processes import PipeEvent
from agentops.demo import samples, sign_ins
from agentops.demo.children import Child
from agentops.sandbox.client import SandboxLedger
from runs.models import Worker

APP_ROLE = "agentops_app"
#: Seconds.
READY_TIMEOUT = 60
LOOK_EVERY = 0.5
LOOK_AT_DATABASE_EVERY = 2.0
TRICKLE_EVERY = 6.0
CUT_A_MAIL_EVERY = 60.0
#: What running steps get to finish when the demo stops; everything has ended some seconds later.
GRACE = 10
#: A second Ctrl-C this long after the first one stops at once. (A terminal's reaches a process more than once through `uv`.)
HURRY_AFTER = 1.5


class CannotRun(Exception):
    """The demo cannot run; the message is one sentence that says what to do."""


class Demo:
    """One demo on one data folder."""

    def __init__(self, port: int, console: Console) -> None:
        self.port, self.console = port, console
        self.data: Path = settings.AGENTOPS_DATA_DIR
        self.folder = self.data / "demo"
        self.url = ""
        self._stop = PipeEvent()
        self._stop_asked_at: float | None = None
        self._hurry = False
        self._closing = ExitStack()
        self._children: list[Child] = []
        self._guardian: subprocess.Popen[str] | None = None
        self._sandbox: SandboxLedger | None = None

    def run(self) -> None:
        """Run until Ctrl-C or SIGTERM. Raises CannotRun or EmbeddedUnavailable; nothing is left running then."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._asked_to_stop)
        try:
            people = self._set_up()
            if people is not None:
                self._greet(people)
                self._look_after()
        except _Stopped:
            pass
        finally:
            self._end()

    def _asked_to_stop(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._stop_asked_at is None:
            self._stop_asked_at = now
        elif now - self._stop_asked_at > HURRY_AFTER:
            self._hurry = True
        self._stop.set()

    # --- setting up --------------------------------------------------------------------------------------------------

    def _set_up(self) -> list[sign_ins.SignIn] | None:
        """Everything up to the first runs. None if it was asked to stop meanwhile."""
        listener = self._listen()
        kept = self._own_folder()
        with self._working("Database server"):
            self._start_database()
        steps: list[tuple[str, Callable[[], Any]]] = [
            ("Tables", lambda: call_command("migrate", interactive=False, verbosity=0)),
            ("Sign-ins", lambda: sign_ins.make(kept)),
            ("Sandbox, web server and workers", lambda: self._start_programs(listener, kept)),
            ("Sample runs", samples.start_first),
        ]
        people: list[sign_ins.SignIn] = []
        for what, work in steps:
            if self._stop.is_set():
                return None
            with self._working(what):
                made = work()
            people = made if what == "Sign-ins" else people
        return None if self._stop.is_set() else people

    @contextmanager
    def _working(self, what: str) -> Iterator[None]:
        begun = time.monotonic()
        with self.console.status(f"{what} …"):
            yield
        self.console.print(f"[green]✓[/] {what} [dim]({time.monotonic() - begun:.1f} s)[/]")

    def _listen(self) -> socket.socket:
        """The console's port, held by the demo itself: it stays ours while the web server is started again."""
        listener = socket.socket()
        self._closing.callback(listener.close)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", self.port))
        except OSError as error:
            raise CannotRun(
                f"Port {self.port} cannot be used ({error.strerror}): stop what uses it, or choose another one with "
                f"`manage.py demo --port {self.port + 1}`."
            ) from error
        listener.listen(128)
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return listener

    def _own_folder(self) -> sign_ins.Secrets:
        """Be the only demo on the data folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock: IO[str] = self._closing.enter_context((self.folder / "lock").open("a+"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise CannotRun(
                    f"A demo is already running on {self.data} ({lock.read().strip()}): use that one, stop it, or set "
                    "AGENTOPS_DATA_DIR to another folder."
                ) from None
            lock.truncate(0)
            lock.write(f"process {os.getpid()}, {self.url}")
            lock.flush()
            for log in self.folder.glob("*.log"):
                log.unlink()
            return sign_ins.Secrets(self.folder / "secrets.json")
        except OSError as error:
            raise CannotRun(
                f"{error.filename or self.folder} cannot be written ({error.strerror}): set AGENTOPS_DATA_DIR to a folder "
                "that you may write to."
            ) from error
        except ValueError as error:
            raise CannotRun(
                f"{self.folder / 'secrets.json'} cannot be read ({error}): remove it, and new passwords are made."
            ) from error

    def _start_database(self) -> None:
        if settings.AGENTOPS_DATABASE_URL:
            try:
                connection.ensure_connection()
            except DatabaseError as error:
                raise CannotRun(
                    f"The database of DATABASE_URL does not answer ({str(error).strip()}): start it, or unset DATABASE_URL to "
                    "use an embedded one."
                ) from error
            return
        if embedded.PostgresServer(embedded.server_folder(self.data)).postmaster() is not None:
            self.console.print("A database server is running there already: the demo goes on with it.")
        embedded.hold(self.data)
        self._guardian = subprocess.Popen(
            [sys.executable, "-m", "agentops.demo.guardian", str(self.data)],
            cwd=settings.BASE_DIR,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        assert self._guardian.stdout is not None
        if self._guardian.stdout.readline() != "ready\n":
            raise CannotRun(
                "The process that stops the database server at the end does not start: see above for why."
            )

    def _start_programs(self, listener: socket.socket, kept: sign_ins.Secrets) -> None:
        env = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "agentops.settings",
            "AGENTOPS_DEBUG": "1",
            "AGENTOPS_DATA_DIR": str(self.data),
            "AGENTOPS_GRACE_SECONDS": str(GRACE),
            "AGENTOPS_WEBHOOK_SECRET": settings.AGENTOPS_WEBHOOK_SECRET or _webhook_secret(kept),
            "PYTHONUNBUFFERED": "1",
        }
        url, smtp_port = self._start_sandbox(env)
        env |= {
            "AGENTOPS_SANDBOX_URL": url,
            "AGENTOPS_SMTP_HOST": "127.0.0.1",
            "AGENTOPS_SMTP_PORT": str(smtp_port),
        }
        if self._has_app_role():
            env["AGENTOPS_DB_ROLE"] = APP_ROLE
        gunicorn = [
            "-m",
            "gunicorn",
            "-c",
            "python:agentops.demo.gunicorn_conf",
            "--bind",
            f"fd://{listener.fileno()}",
        ]
        web = Child("The web server", gunicorn, env, self.folder / "web.log", [listener.fileno()])
        worker = Child("The worker cluster", ["manage.py", "worker"], env, self.folder / "worker.log")
        self._children += [web, worker]
        web.start()
        worker.start()
        self._wait_for(web, self._web_answers)
        self._wait_for(worker, lambda: Worker.objects.filter(closed_at=None, reaped_at=None).exists())

    def _start_sandbox(self, env: dict[str, str]) -> tuple[str, int]:
        """Its URL and mail port: the usual ones where they are free, any others where they are not."""
        folder = self.data / "sandbox"
        webhooks = self.url + reverse("runs:webhook", args=["sandbox"])
        command = ["manage.py", "sandbox", "--data", str(folder), "--webhook-url", webhooks]
        ports = ["--port", str(_usual_port(8025)), "--smtp-port", str(_usual_port(8026))]
        sandbox = Child("The sandbox", command + ports, env, self.folder / "sandbox.log")
        self._children.append(sandbox)
        sandbox.start()
        facts = self._wait_for(sandbox, lambda: _first_facts(sandbox.log_path))
        url, smtp_port = str(facts["url"]), int(str(facts["smtp"]).rpartition(":")[2])
        # Started again, it has to be where the workers look for it.
        sandbox.command = [*command, "--port", url.rpartition(":")[2], "--smtp-port", str(smtp_port)]
        self._sandbox = self._closing.enter_context(SandboxLedger(url))
        samples.misbehave(self._sandbox)
        return url, smtp_port

    def _wait_for[T](self, child: Child, condition: Callable[[], T]) -> T:
        deadline = time.monotonic() + READY_TIMEOUT
        while not (answer := condition()):
            if not child.running or time.monotonic() > deadline:
                raise CannotRun(
                    f"{child.name} does not start ({child.last_line()}): {child.log_path} says why."
                )
            self._stop.wait(0.1)
            if self._stop.is_set():
                raise _Stopped
        return answer

    def _web_answers(self) -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(self.url + reverse("login"), timeout=10, trust_env=False).status_code == 200
        return False

    def _has_app_role(self) -> bool:
        """Whether web and workers can run without the owner's rights; a database of one's own may not allow it."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT coalesce((SELECT pg_has_role(oid, 'MEMBER') FROM pg_roles WHERE rolname = %s), false)",
                [APP_ROLE],
            )
            row = cursor.fetchone()
        if row and row[0]:
            return True
        self.console.print(
            f"[yellow]The database user may not become {APP_ROLE}, so web and workers run as the owner of the tables.[/]"
        )
        return False

    # --- while it runs -----------------------------------------------------------------------------------------------

    def _greet(self, people: list[sign_ins.SignIn]) -> None:
        table = Table(box=None, padding=(0, 2))
        for title in ("Sign in as", "Password", ""):
            table.add_column(title, overflow="fold")
        for person in people:
            table.add_row(person.name, person.password or "(changed by you)", f"[dim]{person.purpose}[/]")
        self.console.print(f"\nThe console is at [bold]{self.url}[/]\n", soft_wrap=True)
        self.console.print(table)
        self.console.print(
            f"\nLogs are in {self.folder}. Ctrl-C stops everything; the next start goes on from here.\n",
            soft_wrap=True,
        )

    def _look_after(self) -> None:
        now = time.monotonic()
        database_at, run_at, mail_at = now, now + TRICKLE_EVERY, now
        while not self._stop.wait(LOOK_EVERY):
            now = time.monotonic()
            for child in self._children:
                if line := child.tend():
                    self.console.print(f"[yellow]{line}[/]", soft_wrap=True)
            if now >= database_at:
                database_at = now + LOOK_AT_DATABASE_EVERY
                self._look_after_database()
            if now >= run_at:
                run_at = now + TRICKLE_EVERY
                self._undisturbed(samples.start_one_more)
            if now >= mail_at:
                mail_at = now + CUT_A_MAIL_EVERY
                self._undisturbed(self._cut_a_mail)

    def _look_after_database(self) -> None:
        if settings.AGENTOPS_DATABASE_URL:
            return
        if embedded.PostgresServer(embedded.server_folder(self.data)).postmaster() is None:
            self.console.print("[yellow]The database server has died; it starts again.[/]")
            embedded.hold(self.data)

    def _cut_a_mail(self) -> None:
        assert self._sandbox is not None
        samples.cut_a_mail(self._sandbox)

    def _undisturbed(self, work: Callable[[], None]) -> None:
        """Sample runs are an extra: a database or sandbox that is just being started again is no reason to stop."""
        connection.close_if_unusable_or_obsolete()
        with suppress(DatabaseError, InterfaceError, httpx.TransportError):
            work()

    # --- stopping ----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Stop everything, in an order in which nobody misses what has gone, and within bounded time."""
        if any(child.running for child in self._children):
            with self.console.status("Stopping: running steps finish first …"):
                self._stop_children()
            self.console.print("Stopped.")
        connection.close()
        if self._guardian is not None:
            self._end_database()
        self._closing.close()

    def _stop_children(self) -> None:
        deadline = time.monotonic() + GRACE + 5
        # Workers and web first: what they are doing needs the sandbox.
        for group in (self._children[1:], self._children[:1]):
            for child in group:
                child.ask_to_stop()
            for child in group:
                while not child.wait(0.1):
                    if self._hurry or time.monotonic() > deadline:
                        break
                child.kill()
            deadline = max(deadline, time.monotonic() + 2)

    def _end_database(self) -> None:
        embedded.release(self.data)
        assert self._guardian is not None and self._guardian.stdin is not None
        self._guardian.stdin.close()
        self._guardian.wait(embedded.server.STOP_TIMEOUT_S)
        assert self._guardian.stdout is not None
        self._guardian.stdout.close()


class _Stopped(Exception):
    """Ctrl-C came while something was awaited."""


def _webhook_secret(kept: sign_ins.Secrets) -> str:
    return kept.keep("webhook secret", "whsec_" + b64encode(secrets.token_bytes(24)).decode())[0]


def _usual_port(port: int) -> int:
    """`port` if nobody listens there, else 0 (any)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return 0
    return port


def _first_facts(log: Path) -> dict[str, Any]:
    """What the sandbox says about itself in its first line of JSON; empty until then."""
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            facts: dict[str, Any] = json.loads(line)
            return facts
    return {}
