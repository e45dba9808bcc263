"""Two hundred refunds while workers are killed every two seconds and PostgreSQL is restarted once.

Nothing may be lost and nothing may happen twice; a mail cut in mid-send stands in attention, is answered from the ledger
and then completes.
"""

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest
from django.db import OperationalError, connection

from agentops.sandbox.client import SandboxLedger
from approvals.models import Approval
from approvals.services import decide
from runs.errors import VerbError
from runs.lifecycle import Actor
from runs.models import Attempt, Operation, Run
from runs.services import answer_doubt, start_many
from tests import factories
from tests.chaos.conftest import QUICK
from tests.harness.processes import Child, Processes
from tests.harness.server import ThrowAwayServer

RUNS = 200
KILL_EVERY_S = 2.0


class Killer:
    """Kills one worker process of a cluster every two seconds, until told to stop."""

    def __init__(self, cluster: Child) -> None:
        self.cluster, self.kills = cluster, 0
        self._random = random.Random(7)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="killer")

    def __enter__(self) -> "Killer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(KILL_EVERY_S):
            workers = self.cluster.tree().workers
            if workers:
                with suppress(psutil.NoSuchProcess):
                    self._random.choice(workers).kill()
                    self.kills += 1


def orders(numbers: range) -> Iterator[str]:
    for n in numbers:
        # Every fifth asks for more than may be refunded without approval, where the order is worth it.
        amount = 180 if n % 5 == 0 else 12
        message = f"The lamp arrived broken. Please refund {amount} EUR."
        yield json.dumps({"order_id": str(5000 + n), "message": message})


def answer_people(operator: Actor, ledger: SandboxLedger) -> None:
    """Approve what waits for a person; answer doubts by what the ledger says."""
    for approval in Approval.objects.filter(state="open")[:20]:
        with suppress(VerbError):
            decide(
                operator,
                approval.pk,
                version=approval.version,
                digest=approval.digest,
                verdict="approve",
                reason="",
            )
    for operation in Operation.objects.filter(
        status="pending", run__status="attention", run__attention_kind="in_doubt"
    ).select_related("run"):
        found = ledger.entries(key=str(operation.provider_key))
        happened = bool(found)
        # "It did not" is refused until the sender has ended and its request can no longer land; then it is asked again.
        with suppress(VerbError):
            answer_doubt(
                operator,
                operation.pk,
                seen_version=operation.run.event_seq,
                happened=happened,
                reference=(found[0].reference or "") if happened else "",
                reason="looked at the ledger",
            )


def begin(numbers: range) -> None:
    batches = list(start_many(Actor("test"), "refund_request", orders(numbers)))
    assert sum(len(batch.started) for batch in batches) == len(numbers)


def unexpected() -> list[object]:
    """Runs that nobody has to ask a person about, and that stand still all the same."""
    still = Run.objects.filter(status__in=["failed", "cancelled", "attention"]).exclude(
        attention_kind="in_doubt"
    )
    return list(still.values_list("pk", "status", "step", "reason")[:5])


@pytest.mark.django_db(transaction=True)
def test_every_refund_charge_and_mail_happens_once_whatever_dies(
    processes: Processes, postgres_server: ThrowAwayServer
) -> None:
    sandbox = processes.sandbox("--settle-delay", "0.5")
    surroundings = {
        **QUICK,
        "AGENTOPS_APPS": "",
        "AGENTOPS_SANDBOX_URL": sandbox.url,
        "AGENTOPS_SMTP_HOST": sandbox.smtp.rpartition(":")[0],
        "AGENTOPS_SMTP_PORT": sandbox.smtp.rpartition(":")[2],
    }
    _, console = processes.web(env=surroundings)
    operator = factories.operator()
    with SandboxLedger(sandbox.url) as ledger:
        ledger.send_webhooks_to(f"{console}/webhooks/sandbox")
        begin(range(RUNS // 2))
        cluster = processes.worker(env=surroundings)
        restarted = False
        with Killer(cluster) as killer:
            deadline = time.monotonic() + 240
            while time.monotonic() < deadline:
                try:
                    answer_people(operator, ledger)
                    left = Run.objects.exclude(status="completed").count()
                except OperationalError:
                    connection.close()
                    continue
                if (restarted and left == 0) or unexpected():
                    break
                # The second half meets a server that has just started, and workers that have died by then.
                if not restarted and left < RUNS // 4 and killer.kills >= 3:
                    restarted = True
                    connection.close()
                    begin(range(RUNS // 2, RUNS))
                    postgres_server.restart("immediate")
                time.sleep(0.2)
        stuck = list(Run.objects.exclude(status="completed").values_list("pk", "status", "step", "reason"))
        assert not unexpected(), unexpected()
        assert not stuck, f"{len(stuck)} left: {stuck[:5]}\n{processes.logs()}"
        assert restarted
        assert killer.kills >= 3

        summary = ledger.summary()
        assert not summary.repeated, summary.repeated[:5]
        assert not summary.repeated_by_order, summary.repeated_by_order[:5]
        effects = Operation.objects.filter(kind="effect", status="done")
        for kind, tool in (("refund", "refund"), ("charge", "charge"), ("mail", "send_mail")):
            assert summary.counts.get(kind, 0) == effects.filter(name=tool).count()
        assert Run.objects.count() == summary.counts["mail"] == RUNS
        assert Attempt.objects.filter(outcome="crashed").exists()
    assert cluster.returncode is None
