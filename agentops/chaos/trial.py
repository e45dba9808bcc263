"""A trial: sets up a world of its own, runs load and faults in it, lets everything come to its end, and has it judged."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from rich.console import Console

from agentops.chaos import judge, load, people, plan
from agentops.chaos.asked import Book
from agentops.chaos.faults import Cluster, Failpoints, Faults, World, set_quick_limits
from agentops.chaos.judge import Notes, Strike
from agentops.chaos.ledgers import CannotJudge, Ledgers
from agentops.chaos.people import ADMIN, STARTER, People, insist, undisturbed
from agentops.chaos.plan import Kind, Start
from agentops.chaos.programs import Program
from agentops.chaos.proxy import Proxy
from agentops.chaos.report import WRONG, exit_code
from agentops.chaos.surroundings import Surroundings
from agentops.embedded.server import PORT
from agentops.sandbox.client import SandboxLedger
from runs import registry
from runs.lifecycle import Actor
from runs.services import start
from runs.states import TERMINAL

APP_ROLE = "agentops_app"
#: Seconds.
READY_TIMEOUT = 90
LOOK_EVERY = 0.25
SAY_EVERY = 5.0
SETTLE_DELAY = 0.5
STOP_TIMEOUT = 15
LONGEST_DRAIN = 3600.0
LEDGER_TIMEOUT = 60

#: Chances of each fault per request, where a kind has the weight 1; at most one fault a request.
BEFORE_AND_AFTER = {
    "503": 0.03,
    "500": 0.02,
    "429:1": 0.02,
    "close_before": 0.02,
    "500_after": 0.03,
    "close_after": 0.03,
    "timeout_after:7": 0.01,
    "latency:1.5": 0.02,
    "late:1": 0.01,
}
READING = {"503": 0.03, "500": 0.01, "close_before": 0.02, "latency:1": 0.02}
MAIL = {"451": 0.04, "close_before": 0.02, "close_after": 0.02, "latency:1": 0.02}
WEBHOOKS = {"webhook_duplicate": 0.08, "webhook_early": 0.08, "webhook_out_of_order": 0.08}
ENDPOINTS = {
    "POST /refunds": BEFORE_AND_AFTER,
    "POST /charges": BEFORE_AND_AFTER,
    "POST /tickets": BEFORE_AND_AFTER,
    "POST /access": BEFORE_AND_AFTER,
    "GET /orders": READING,
    "GET /refunds": READING,
    "GET /charges": READING,
    "GET /access": READING,
    "GET /pages": {"503": 0.1, "429:1": 0.05},
    "SMTP": MAIL,
}


class CannotRun(Exception):
    """The trial cannot take place; the message is one sentence that says what to do."""


@dataclass(frozen=True)
class Options:
    """How long, how much, and what of it. Times in seconds."""

    duration: float = 60.0
    seed: int = 1
    per_second: float = 3.0
    faults_per_minute: float = 40.0
    weights: Mapping[Kind, int] = field(default_factory=plan.choose)
    given: Sequence[load.Given] = ()
    clusters: int = 2
    processes: int = 2
    slots: int = 8
    drain_limit: float = 60.0
    """After the faults: how long no run may come to its end until those that are left count as stuck."""
    keep: bool = False


class Load:
    """A thread that starts the runs of the plan; what was confirmed is remembered."""

    def __init__(self, starts: Sequence[Start], seed: int, actor: Actor) -> None:
        self._starts, self._seed, self._actor = starts, seed, actor
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.confirmed: list[uuid.UUID] = []
        self.broken: BaseException | None = None

    def start(self) -> None:
        self._began_at = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(30)

    def _run(self) -> None:
        try:
            for one in self._starts:
                if self._stop.wait(max(0.0, self._began_at + one.at - time.monotonic())):
                    break
                self._start(one)
        except Exception as error:  # told by the trial, which ends with it
            self.broken = error
        finally:
            connection.close()

    def _start(self, one: Start) -> None:
        """Start until it is confirmed: the start key makes that one run."""
        key = f"chaos/{self._seed}/{one.number}"
        while True:
            started = undisturbed(
                lambda: start(self._actor, one.workflow, one.input, start_key=key, reason="chaos")
            )
            if started is not None:
                self.confirmed.append(started.run.pk)
                return
            if self._stop.wait(0.3):
                return


class Trial:
    """One trial in its surroundings."""

    def __init__(self, options: Options, surroundings: Surroundings, console: Console) -> None:
        self.options, self.surroundings, self.console = options, surroundings, console
        self.folder = surroundings.folder
        self._asked_to_stop = 0
        self._drained = False
        self._closing = ExitStack()
        self._programs: list[Program] = []
        self._sandbox_program: Program | None = None
        self._seen_workers: set[int] = set()
        self._failpoint_strikes: list[Strike] = []
        self._book = Book()

    def run(self) -> dict[str, Any]:
        """Run to the end, or until Ctrl-C; returns the report.

        Raises CannotRun, EmbeddedUnavailable, CannotJudge. Nothing is left running, whatever happens.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._ask_to_stop)
        with self._closing, _judgeable():
            self._set_up()
            began = time.monotonic()
            self._load.start()
            self._faults.start()
            self._people.start()
            self._during(self.options.duration, "load and faults")
            lasted = time.monotonic() - began
            self._drain()
            self._people.stop()
            notes = self._notes(lasted)
            self.surroundings.notes.write_text(notes.written())
            made = insist(lambda: judge.judged(notes, self._ledgers))
            if exit_code(made) == WRONG:
                self.surroundings.keep()
            return made

    def judge_again(self) -> dict[str, Any]:
        """Judge the trial that this folder was kept from. Raises as `run`."""
        try:
            notes = Notes.read(self.surroundings.notes.read_text())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CannotJudge(f"{self.folder} holds no trial that was kept: {error}") from error
        with self._closing, _judgeable():
            self.surroundings.keep()
            self._guard()
            self.surroundings.server.start()
            ledger, _ = self._start_sandbox(None)
            return judge.judged(notes, Ledgers(ledger))

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        self._asked_to_stop += 1

    # --- setting up ----------------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        try:
            self.surroundings.make()
        except OSError as error:
            raise CannotRun(
                f"{self.folder} cannot be made ({error.strerror}): set TMPDIR to another folder."
            ) from error
        if self.options.keep:
            self.surroundings.keep()
        self._guard()
        self._say(f"seed {self.options.seed}, in {self.folder}")
        self._say("setting up: database, sandbox, web server, workers …")
        self.surroundings.server.start()
        call_command("migrate", interactive=False, verbosity=0, skip_checks=True)
        self._actors = people.make()
        self._workflows = self._named_workflows()
        set_quick_limits(self._actors[ADMIN], self._workflows)
        self._start_proxy()
        listener, web_url = self._listen()
        self._ledger, smtp = self._start_sandbox(f"{web_url}/webhooks/sandbox")
        self._ledgers = Ledgers(self._ledger)
        web, clusters = self._start_programs(listener, web_url, smtp)
        self._make_threads(web, web_url, clusters)
        self._misbehave()

    def _start_programs(
        self, listener: socket.socket, web_url: str, smtp: str
    ) -> tuple[Program, list[Cluster]]:
        env = self._environment(smtp)
        log_path = self.folder / "web.log"
        web = Program("the web server", self._gunicorn(listener), env, log_path, [listener.fileno()])
        self._failpoints = Failpoints(self.options.seed, self.folder / "failpoints", self.options.weights)
        clusters = [self._cluster(number + 1, env) for number in range(self.options.clusters)]
        self._programs = [web, *clusters]
        for program in self._programs:
            program.start()
        self._wait_for(web, lambda: _answers(web_url))
        for cluster in clusters:
            self._wait_for(cluster, partial(_is_ready, cluster))
        return web, clusters

    def _make_threads(self, web: Program, web_url: str, clusters: Sequence[Cluster]) -> None:
        options = self.options
        starts = load.starts(options.seed, options.duration, options.per_second, options.given)
        self._load = Load(starts, options.seed, self._actors[STARTER])
        self._people = People(
            options.seed, options.weights, self._ledgers, self._ledgers.observable(), self._book
        )
        world = World(
            clusters=clusters,
            web=web,
            web_url=web_url,
            server=self.surroundings.server,
            proxy=self._proxy,
            actors=self._actors,
            workflows=self._workflows,
            book=self._book,
            log_path=self.folder / "chaos.log",
        )
        faults = plan.faults(options.seed, options.duration, options.faults_per_minute, options.weights)
        self._faults = Faults(faults, world)
        for thread in (self._people, self._load, self._faults):
            self._closing.callback(thread.stop)

    def _named_workflows(self) -> list[str]:
        names = [one.workflow for one in self.options.given] or sorted(load.SAMPLES)
        return list(dict.fromkeys(names))

    def _guard(self) -> None:
        """A process that puts the database away once this one has gone, however it went."""
        guardian = subprocess.Popen(
            [sys.executable, "-m", "agentops.chaos.guardian", str(self.folder)],
            cwd=settings.BASE_DIR,
            stdin=subprocess.PIPE,
            process_group=0,
        )

        def let_go() -> None:
            connection.close()
            assert guardian.stdin is not None
            guardian.stdin.close()
            guardian.wait(60)

        self._closing.callback(let_go)

    def _start_proxy(self) -> None:
        folder = self.folder / "proxy"
        folder.mkdir(mode=0o700)
        name = f".s.PGSQL.{PORT}"
        self._proxy = Proxy(folder / name, self.surroundings.server.socket_folder / name)
        try:
            self._proxy.start()
        except OSError as error:
            raise CannotRun(
                f"No socket can be made in {folder} ({error}): set TMPDIR to a shorter path."
            ) from error
        self._closing.callback(self._proxy.stop)

    def _listen(self) -> tuple[socket.socket, str]:
        """The console's port, held by the trial: it stays the same while the web server is started again."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._closing.callback(listener.close)
        return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"

    def _start_sandbox(self, webhooks: str | None) -> tuple[SandboxLedger, str]:
        """Its ledger and its mail server. Without a target for webhooks it is there to be read, and sends nothing."""
        command = ["manage.py", "sandbox", "--data", str(self.surroundings.sandbox)]
        command += ["--port", "0", "--smtp-port", "0", "--settle-delay", str(SETTLE_DELAY)]
        env = self._own_environment()
        if webhooks:
            command += ["--webhook-url", webhooks]
        else:
            del env["AGENTOPS_WEBHOOK_SECRET"]
        log_path = self.folder / "sandbox.log"
        log_path.unlink(missing_ok=True)  # of a trial that is judged again: it names an older port
        sandbox = Program("the sandbox", command, env, log_path)
        self._closing.callback(self._stop_programs)
        sandbox.start()
        self._sandbox_program = sandbox
        facts = self._wait_for(sandbox, lambda: _first_facts(sandbox.log_path))
        self._sandbox_url = str(facts["url"])
        # Hooks of one's own apps run in this process, too.
        settings.AGENTOPS_SANDBOX_URL = self._sandbox_url
        ledger = self._closing.enter_context(SandboxLedger(self._sandbox_url, LEDGER_TIMEOUT))
        return ledger, str(facts["smtp"])

    def _own_environment(self) -> dict[str, str]:
        return {**os.environ, "DJANGO_SETTINGS_MODULE": "agentops.settings", "PYTHONUNBUFFERED": "1"}

    def _environment(self, smtp: str) -> dict[str, str]:
        """Of workers and web: without the owner's rights, and through the proxy."""
        host, _, port = smtp.rpartition(":")
        name = settings.DATABASES["default"]["NAME"]
        user = settings.DATABASES["default"]["USER"]
        proxy = str(self.folder / "proxy").replace("/", "%2F")
        return self._own_environment() | {
            "DATABASE_URL": f"postgresql://{user}@/{name}?host={proxy}&port={PORT}",
            "AGENTOPS_DB_ROLE": APP_ROLE,
            "AGENTOPS_SANDBOX_URL": self._sandbox_url,
            "AGENTOPS_SMTP_HOST": host,
            "AGENTOPS_SMTP_PORT": port,
        }

    def _gunicorn(self, listener: socket.socket) -> list[str]:
        configuration = ["-m", "gunicorn", "-c", "python:agentops.demo.gunicorn_conf", "--workers", "2"]
        return [*configuration, "--bind", f"fd://{listener.fileno()}"]

    def _cluster(self, number: int, env: Mapping[str, str]) -> Cluster:
        queues = dict.fromkeys(registry.workflow(name).queue for name in self._workflows)
        command = ["manage.py", "worker", "--processes", str(self.options.processes)]
        command += ["--slots", str(self.options.slots)]
        command += [part for queue in queues for part in ("--queue", queue)]
        cluster = Cluster(f"cluster {number}", command, env, self.folder / f"worker-{number}.log")
        cluster.failpoints = self._failpoints
        return cluster

    def _wait_for[T](self, program: Program, condition: Callable[[], T]) -> T:
        deadline = time.monotonic() + READY_TIMEOUT
        while not (answer := condition()):
            if not program.running or time.monotonic() > deadline:
                self.surroundings.keep()
                raise CannotRun(
                    f"{program.name} does not start ({program.last_line()}): {program.log_path} says why."
                )
            time.sleep(0.1)
            if self._asked_to_stop:
                raise CannotRun("Stopped before anything had begun.")
        return answer

    def _misbehave(self) -> None:
        """The providers' faults: per request, drawn by the sandbox from this seed."""
        for endpoint, chances in ENDPOINTS.items():
            provider, webhook = (self.options.weights.get(kind, 0) for kind in (Kind.PROVIDER, Kind.WEBHOOK))
            wanted = {name: chance * provider for name, chance in chances.items()} if provider else {}
            if endpoint == "POST /refunds" and webhook:
                wanted |= {name: chance * webhook for name, chance in WEBHOOKS.items()}
            total = max(1.0, sum(wanted.values()))
            wanted = {name: round(chance / total, 6) for name, chance in wanted.items()}
            self._ledger.fault_rates(wanted, endpoint=endpoint, seed=self.options.seed)

    # --- while it runs -------------------------------------------------------------------------------------------------

    def _during(self, seconds: float, what: str, over: Callable[[], bool] = lambda: False) -> None:
        """Look after the programs for so long, or until `over`."""
        began = time.monotonic()
        end = began + seconds
        say_at = time.monotonic() + SAY_EVERY
        while (now := time.monotonic()) < end and not self._interrupted:
            self._look_after()
            if over():
                return
            if now >= say_at:
                say_at = now + SAY_EVERY
                self._progress(what, began)
            time.sleep(LOOK_EVERY)

    @property
    def _interrupted(self) -> bool:
        return self._asked_to_stop > 0

    def _look_after(self) -> None:
        assert self._sandbox_program is not None
        if not self._sandbox_program.running:
            raise CannotJudge(
                f"The sandbox has died ({self._sandbox_program.last_line()}): without its ledger nothing can be judged."
            )
        for thread in (self._load, self._faults, self._people):
            if thread.broken is not None:
                self.surroundings.keep()
                self._faults.note("".join(traceback.format_exception(thread.broken)))
                raise CannotJudge(
                    f"The trial itself failed: {thread.broken!r} ({self.folder / 'chaos.log'} says where)"
                ) from thread.broken
        for program in self._programs:
            if program.tend():
                self._faults.note(f"{program.name} starts again")
        self._watch_workers()

    def _watch_workers(self) -> None:
        """Deaths that no fault of the plan has caused: a failpoint, or a workflow that kills its process."""
        living = {
            one.pid
            for program in self._programs
            if isinstance(program, Cluster)
            for one in program.tree().third
        }
        for pid in self._seen_workers - living:
            if not self._faults.struck(pid):
                self._failpoint_strikes.append(Strike(time.time() - LOOK_EVERY, Kind.FAILPOINT, (pid,)))
        self._seen_workers = living

    def _progress(self, what: str, since: float) -> None:
        statuses = undisturbed(judge.runs_by_status)
        if statuses is None:
            shown = "the database is away"
        else:
            ended = sum(statuses.get(status, 0) for status in TERMINAL)
            shown = f"{sum(statuses.values())} runs, {ended} ended"
        faults = sum(self._faults.counts.values()) + sum(self._people.counts.values())
        self._say(f"{what} for {time.monotonic() - since:.0f} s: {shown}, {faults} faults")

    def _drain(self) -> None:
        """End load and faults, and let everything come to its end."""
        self._load.stop()
        self._faults.stop()
        self._fired = self._failpoints.switch_off()
        for endpoint in ENDPOINTS:
            self._ledger.fault_rates({}, endpoint=endpoint)
        if self._interrupted:
            return
        self._people.racing = self._people.together = self._people.braking = False
        insist(lambda: set_quick_limits(self._actors[ADMIN], self._workflows))

        fewest, since = sys.maxsize, time.monotonic()

        def over() -> bool:
            nonlocal fewest, since
            found = undisturbed(lambda: judge.under_way(timedelta(seconds=self.options.drain_limit)))
            if found is None:
                return False
            left = found + self._ledgers.webhooks_pending()
            if left < fewest:
                fewest, since = left, time.monotonic()
            self._drained = left == 0
            return self._drained or time.monotonic() - since > self.options.drain_limit

        self._during(LONGEST_DRAIN, "draining", over)

    # --- the end -------------------------------------------------------------------------------------------------------

    def _notes(self, lasted: float) -> Notes:
        counts: Counter[str] = Counter(self._faults.counts)
        for kind in (Kind.RACE, Kind.TOGETHER):
            counts[kind] += self._people.counts[kind]
        counts[Kind.FAILPOINT] += self._fired
        return Notes(
            seed=self.options.seed,
            duration=lasted,
            complete=not self._interrupted,
            still=self._drained,
            faults=dict(+counts),
            strikes=(*self._faults.strikes, *self._failpoint_strikes),
            confirmed=tuple(str(run_id) for run_id in self._load.confirmed),
            told=(*self._faults.wrong, *self._people.wrong),
            asked=tuple(self._book.asked),
        )

    def _stop_programs(self) -> None:
        """Workers and web first: what they are doing needs the sandbox. They get a moment, then they are killed."""
        for program in self._programs:
            program.ask_to_stop()
        deadline = time.monotonic() + (0 if self._asked_to_stop > 1 else STOP_TIMEOUT)
        for program in self._programs:
            program.wait(deadline - time.monotonic())
            program.kill()
        if self._sandbox_program is not None:
            self._sandbox_program.kill()

    def _say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)


@contextmanager
def _judgeable() -> Iterator[None]:
    """A sandbox that cannot be reached makes everything else worthless, whatever was asked of it."""
    try:
        yield
    except httpx.HTTPError as error:
        raise CannotJudge(f"The sandbox does not answer: {error}") from error


def _is_ready(cluster: Program) -> bool:
    return "worker ready" in cluster.log_path.read_text(errors="replace")


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/sign-in/", timeout=10, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _first_facts(log: Path) -> dict[str, Any]:
    """What the sandbox says about itself in its first line of JSON; empty until then."""
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            facts: dict[str, Any] = json.loads(line)
            return facts
    return {}
