"""Carries out the plan of faults, at its times, on what is there then."""

import heapq
import itertools
import json
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from django.conf import settings
from django.db import connection
from django.db.models import Q, QuerySet

from agentops.chaos.asked import Book
from agentops.chaos.judge import EDITS, Strike
from agentops.chaos.load import SAMPLES
from agentops.chaos.people import ADMIN, SUPPORT, undisturbed
from agentops.chaos.plan import Fault, Kind, Weights
from agentops.chaos.programs import Program
from agentops.chaos.proxy import Proxy
from agentops.embedded import PostgresServer
from agentops.embedded.server import StopMode
from runs import registry
from runs.bulk.selection import Filter
from runs.errors import StateMismatch, VerbError
from runs.lifecycle import Actor
from runs.models import Policy, Run
from runs.services import (
    Done,
    cancel,
    edit_state,
    force_resume,
    fork,
    kill,
    pause_workflow,
    preview_fork,
    resume_workflow,
    retry,
    set_limits,
    skip,
)
from runs.services.bulk import create_bulk
from runs.services.fork import visits
from runs.services.state import present
from runs.states import TERMINAL, Status

#: The gaps between two durable facts where a process may be killed or held up; the names are those of `runs.failpoints`.
FAILPOINTS = (
    *("claim.committed", "attempt.begun", "attempt.ended", "beat.before"),
    *("checkpoint.before", "checkpoint.committed", "suspend.before", "suspend.committed"),
    *(
        "intent.before",
        "intent.committed",
        "effect.before_send",
        "effect.answered",
        "outcome.before",
        "outcome.committed",
    ),
    *("query.before", "query.answered", "atomic.before_commit", "atomic.committed"),
)
#: Entries for each start of a cluster, and at which hit of a process the last one may fire.
ENTRIES, LATEST_HIT = 8, 120

#: Limits during a trial where nobody changes them: seconds. Back-off of minutes would only make it longer.
LIMITS = {
    Policy.Scope.TOOL: {"backoff_base_s": 0.2, "backoff_max_s": 2.0, "timeout_s": 5.0},
    Policy.Scope.WORKFLOW: {"backoff_base_s": 0.2, "backoff_max_s": 2.0},
}

#: Seconds of `length` 0 and 1.
DELAY_S = (0.01, 0.3)
DELAY_FOR_S = (1.0, 5.0)
PAUSE_FOR_S = (1.0, 6.0)
#: Above this `length` of a fork its last effect happens again.
FORKED_AGAIN = 0.8
#: Runs a minute of a bulk.
BULK_RATE = 600
#: Where a run goes on whose step is skipped, if not at the same one again.
NEXT_STEP = {("refund_request", "settle"): "tell"}
WAITING_STEPS = [step for _, step in NEXT_STEP]
#: In leases.
SHORT, LONG, HANG = (0.1, 0.7), (1.3, 3.0), (0.3, 1.7)


class Failpoints:
    """Switches failpoints on in clusters, each entry for one process of one start, and counts which have fired."""

    def __init__(self, seed: int, folder: Path, weights: Weights) -> None:
        self._seed, self._folder = seed, folder
        self._entries = ENTRIES * weights.get(Kind.FAILPOINT, 0)
        self._issued: list[Path] = []
        self._off = False
        folder.mkdir(exist_ok=True)

    def environment(self, name: str, start: int) -> dict[str, str]:
        """For the `start`-th start of a program."""
        dice = random.Random(f"{self._seed}/failpoints/{name}/{start}")
        entries = []
        for number in range(self._entries):
            action = "kill" if dice.random() < 0.7 else f"delay:{dice.uniform(0.2, 4):.1f}"
            marker = self._folder / f"{name}-{start}-{number}"
            entry = f"{dice.choice(FAILPOINTS)}={action}@{dice.randint(1, LATEST_HIT)};once:{marker}"
            entries.append(entry)
            if not self._off:
                self._issued.append(marker)
        return {} if self._off or not entries else {"AGENTOPS_FAILPOINTS": ",".join(entries)}

    def switch_off(self) -> int:
        """Let none fire any more; returns how many have."""
        self._off = True
        fired = 0
        for marker in self._issued:
            try:
                marker.touch(exist_ok=False)
            except FileExistsError:
                fired += 1
        return fired


