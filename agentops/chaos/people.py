"""The people of a trial: robots who decide approvals, several of them at the same moment, answer what is in doubt, help forks on,
and see bulks to their end.

They look into the ledgers, as a person would into the provider's console, and never against them.
"""

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from django.contrib.auth.models import Group, User
from django.db import connection, transaction
from django.db.models import Q

from agentops.chaos.asked import DATABASE_AWAY, Answer, Book
from agentops.chaos.judge import keys_of
from agentops.chaos.ledgers import NOT_GIVEN, Ledgers
from agentops.chaos.plan import Kind, Weights
from approvals.inbox.together import Outcome, Together, decide_each
from approvals.models import Approval, Vote
from approvals.services import decide, edit
from runs import clock, codec, registry
from runs.errors import VerbError
from runs.lifecycle import Actor
from runs.models import Bulk, Operation, Run
from runs.models.operation import Kind as OperationKind
from runs.models.operation import OpStatus
from runs.services import Done, answer_doubt, bulk, cancel, force_resume, proof_of, skip
from runs.states import AttentionKind, Status

PAUSE_S = 0.3
AT_A_TIME = 20
MOST_IN_A_RACE = 4
#: Shares of approvals.
REJECTED = 0.06
RACED = 0.5
TOGETHER = 0.6
"""Of the looks at which there are like ones."""
PAUSED = 0.2
"""Of the looks at a bulk that is at work; as many are stopped for good as STOPPED says."""
STOPPED = 0.02
#: Like approvals that are decided with one verdict.
MOST_TOGETHER = 5
#: They count, if not as the last that was needed.
COUNTED = (Outcome.APPROVED, Outcome.REJECTED, Outcome.COUNTED)

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
    book: Book

    def decide(self, actor: Actor, verdict: str, *, stale: bool = False) -> bool:
        """Whether it counted. `stale`: of a page that shows another payload."""
        approval, counted = self.approval, []
        digest = "0" * 64 if stale else approval.digest

        def voted(reason: str) -> Done:
            done = decide(
                actor, approval.pk, version=approval.version, digest=digest, verdict=verdict, reason=reason
            )
            counted.append(done.changed)
            return done

        self.book.ask("decide", approval.run_id, voted)
        return counted == [True]

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

    def __init__(self, seed: int, weights: Weights, ledgers: Ledgers, tools: set[str], book: Book) -> None:
        """`tools`: those that a ledger is known to tell about, so that doubts can be answered."""
        self._dice = random.Random(f"{seed}/people")
        self._bulk_dice = random.Random(f"{seed}/bulks")  # of another thread
        self._book = book
        self.racing, self.together = Kind.RACE in weights, Kind.TOGETHER in weights
        self.braking = True
        """Whether bulks are paused now and then; else they are seen to their end."""
        self._ledgers, self._tools = ledgers, tools
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(MOST_IN_A_RACE, thread_name_prefix="person")
        self._threads = [
            threading.Thread(target=self._work, args=(work,), name=name, daemon=True)
            for name, work in (
                ("approvals", self._look_at_approvals),
                ("doubts", self._look_at_doubts),
                ("forks", self._look_at_forks),
                ("bulks", self._look_at_bulks),
            )
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
        found = list(Approval.objects.filter(state=Approval.State.OPEN).order_by("id")[:AT_A_TIME])
        if self.together and self._dice.random() < TOGETHER:
            self._attend_together(found)
        for approval in found:
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
            self._race(Shown(approval, self._book), able)
            return
        actor = self.actors[self._dice.choice(able)]
        verdict = "reject" if self._dice.random() < REJECTED else "approve"
        Shown(approval, self._book).decide(actor, verdict)

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
            if act == "stale":
                return shown.decide(actor, "approve", stale=True)
            if act != "edit":
                return shown.decide(actor, act)
            with suppress(VerbError):
                return shown.edit(actor)
            return False

        barrier.wait(10)
        counted = undisturbed(attempt)
        connection.close()
        if act == "stale" and counted:
            self.wrong.append(f"a vote on another payload than that of approval {shown.approval.pk} counted")

    def _attend_together(self, found: Sequence[Approval]) -> None:
        """Two people at the same moment, each with one verdict for the same requests, from a page of each's own."""
        names = self._dice.sample(DECIDERS, 2)
        ids = [approval.pk for approval in found if approval.name == found[0].name][:MOST_TOGETHER]
        if len(ids) < 2:
            return
        verdicts = ["approve", "reject" if self._dice.random() < REJECTED else "approve"]
        barrier = threading.Barrier(2)
        acts = [
            self._pool.submit(self._decide_together, barrier, self.actors[name], ids[::order], verdict)
            for name, order, verdict in zip(names, (1, -1), verdicts, strict=True)
        ]
        wait(acts)
        self.counts[Kind.TOGETHER] += 1
        for act in acts:
            if (error := act.exception()) is not None:
                raise error

    def _decide_together(
        self, barrier: threading.Barrier, actor: Actor, ids: Sequence[uuid.UUID], verdict: str
    ) -> None:
        """What each came to goes into the book, under one reason."""

        def decided() -> None:
            assert isinstance(actor.user, User)
            now = clock.now()
            page = Together(actor.user, ids, now)
            order = {item: place for place, item in enumerate(ids)}
            members = sorted(page.like, key=lambda member: order[member.id])
            reason = self._book.reason()
            ticks = [member.tick for member in members]
            with suppress(threading.BrokenBarrierError):  # the other one was kept away
                barrier.wait(10)
            answers = dict.fromkeys(order, Answer.UNKNOWN)
            try:
                told = decide_each(page, ticks, verdict=verdict, reason=reason, signed_in_at=now)
                for one in told:
                    answers[one.item] = Answer.DONE if one.outcome in COUNTED else Answer.REFUSED
            finally:
                for member in members:
                    self._book.note("decide", member.approval.run_id, reason, answers[member.id])

        try:
            undisturbed(decided)
        finally:
            barrier.abort()
            connection.close()

    # --- doubts --------------------------------------------------------------------------------------------------------

    def _look_at_doubts(self) -> None:
        asked = Q(run__status=Status.ATTENTION, run__attention_kind=AttentionKind.IN_DOUBT)
        # What a kill has left behind is answered as well, though nothing follows from it.
        doubts = Operation.objects.filter(asked | Q(run__status=Status.CANCELLED), status=OpStatus.PENDING)
        for operation in doubts.select_related("run").order_by("id")[:AT_A_TIME]:
            with suppress(VerbError):
                if self._can_be_known(operation.name):
                    self._answer(operation)
        failed = Run.objects.filter(status=Status.ATTENTION, attention_kind=AttentionKind.COMPENSATION)
        for run in failed.order_by("id")[:AT_A_TIME]:
            with suppress(VerbError):
                force_resume(self.actors[SUPPORT], run.pk, seen_version=run.event_seq, reason="once more")

    def _look_at_forks(self) -> None:
        """What a fork reuses was settled for the run that it was made from: nobody tells it again.

        One whose approval was decided otherwise than its source's comes to other calls, stops, and is given up.
        """
        forks = Run.objects.filter(forked_from__isnull=False).order_by("id")
        for run in forks.filter(workflow="refund_request", step="settle", status=Status.WAITING)[:AT_A_TIME]:
            self._book.ask("skip", run.pk, partial(self._go_on, run))
        for run in forks.filter(status=Status.ATTENTION, attention_kind=AttentionKind.DIVERGED)[:AT_A_TIME]:
            self._book.ask("cancel", run.pk, partial(self._give_up, run))

    def _give_up(self, run: Run, reason: str) -> Done:
        return cancel(self.actors[SUPPORT], run.pk, reason=reason, seen_version=run.event_seq)

    def _go_on(self, run: Run, reason: str) -> Done:
        return skip(self.actors[SUPPORT], run.pk, to="tell", reason=reason, seen_version=run.event_seq)

    def _look_at_bulks(self) -> None:
        """Start what is counted, go on after the first runs, pause and stop now and then, and resume."""
        admin, dice = self.actors[ADMIN], self._bulk_dice
        for one in Bulk.objects.filter(finished_at=None).order_by("id"):
            with suppress(VerbError):
                match one.status:
                    case Bulk.Status.READY:
                        bulk.start_bulk(admin, one.pk, seen_revision=one.revision)
                    case Bulk.Status.REVIEW:
                        bulk.continue_bulk(admin, one.pk, seen_revision=one.revision)
                    case Bulk.Status.PAUSED:
                        bulk.resume_bulk(admin, one.pk, seen_revision=one.revision)
                    case _ if self.braking and dice.random() < PAUSED:
                        brake = bulk.stop_bulk if dice.random() < STOPPED / PAUSED else bulk.pause_bulk
                        brake(admin, one.pk, reason="wait a moment")
                        self.counts["bulks braked"] += 1

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
