"""Claim, cancel, signal, two decisions, time-out and force-resume of one run at one instant, by sessions of their own.

Whoever wins, nobody deadlocks, the run comes to an end, and callers are told who won. Every two of these and of all others, in
1,000 rounds: tests/races/test_pairs.py.
"""

import threading
from collections.abc import Callable
from typing import Any

from django.db import connection

from approvals.models import Approval
from approvals.services import decide
from runs.engine.worker import RunWorker
from runs.errors import VerbError
from runs.lifecycle import Actor
from runs.models import Operation, Run
from runs.services import cancel, force_resume, receive_signal, start
from tests import factories
from tests.harness.waiting import wait_until
from tests.races.stage import deadlocks
from tests.runs.engine import odd_flows  # noqa: F401
from tests.runs.engine.conftest import until
from tests.runs.engine.flows import world


class Racers:
    """Threads that stay, each with a session of its own; in every round all begin at one instant."""

    def __init__(self, count: int) -> None:
        self.calls: list[Callable[[], Any]] = []
        self.told: list[Any] = []
        self._go, self._done = threading.Barrier(count + 1), threading.Barrier(count + 1)
        self._over = False
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, n: int) -> None:
        try:
            while True:
                self._go.wait(120)
                if self._over:
                    return
                try:
                    self.told[n] = self.calls[n]()
                except Exception as error:
                    self.told[n] = error
                self._done.wait(120)
        finally:
            connection.close()

    def round(self, *calls: Callable[[], Any]) -> list[Any]:
        """Make all calls at one instant; what each returned or raised."""
        self.calls, self.told = list(calls), [None] * len(calls)
        self._go.wait(60)
        self._done.wait(60)
        return self.told

    def end(self) -> None:
        self._over = True
        self._go.wait(10)
        for thread in self._threads:
            thread.join(10)


def vote(who: Actor, approval: Approval, verdict: str) -> Callable[[], Any]:
    return lambda: decide(
        who, approval.pk, version=1, digest=approval.digest, verdict=verdict, reason="because"
    )


class People:
    def __init__(self) -> None:
        self.yes, self.no, self.support = factories.operator(), factories.operator(), factories.support()

    def calls(
        self, run: Run, approval: Approval, *, payload: int, cancelling: bool
    ) -> list[Callable[[], Any]]:
        return [
            vote(self.yes, approval, "approve"),
            vote(self.no, approval, "reject"),
            lambda: receive_signal(
                Actor("test"),
                name="paid",
                payload=payload,
                run_id=run.pk,
                source="test",
                external_id=str(run.pk),
            ),
            lambda: cancel(self.support, run.pk, reason="enough") if cancelling else None,
            lambda: force_resume(self.support, run.pk, reason="go on"),
        ]


def begun(limit_ms: int) -> tuple[Run, Approval]:
    """A run that waits for a decision, which expires after `limit_ms`, and for a signal."""
    run = start(Actor("test"), "o_racing", {"n": limit_ms}).run

    def opened() -> bool:
        return Operation.objects.filter(run=run, kind__in=["signal", "approval"]).count() == 2

    wait_until(opened, 15, "both waits are open")
    return run, Approval.objects.get(run=run)


def play(rounds: int) -> None:
    world.__init__()  # type: ignore[misc]
    people, racers, before = People(), Racers(5), deadlocks()
    endings: set[str] = set()
    for n in range(rounds):
        run, approval = begun((40, 120, 60_000)[n % 3])
        told = racers.round(*people.calls(run, approval, payload=n, cancelling=n % 2 == 1))
        unexpected = [t for t in told if isinstance(t, Exception) and not isinstance(t, VerbError)]
        assert not unexpected
        run = until(run)
        approval.refresh_from_db()
        won = [
            v for v, t in zip(("approved", "rejected"), told, strict=False) if not isinstance(t, Exception)
        ]
        assert won in ([], [approval.state]), (won, approval.state)
        assert run.status == "cancelled" or (n % 2 == 0 and run.result == [approval.state, n]), run.reason
        endings.add(f"{run.status} {approval.state}")
    racers.end()
    assert deadlocks() == before
    # Whoever was allowed to pay has paid once.
    assert world.ledger["pay"] == len(world.by_key) <= rounds
    assert len(endings) > 1


def test_twenty_races_have_one_winner_each_and_lose_no_wake_up(worker: RunWorker) -> None:
    play(20)