class Cluster(Program):
    """A worker cluster, with failpoints of its own at each start."""

    failpoints: Failpoints | None = None

    def start(self) -> None:
        if self.failpoints is not None:
            self.env.pop("AGENTOPS_FAILPOINTS", None)
            self.env |= self.failpoints.environment(self.name.replace(" ", "-"), self.starts)
        super().start()


@dataclass(frozen=True)
class World:
    """What faults act on."""

    clusters: Sequence[Cluster]
    web: Program
    web_url: str
    server: PostgresServer
    proxy: Proxy
    actors: Mapping[str, Actor]
    workflows: Sequence[str]
    book: Book
    log_path: Path


@dataclass(order=True)
class _Later:
    at: float
    number: int
    work: Callable[[], None] = field(compare=False)


class Faults:
    """A thread that carries out the plan. `stop` undoes at once whatever is still to be undone."""

    def __init__(self, plan: Sequence[Fault], world: World) -> None:
        self._plan, self._world = list(plan), world
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)
        self._later: list[_Later] = []
        self._numbers = itertools.count()
        self._began_at = 0.0
        self.counts: Counter[str] = Counter()
        self.strikes: list[Strike] = []
        self.wrong: list[str] = []
        self.broken: BaseException | None = None

    def start(self) -> None:
        self._began_at = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(120)

    def struck(self, pid: int) -> bool:
        """Whether a fault of the plan has hit this process."""
        return any(pid in strike.pids for strike in self.strikes)

    def note(self, text: str) -> None:
        """A line of the trial's log, with the time as the database and all other logs have it."""
        with self._world.log_path.open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    def _run(self) -> None:
        try:
            for fault in self._plan:
                if self._wait_until(self._began_at + fault.at):
                    break
                undisturbed(lambda fault=fault: self._carry_out(fault))  # type: ignore[misc]
            self._wait_until(self._later[-1].at if self._later else 0.0)
        except Exception as error:  # told by the trial, which ends with it
            self.broken = error
        finally:
            while self._later:
                undisturbed(heapq.heappop(self._later).work)
            connection.close()

    def _wait_until(self, at: float) -> bool:
        """Wait, and do meanwhile what is due; True if the trial's faults are over."""
        while not self._stop.is_set():
            now = time.monotonic()
            while self._later and self._later[0].at <= now:
                undisturbed(heapq.heappop(self._later).work)
                now = time.monotonic()
            if now >= at:
                return False
            self._stop.wait(min([at, *(later.at for later in self._later[:1])]) - now)
        return True

    def _in(self, seconds: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._later, _Later(time.monotonic() + seconds, next(self._numbers), work))

    def _carry_out(self, fault: Fault) -> None:
        told = getattr(self, f"_{fault.kind}")(fault)
        if told:
            self.counts[fault.kind] += 1
            self.note(f"{fault.kind}: {told}")

    # --- processes -----------------------------------------------------------------------------------------------------

    def _kill_worker(self, fault: Fault) -> str:
        workers = [one for cluster in self._world.clusters for one in cluster.tree().third]
        return self._end(_picked(workers, fault), fault, ())

    def _kill_sentinel(self, fault: Fault) -> str:
        tree = self._cluster(fault).tree()
        return self._end(_picked(tree.second, fault), fault, tree.third)

    def _kill_main(self, fault: Fault) -> str:
        tree = self._cluster(fault).tree()
        return self._end(tree.main, fault, tree.third)

    def _kill_web(self, fault: Fault) -> str:
        tree = self._world.web.tree()
        # Mostly one of its workers; its main process once in a while.
        processes = [*tree.second, *tree.second, *([tree.main] if tree.main else [])]
        return self._end(_picked(processes, fault), fault, ())

    def _end(self, process: psutil.Process | None, fault: Fault, others: Sequence[psutil.Process]) -> str:
        if process is None:
            return ""
        self._strike(fault, (process, *others))
        with suppress(psutil.NoSuchProcess):
            process.kill()
        return f"process {process.pid}"

    def _freeze_short(self, fault: Fault) -> str:
        workers = [one for cluster in self._world.clusters for one in cluster.tree().third]
        processes = [*workers, *self._world.web.tree().second]
        return self._freeze(_chosen(processes, fault), _between(SHORT, fault.length))

    def _freeze_long(self, fault: Fault) -> str:
        workers = [one for cluster in self._world.clusters for one in cluster.tree().third]
        chosen = _chosen(workers, fault)
        self._strike(fault, chosen)
        return self._freeze(chosen, _between(LONG, fault.length))

    def _freeze_cluster(self, fault: Fault) -> str:
        tree = self._cluster(fault).tree()
        self._strike(fault, tree.third)
        return self._freeze(tree.all, _between(LONG, fault.length))

    def _freeze(self, processes: Sequence[psutil.Process], leases: float) -> str:
        if not processes:
            return ""
        seconds = leases * settings.AGENTOPS_LEASE_SECONDS
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        self._in(seconds, lambda: _thaw(processes))
        return f"processes {', '.join(str(one.pid) for one in processes)} for {seconds:.1f} s"

    def _drain(self, fault: Fault) -> str:
        cluster = self._cluster(fault)
        cluster.ask_to_stop()
        return cluster.name

    def _cluster(self, fault: Fault) -> Cluster:
        return self._world.clusters[int(fault.pick * len(self._world.clusters))]

    def _strike(self, fault: Fault, processes: Sequence[psutil.Process]) -> None:
        self.strikes.append(Strike(time.time(), fault.kind, tuple(process.pid for process in processes)))

    # --- the database --------------------------------------------------------------------------------------------------

    def _restart_fast(self, fault: Fault) -> str:
        return self._restart("fast")

    def _restart_immediate(self, fault: Fault) -> str:
        return self._restart("immediate")

    def _restart(self, mode: StopMode) -> str:
        connection.close()
        self._world.server.stop(mode)
        self._world.server.start()
        return mode

    def _cut_sessions(self, fault: Fault) -> str:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND backend_type = 'client backend' ORDER BY pid"
            )
            pids = [row[0] for row in cursor.fetchall()]
            chosen = random.Random(fault.pick).sample(pids, round(len(pids) * fault.size))
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS chosen (pid)", [chosen]
            )
        return f"{len(chosen)} of {len(pids)}" if chosen else ""

    def _cut_connections(self, fault: Fault) -> str:
        cut = self._world.proxy.cut(fault.size, fault.pick)
        return str(cut) if cut else ""

    def _delay(self, fault: Fault) -> str:
        late, seconds = _between(DELAY_S, fault.size), _between(DELAY_FOR_S, fault.length)
        self._world.proxy.delay(late)
        self._in(seconds, lambda: self._world.proxy.delay(0))
        return f"{late * 1000:.0f} ms for {seconds:.1f} s"

    def _hang(self, fault: Fault) -> str:
        seconds = _between(HANG, fault.length) * settings.AGENTOPS_LEASE_SECONDS
        self._world.proxy.hang(seconds)
        self._in(seconds, lambda: self._world.proxy.hang(0))
        return f"{seconds:.1f} s"

    # --- webhooks ------------------------------------------------------------------------------------------------------

    def _forged_webhook(self, fault: Fault) -> str:
        """A settlement that no provider has signed, for a run that waits for it. Accepting it is a violation."""
        waiting = list(
            Run.objects.filter(status=Status.WAITING).order_by("id").values_list("pk", flat=True)[:50]
        )
        run_id = waiting[int(fault.pick * len(waiting))] if waiting else uuid.UUID(int=0)
        body = json.dumps(
            {"type": "refund.settled", "data": {"run_id": str(run_id), "refund_id": "re_forged"}}
        )
        headers = {
            "Content-Type": "application/json",
            "webhook-id": f"msg_forged_{fault.pick}",
            "webhook-timestamp": str(int(time.time())),
            "webhook-signature": "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=",
        }
        url = f"{self._world.web_url}/webhooks/sandbox"
        try:
            answer = httpx.post(url, content=body, headers=headers, timeout=5, trust_env=False)
        except httpx.HTTPError:
            return "no answer"
        if answer.is_success:
            self.wrong.append(
                f"a webhook that nobody had signed was accepted for run {run_id}: {answer.text[:200]}"
            )
        return f"answered {answer.status_code}"

    # --- people --------------------------------------------------------------------------------------------------------

    def _change_limits(self, fault: Fault) -> str:
        dice = random.Random(fault.pick)
        scope, name = dice.choice(limited(self._world.workflows))
        values: dict[str, Any] = {
            "max_attempts": dice.randint(3, 12),
            "backoff_max_s": dice.uniform(0.2, 3),
        }
        if scope != Policy.Scope.WORKFLOW:
            values["timeout_s"] = dice.uniform(3, 12)
        return self._told(
            lambda: set_limits(self._world.actors[ADMIN], scope, name, reason="chaos", **values), name
        )

    def _pause(self, fault: Fault) -> str:
        workflow = self._world.workflows[int(fault.pick * len(self._world.workflows))]
        admin, seconds = self._world.actors[ADMIN], _between(PAUSE_FOR_S, fault.length)
        self._in(seconds, lambda: self._lift(workflow))
        return self._told(
            lambda: pause_workflow(admin, workflow, reason="chaos"), f"{workflow} for {seconds:.1f} s"
        )

    def _lift(self, workflow: str) -> None:
        resume_workflow(self._world.actors[ADMIN], workflow, reason="chaos")

    def _cancel(self, fault: Fault) -> str:
        return self._on_run(fault, _unfinished(), self._plainly(cancel))

    def _force_resume(self, fault: Fault) -> str:
        return self._on_run(fault, _unfinished(), self._plainly(force_resume))

    def _retry(self, fault: Fault) -> str:
        return self._on_run(fault, Run.objects.filter(status=Status.FAILED), self._plainly(retry))

    def _kill(self, fault: Fault) -> str:
        return self._on_run(fault, _unfinished(), self._plainly(kill, ADMIN))

    def _fork(self, fault: Fault) -> str:
        """At any of its visits; what would be repeated is agreed to, and sometimes more than that is to happen again."""

        def forked(run_id: uuid.UUID, reason: str) -> Done:
            run = Run.objects.get(pk=run_id)
            known = visits(run)
            if not known:
                raise StateMismatch("it never was anywhere")
            visit = known[int(fault.size * len(known))].number
            plan = preview_fork(run, visit)
            again = {line.operation for line in plan.to_confirm}
            if plan.optional and fault.length > FORKED_AGAIN:
                again.add(plan.optional[-1].operation)
            return fork(
                self._world.actors[SUPPORT],
                run_id,
                visit=visit,
                reason=reason,
                again={one for one in again if one is not None},
                seen_version=run.event_seq,
                seen_plan=plan.digest,
            )

        return self._on_run(fault, Run.objects.filter(status__in=TERMINAL), forked)

    def _skip(self, fault: Fault) -> str:
        """What waits for the provider's word goes on without it; any other step begins a new visit."""

        def skipped(run_id: uuid.UUID, reason: str) -> Done:
            run = Run.objects.get(pk=run_id)
            to = NEXT_STEP.get((run.workflow, run.step), run.step)
            return skip(self._world.actors[SUPPORT], run_id, to=to, reason=reason, seen_version=run.event_seq)

        idle = Q(status__in=[Status.RETRYING, Status.FAILED]) | Q(
            status=Status.WAITING, step__in=WAITING_STEPS
        )
        return self._on_run(fault, Run.objects.filter(idle, workflow__in=SAMPLES), skipped)

    def _edit_state(self, fault: Fault) -> str:
        """Add a line to it, which the judge looks for when the run has ended."""

        def edited(run_id: uuid.UUID, reason: str) -> Done:
            run = Run.objects.get(pk=run_id)
            shown = present(run).shown
            return edit_state(
                self._world.actors[SUPPORT],
                run_id,
                state=shown | {EDITS: [*shown.get(EDITS, []), reason]},
                reason=reason,
                seen_version=run.event_seq,
            )

        idle = Run.objects.filter(status__in=[Status.WAITING, Status.RETRYING, Status.FAILED])
        return self._on_run(fault, idle.filter(workflow__in=SAMPLES), edited)

    def _bulk(self, fault: Fault) -> str:
        """Workers do it; robots start it, look at its first runs, pause and resume it."""
        failed = Run.objects.filter(status=Status.FAILED)
        workflows = sorted(set(failed.values_list("workflow", flat=True)))
        if not workflows:
            return ""
        workflow, name = workflows[int(fault.pick * len(workflows))], self._world.book.reason()
        return self._told(
            lambda: create_bulk(
                self._world.actors[ADMIN],
                "retry",
                Filter(workflow=workflow),
                name=name,
                reason="the provider is back",
                rate=BULK_RATE,
                canary=1 + int(fault.size * 3),
            ),
            f"{workflow}, {name}",
        )

    def _plainly(self, verb: Callable[..., Done], by: str = SUPPORT) -> Callable[[uuid.UUID, str], Done]:
        return lambda run_id, reason: verb(self._world.actors[by], run_id, reason=reason)

    def _on_run(self, fault: Fault, runs: QuerySet[Run], work: Callable[[uuid.UUID, str], Done]) -> str:
        among = list(runs.order_by("-id").values_list("pk", flat=True)[:500])
        if not among:
            return ""
        run_id = among[int(fault.pick * len(among))]
        refusal = self._world.book.ask(fault.kind, run_id, lambda reason: work(run_id, reason))
        return f"run {run_id}" + (f", refused: {refusal}" if refusal else "")

    def _told(self, work: Callable[[], object], what: str) -> str:
        """A refusal is an answer, too."""
        try:
            work()
        except VerbError as error:
            return f"{what}, refused: {error}"
        return what


