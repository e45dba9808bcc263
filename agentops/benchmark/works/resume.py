"""W3: a run that waits goes on: from a person's decision, or a signal, to the step's next line."""

import random
import time
import uuid
from collections.abc import Callable

from django.contrib.auth.models import Group, User
from django.db import connection

from agentops.benchmark.bench import ACTOR, Bench
from agentops.benchmark.figures import Figures, latencies
from agentops.benchmark.trace import TooSlow
from approvals.models import Approval
from approvals.services import decide
from runs import services
from runs.lifecycle import Actor
from runs.models import Run
from runs.states import Status

WARM = 10


def measure(bench: Bench) -> Figures:
    person = Actor.of(_operator())
    asked, listening = bench.size.samples + WARM, bench.size.samples + WARM
    with bench.workers():
        waiting = park(bench, "benchmark_asking", asked)
        shown = {a.run_id: a for a in Approval.objects.filter(run_id__in=waiting)}

        def approve(run_id: uuid.UUID) -> None:
            approval = shown[run_id]
            decide(person, approval.pk, version=approval.version, digest=approval.digest, verdict="approve")

        decided = _samples(bench, waiting, approve, "decided")

        def signal(run_id: uuid.UUID) -> None:
            services.receive_signal(
                ACTOR,
                name="benchmark",
                payload={},
                external_id=str(run_id),
                source="benchmark",
                run_id=run_id,
            )

        signalled = _samples(bench, park(bench, "benchmark_listening", listening), signal, "signalled")
    return latencies("W3", "", decided) | latencies("W3", "signal_", signalled)


def _samples(
    bench: Bench, waiting: list[uuid.UUID], act: Callable[[uuid.UUID], None], what: str
) -> list[float]:
    samples: list[float] = []
    for number, run_id in enumerate(waiting):
        time.sleep(random.uniform(0.02, 0.06))
        called = time.monotonic()
        act(run_id)
        line = bench.trace.one(number, {what}, 30, "the line after the wait")
        samples.append(line.at - called)
    return samples[WARM:]


def park(bench: Bench, workflow: str, count: int) -> list[uuid.UUID]:
    """Start runs and wait until each of them waits; returns their ids by number."""
    runs: list[uuid.UUID] = bench.start_many(workflow, 0, count)
    end = time.monotonic() + 60
    while Run.objects.filter(pk__in=runs).exclude(status=Status.WAITING).exists():
        if time.monotonic() > end:
            raise TooSlow(f"not within 60 s: all runs of {workflow} wait")
        time.sleep(0.05)
    numbers = dict(Run.objects.filter(pk__in=runs).values_list("pk", "input"))
    return sorted(runs, key=lambda pk: numbers[pk]["n"])


def _operator() -> User:
    """A person who may decide. The session of this process is warm afterwards."""
    user, _ = User.objects.get_or_create(
        username="benchmark", defaults={"password": "!", "is_superuser": True}
    )
    user.groups.add(Group.objects.get(name="operators"))
    connection.ensure_connection()
    return user
