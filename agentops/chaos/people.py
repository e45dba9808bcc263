"""The people of a trial: robots who decide approvals, several of them at the same moment, and who answer what is in doubt.

They look into the ledgers, as a person would into the provider's console, and never against them.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import Group, User
from django.db import InterfaceError, OperationalError, connection, transaction

from agentops.chaos.judge import keys_of
from agentops.chaos.ledgers import NOT_GIVEN, Ledgers
from agentops.chaos.plan import Kind, Weights
from approvals.models import Approval, Vote
from approvals.services import decide, edit
from runs import codec, registry
from runs.errors import Stale, VerbError
from runs.lifecycle import Actor
from runs.models import Operation, Run
from runs.models.operation import Kind as OperationKind
from runs.models.operation import OpStatus
from runs.services import answer_doubt, force_resume, proof_of
from runs.states import AttentionKind, Status

PAUSE_S = 0.3
AT_A_TIME = 20
MOST_IN_A_RACE = 4
#: Shares of approvals.
REJECTED = 0.06
RACED = 0.5

PEOPLE = {
    "sam": ("support",),
    "sue": ("support",),
    "olivia": ("operators",),
    "omar": ("operators",),
    "otto": ("operators",),
    "ada": ("admins", "operators", "support"),
}
STARTER, SUPPORT, ADMIN = "sam", "sue", "ada"
DECIDERS = ("olivia", "omar", "otto", "ada")

DATABASE_AWAY = (OperationalError, InterfaceError)


@transaction.atomic
def make() -> dict[str, Actor]:
    """The people, by name; made at the first call. Nobody can sign in as one of them."""
    actors = {}
    for name, groups in PEOPLE.items():
        user, _ = User.objects.get_or_create(username=name)
        user.groups.set(Group.objects.filter(name__in=groups))
        actors[name] = Actor.of(user)
    return actors


def undisturbed[T](work: Callable[[], T]) -> T | None:
    """What `work` returns; None if the database was away, as it often is here."""
    try:
        return work()
    except DATABASE_AWAY:
        connection.close()
        return None


def insist[T](work: Callable[[], T], seconds: float = 60.0) -> T:
    """What `work` returns, tried again for so long while the database is away; then its error is raised."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return work()
        except DATABASE_AWAY:
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@dataclass(frozen=True)
class Shown:
    """An approval as a page showed it to somebody."""

    approval: Approval

    def decide(self, actor: Actor, verdict: str, *, stale: bool = False) -> bool:
        """Whether it counted. `stale`: of a page that shows another payload."""
        digest = "0" * 64 if stale else self.approval.digest
        reason = "" if verdict == "approve" else "not this one"
        version = self.approval.version
        return decide(
            actor, self.approval.pk, version=version, digest=digest, verdict=verdict, reason=reason
        ).changed

    def edit(self, actor: Actor) -> bool:
        arguments: dict[str, Any] = codec.decode(self.approval.payload)
        if "amount" in arguments:
            arguments["amount"] -= Decimal("1.00")
        elif "role" in arguments:
            arguments["role"] = "owner"
        else:
            return False
        reason = "a little less"
        return edit(
            actor, self.approval.pk, version=self.approval.version, arguments=arguments, reason=reason
        ).changed