def limited(workflows: Sequence[str]) -> list[tuple[str, str]]:
    """What limits are set for: the workflows of the load, their steps, and all tools."""
    names = [(str(Policy.Scope.WORKFLOW), name) for name in workflows]
    names += [
        (str(Policy.Scope.STEP), f"{name}/{step}")
        for name in workflows
        for step in registry.workflow(name).steps
    ]
    return names + [(str(Policy.Scope.TOOL), tool.name) for tool in registry.tools()]


def set_quick_limits(admin: Actor, workflows: Sequence[str]) -> None:
    """Limits of a trial where nobody has changed them, or everything back to them."""
    for scope, name in limited(workflows):
        values: dict[str, Any] = dict.fromkeys(
            ("max_attempts", "backoff_base_s", "backoff_max_s", "timeout_s")
        )
        values |= LIMITS.get(Policy.Scope(scope), {})
        set_limits(admin, scope, name, reason="chaos", **values)


def _unfinished() -> QuerySet[Run]:
    return Run.objects.exclude(status__in=TERMINAL)


def _picked(processes: Sequence[psutil.Process], fault: Fault) -> psutil.Process | None:
    return processes[int(fault.pick * len(processes))] if processes else None


def _chosen(processes: Sequence[psutil.Process], fault: Fault) -> list[psutil.Process]:
    one = _picked(processes, fault)
    return [one] if one else []


def _between(bounds: tuple[float, float], share: float) -> float:
    low, high = bounds
    return low + (high - low) * share


def _thaw(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.resume()