class People:
    """Threads that do what people do until they are told to stop."""

    def __init__(self, seed: int, weights: Weights, ledgers: Ledgers, tools: set[str]) -> None:
        """`tools`: those that a ledger is known to tell about, so that doubts can be answered."""
        self._dice = random.Random(f"{seed}/people")
        self.racing = Kind.RACE in weights
        self._ledgers, self._tools = ledgers, tools
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(MOST_IN_A_RACE, thread_name_prefix="person")
        self._threads = [
            threading.Thread(target=self._work, args=(work,), name=name, daemon=True)
            for name, work in (("approvals", self._look_at_approvals), ("doubts", self._look_at_doubts))
        ]
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.broken: BaseException | None = None
        self.actors: dict[str, Actor] = {}

    def start(self) -> None:
        self.actors = make()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(30)
        self._pool.shutdown()

    def _work(self, look: Callable[[], None]) -> None:
        while not self._stop.wait(PAUSE_S):
            try:
                undisturbed(look)
            except Exception as error:  # told by the trial, which ends with it
                self.broken = error
                return
        connection.close()

    # --- approvals -----------------------------------------------------------------------------------------------------

    def _look_at_approvals(self) -> None:
        for approval in Approval.objects.filter(state=Approval.State.OPEN).order_by("id")[:AT_A_TIME]:
            if self._stop.is_set():
                return
            self._attend(approval)

    def _attend(self, approval: Approval) -> None:
        voted = Vote.objects.filter(approval=approval, version=approval.version)
        names = set(DECIDERS) - set(voted.values_list("voter_name", flat=True))
        able = sorted(names)
        if not able:
            return
        if self.racing and self._dice.random() < RACED:
            self._race(Shown(approval), able)
            return
        actor = self.actors[self._dice.choice(able)]
        verdict = "reject" if self._dice.random() < REJECTED else "approve"
        with suppress(VerbError):
            Shown(approval).decide(actor, verdict)

    def _race(self, shown: Shown, able: Sequence[str]) -> None:
        """Several people act on one approval at the same moment; each is told what became of it."""
        scene = ["approve", self._dice.choice(("approve", "reject", "edit", "stale", "approve"))]
        scene += self._dice.choices(("approve", "stale", "approve"), k=self._dice.randint(0, 2))
        self._dice.shuffle(scene)
        actors = [self.actors[name] for name in self._dice.sample(able, min(len(able), len(scene)))]
        barrier = threading.Barrier(len(actors))
        racers = [
            self._pool.submit(self._act, barrier, shown, actor, act)
            for actor, act in zip(actors, scene, strict=False)
        ]
        wait(racers)
        self.counts[Kind.RACE] += 1
        for racer in racers:
            if (error := racer.exception()) is not None:
                raise error

    def _act(self, barrier: threading.Barrier, shown: Shown, actor: Actor, act: str) -> None:
        def attempt() -> bool:
            with suppress(VerbError):
                return shown.edit(actor) if act == "edit" else shown.decide(actor, act)
            return False

        def stale() -> bool:
            try:
                return shown.decide(actor, "approve", stale=True)
            except Stale:
                return False
            except VerbError:
                return False

        barrier.wait(10)
        counted = undisturbed(stale if act == "stale" else attempt)
        connection.close()
        if act == "stale" and counted:
            self.wrong.append(f"a vote on another payload than that of approval {shown.approval.pk} counted")

    # --- doubts --------------------------------------------------------------------------------------------------------

    def _look_at_doubts(self) -> None:
        doubts = Operation.objects.filter(
            status=OpStatus.PENDING, run__status=Status.ATTENTION, run__attention_kind=AttentionKind.IN_DOUBT
        )
        for operation in doubts.select_related("run").order_by("id")[:AT_A_TIME]:
            with suppress(VerbError):
                if self._can_be_known(operation.name):
                    self._answer(operation)
        failed = Run.objects.filter(status=Status.ATTENTION, attention_kind=AttentionKind.COMPENSATION)
        for run in failed.order_by("id")[:AT_A_TIME]:
            with suppress(VerbError):
                force_resume(self.actors[SUPPORT], run.pk, seen_version=run.event_seq, reason="once more")

    def _can_be_known(self, tool: str) -> bool:
        """Whether a ledger tells about this tool; one that has told once does."""
        if tool not in self._tools:
            done = Operation.objects.filter(
                kind=OperationKind.EFFECT, name=tool, status=OpStatus.DONE
            ).order_by("id")[:AT_A_TIME]
            if self._ledgers.under([key for operation in done for key in keys_of(operation)]):
                self._tools.add(tool)
        return tool in self._tools

    def _answer(self, operation: Operation) -> None:
        # The proof first: what is not in the ledger after it never will be.
        certain = proof_of(operation).accepted
        found = self._ledgers.under(keys_of(operation))
        if not found and not certain:
            return
        result, reference = NOT_GIVEN, ""
        if found and registry.tool(operation.name).from_reference is not None:
            reference = found[-1].reference
        elif found:
            result = found[-1].result
        given = {} if result is NOT_GIVEN else {"result": result}
        answer_doubt(
            self.actors[SUPPORT],
            operation.pk,
            seen_version=operation.run.event_seq,
            happened=bool(found),
            reference=reference,
            reason="looked into the ledger",
            **given,
        )
        self.counts["doubts answered"] += 1
