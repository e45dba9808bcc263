"""Random interleavings of everything that may happen to runs, against the real engine and PostgreSQL.

hypothesis draws what happens next: claims, single committed transactions of two or three workers, requests that land late or get
lost, deaths, freezes, lost answers of COMMIT, people, signals, time. After each step the invariants of DESIGN.md are checked
against the database and the provider's ledger; at the end the world calms down, and every run must come to an end.
"""

import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from approvals.models import Approval
from approvals.services import decide, edit
from runs import doctor
from runs.engine import doubt
from runs.errors import StateMismatch, VerbError
from runs.lifecycle import Actor
from runs.models import Attempt as AttemptRow
from runs.models import Event, Operation, Policy, Run
from runs.models.operation import Kind, OpStatus
from runs.services import (
    answer_doubt,
    cancel,
    clear_limits,
    declare_gone,
    force_resume,
    pause_workflow,
    receive_signal,
    resume_workflow,
    retry,
    set_limits,
    start,
)
from runs.states import TERMINAL, AttentionKind, Status
from tests import factories
from tests.model.flows import KINDS, SETTLE, WINDOW, Plan, Request, world
from tests.model.stage import Attempt, VirtualWorker, staged

pytestmark = pytest.mark.django_db(transaction=True)

PLANS = st.builds(
    Plan,
    of=st.just(""),
    kinds=st.tuples(*[st.sampled_from(KINDS)] * 3),
    wait=st.sampled_from(["none", "signal", "timed signal", "approval", "timer"]),
    undoable=st.booleans(),
    fails=st.sampled_from([0, 0, 1, 5]),
    short=st.sampled_from([False, False, True]),
)
PLACES = st.sampled_from(
    [
        "attempt.begun",
        "intent.before",
        "intent.committed",
        "effect.before_send",
        "tool.in_request",
        "effect.answered",
        "outcome.before",
        "outcome.committed",
        "verify.asked",
        "verify.answered",
        "suspend.before",
        "checkpoint.before",
        "attempt.ended",
    ]
)
ANSWERS = ("done", "done", "done, answer lost", "lost", "slow", "refused", "refused for good")
LENGTHS = (timedelta(minutes=2), timedelta(minutes=2), timedelta(minutes=20), timedelta(hours=2), 2 * WINDOW)
INDEX = st.integers(0, 11)

#: What must hold after each step, also while nobody sweeps; all other checks of doctor hold at the end.
ALWAYS = (
    doctor.no_wake_source,
    doctor.lost_wakeup,
    doctor.unwatched_time_limit,
    doctor.attention_without_doubt,
    doctor.unquiet_end,
    doctor.chain_head,
)


def pick[T](among: Sequence[T], n: int) -> T:
    return among[n % len(among)]


def examined(checks: Sequence[doctor.Check], grace: float = 0) -> list[doctor.Problem]:
    with transaction.atomic(), connection.cursor() as cursor:
        return doctor.run_checks(checks, doctor.Snapshot(cursor, grace))


class Protocol(RuleBasedStateMachine):
    people: ClassVar[dict[str, Actor]]

    def __init__(self) -> None:
        super().__init__()
        self.exit = ExitStack()
        self.stage = self.exit.enter_context(staged())
        self.plans: dict[uuid.UUID, Plan] = {}
        self.epochs: dict[uuid.UUID, int] = {}
        self.ended: dict[uuid.UUID, tuple[Any, ...]] = {}
        self.attempts_seen: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self.events_seen: dict[tuple[uuid.UUID, int], bytes] = {}
        self.approved: dict[str, set[int]] = {}
        self.sent = 0
        self.checked: set[uuid.UUID] = set()
        """Ends that have been compared with the ledger; again at the very end."""
        self.failed: list[uuid.UUID] = []
        self.doubtful: list[Operation] = []

    # --- what there is -------------------------------------------------------------------------------------------------

    @initialize(plans=st.lists(PLANS, min_size=1, max_size=2))
    def begin(self, plans: list[Plan]) -> None:
        self.stage.worker()
        self.stage.worker()
        for n, plan in enumerate(plans):
            named = plan.model_copy(update={"of": f"{self.stage.queue}/{n}"})
            run = start(Actor("test"), "m_whole", named, queue=self.stage.queue).run
            self.plans[run.pk] = named

    @property
    def living(self) -> list[VirtualWorker]:
        return [w for w in self.stage.workers if not w.dead]

    @property
    def attempts(self) -> list[Attempt]:
        return self.stage.attempts()

    # --- what may happen next: the rules; each draws one of the moves below --------------------------------------------

    @rule(n=INDEX, place=PLACES)
    def work(self, n: int, place: str) -> None:
        """Mostly somebody works: an attempt goes on, or a worker claims."""
        if self.attempts and (n % 4 or not self.living):
            self.as_far_as(pick(self.attempts, n), place)
        elif self.living:
            self.claim(pick(self.living, n))
        else:
            self.stage.worker()

    @rule(n=INDEX, place=PLACES)
    def work_on(self, n: int, place: str) -> None:
        self.work(n, place)

    @rule(n=INDEX)
    def work_to_the_end(self, n: int) -> None:
        if self.attempts:
            pick(self.attempts, n).finish()
        elif self.living:
            self.claim(pick(self.living, n))

    @precondition(lambda self: any(a.request and not a.request.answer for a in self.attempts))
    @rule(n=INDEX, how=st.sampled_from(ANSWERS))
    def answer(self, n: int, how: str) -> None:
        attempt = pick([a for a in self.attempts if a.request and not a.request.answer], n)
        known = attempt.request is not None and attempt.request.key in world.answers
        if how.startswith("refused") and known:
            how = "done"  # a provider does not refuse what it has done
        attempt.answer(how)

    @precondition(lambda self: self.flying())
    @rule(n=INDEX, lands=st.booleans())
    def a_request_arrives_or_never_does(self, n: int, lands: bool) -> None:
        self.arrive(pick(self.flying(), n), lands)

    @precondition(lambda self: self.living)
    @rule(
        what=st.sampled_from(
            [
                "kill",
                "lose host",
                "freeze",
                "freeze",
                "lose an answer",
                "lose an answer",
                "lose a claim",
                "drain",
            ]
        ),
        n=INDEX,
    )
    def fault(self, what: str, n: int) -> None:
        worker = pick(self.living, n)
        match what:
            case "kill" | "lose host":
                worker.kill(reaped=what == "kill")
            case "freeze":
                worker.freeze()
            case "lose an answer" if self.attempts:
                pick(self.attempts, n).loses = 1
            case "lose a claim":
                worker.claim(lose_answer=True)
            case "drain":
                worker.never.stopping = True

    @rule(what=st.sampled_from(["sweep", "beat", "beat", "reap", "hire", "declare gone"]), n=INDEX)
    def upkeep(self, what: str, n: int) -> None:
        awake = [w for w in self.living if not w.closed]
        lost = [w for w in self.stage.workers if w.dead and not w.reaped]
        if len(awake) < 2 and what in ("hire", "reap"):
            self.stage.worker()
        elif what == "sweep" and awake:
            pick(awake, n)._sweep()
        elif what == "beat" and awake:
            pick(awake, n).beat()
        elif what == "reap" and lost:
            pick(lost, n).reap()
        elif what == "declare gone" and lost:
            worker = pick(lost, n)
            declare_gone(self.people["admin"], worker.worker_id, reason="its host burnt")
            worker.reaped = True
            self.stage.sender_ended(worker)

    @rule(length=st.sampled_from(LENGTHS), lands=st.booleans())
    def time_passes(self, length: timedelta, lands: bool) -> None:
        if length > WINDOW:
            self.let_the_window_pass(lands)
        after = self.stage.elapsed + length
        for request in self.flying():
            if request.ended_at is not None and after - request.ended_at >= SETTLE - timedelta(seconds=30):
                self.arrive(request, lands)
        self.stage.pass_time(length)
        if length > WINDOW:
            world.forgotten |= set(world.answers)

    @rule(n=INDEX, what=st.sampled_from(["approve", "reject", "stale", "edit", "signal", "signal twice"]))
    def somebody_settles_a_wait(self, n: int, what: str) -> None:
        asked = self.approvals()
        if what.startswith("signal") or not asked:
            self.signal(pick(list(self.plans), n), again="twice" in what)
        elif what == "edit":
            self.edit(pick(asked, n))
        else:
            self.decide(pick(asked, n), "reject" if what == "reject" else "approve", stale=what == "stale")

    @precondition(lambda self: self.doubtful)
    @rule(n=INDEX)
    def somebody_says_what_happened(self, n: int) -> None:
        self.say(pick(self.doubtful, n))

    @precondition(lambda self: self.failed)
    @rule(n=INDEX)
    def somebody_retries(self, n: int) -> None:
        failed = pick(self.failed, n)
        retry(self.people["support"], failed, reason="again")
        del self.ended[failed]
        self.checked.discard(failed)

    @rule(n=INDEX, what=st.sampled_from(["force", "force", "cancel", "limits", "limits", "pause"]))
    def somebody_interferes(self, n: int, what: str) -> None:
        run = Run.objects.get(pk=pick(list(self.plans), n))
        match what:
            case "force":
                self.force_resume(run)
            case "cancel":
                self.cancel(run)
            case "limits":
                scope = pick(
                    ["m_whole/first_visit", "m_whole/second_visit", "m_A_verified", "m_B_unknowable"], n
                )
                kind = "step" if "/" in scope else "tool"
                most = pick([1, 2, 6], n // 4)
                set_limits(self.people["admin"], kind, scope, reason="", max_attempts=most)
            case "pause":
                paused = Policy.objects.filter(scope="workflow", name="m_whole", paused=True).exists()
                (resume_workflow if paused else pause_workflow)(self.people["admin"], "m_whole", reason="")

    # --- moves -----------------------------------------------------------------------------------------------------------

    def claim(self, worker: VirtualWorker) -> None:
        if not worker.closed:
            worker.snapshot.refresh()
            worker.claim()

    def as_far_as(self, attempt: Attempt, place: str) -> None:
        while attempt.step() not in (place, None, "tool.in_request"):
            pass

    def flying(self) -> list[Request]:
        return [r for r in world.net if r.state == "flying"]

    def arrive(self, request: Request, lands: bool) -> None:
        if lands:
            world.land(request)
        else:
            world.settle(request, "lost")

    def let_the_window_pass(self, lands: bool) -> None:
        """Whoever was allowed to send has sent long before it is over, or was killed for the lease it had lost."""
        for worker in self.living:
            if worker.lease.remaining < 0:
                worker.kill()
        for attempt in self.attempts:
            if attempt.place in ("intent.committed", "effect.before_send", "tool.in_request"):
                attempt.finish()
        for request in self.flying():
            self.arrive(request, lands)

    def signal(self, run_id: uuid.UUID, *, again: bool) -> None:
        self.sent += 1
        told = [
            receive_signal(
                Actor("test"),
                name="paid",
                payload=self.sent,
                run_id=run_id,
                source=self.stage.queue,
                external_id=f"{run_id} {self.sent}",
            )
            for _ in range(1 + again)
        ]
        assert [t.created for t in told] == [True, False][: len(told)]

    def approvals(self) -> list[Approval]:
        return list(Approval.objects.filter(run_id__in=self.plans).order_by("operation__started_at"))

    def decide(self, approval: Approval, verdict: str, *, stale: bool) -> None:
        was_open, version = approval.state == "open", approval.version
        shown = version - 1 if stale and version > 1 else version
        try:
            done = decide(
                self.people["operator"],
                approval.pk,
                version=shown,
                digest=approval.digest,
                verdict=verdict,
                reason="because",
            )
        except VerbError:
            assert not was_open or shown != version, "an open request can be decided"
            return
        assert shown == version
        if done.changed and verdict == "approve":
            assert was_open
            of = self.plans[approval.run_id].of
            self.approved.setdefault(of, set()).add(approval.payload["amount"])

    def edit(self, approval: Approval) -> None:
        arguments = {**approval.payload, "amount": approval.payload["amount"] + 10}
        try:
            edit(
                self.people["operator"],
                approval.pk,
                version=approval.version,
                arguments=arguments,
                reason="more",
            )
        except StateMismatch:
            return
        self.approved.pop(self.plans[approval.run_id].of, None)

    def cancel(self, run: Run) -> None:
        try:
            cancel(self.people["support"], run.pk, reason="enough")
        except StateMismatch:
            assert run.status in TERMINAL

    def force_resume(self, run: Run) -> None:
        try:
            force_resume(self.people["support"], run.pk, reason="go on")
        except StateMismatch:
            assert run.status in (*TERMINAL, Status.RUNNING, Status.ATTENTION)

    def say(self, operation: Operation) -> None:
        """A person says the truth as it is at this moment."""
        thing = self.thing(operation)
        if world.ledger[thing]:
            answer_doubt(
                self.people["operator"],
                operation.pk,
                happened=True,
                result=f"{thing} 1",
                reason="seen",
            )
            return
        try:
            answer_doubt(self.people["operator"], operation.pk, happened=False, reason="looked")
        except StateMismatch:  # not accepted yet
            return
        # Accepted as the truth for good: nothing is under way that could still make it untrue.
        assert not [r for r in self.flying() if r.thing == thing]

    def thing(self, operation: Operation) -> str:
        of = self.plans[operation.run_id].of
        return f"{of} undo" if operation.name == "m_undo" else f"{of} {operation.name.split('_')[1]}"

    # --- what must hold --------------------------------------------------------------------------------------------------

    @invariant()
    def one_effect_for_each_operation(self) -> None:
        twice = {thing: n for thing, n in world.ledger.items() if n > 1}
        assert not twice, f"the ledger shows an effect twice: {twice}"

    @invariant()
    def nothing_runs_that_nobody_approved(self) -> None:
        for plan in self.plans.values():
            thing = f"{plan.of} G"
            if thing in world.amounts:
                assert world.amounts[thing] in self.approved.get(plan.of, ()), "sent without its approval"

    @invariant()
    def rows_are_as_they_must(self) -> None:
        found = Run.objects.in_bulk(self.plans)
        runs = [found[run_id] for run_id in self.plans]
        self.failed = [run.pk for run in runs if run.status == Status.FAILED]
        standing = [run.pk for run in runs if run.attention_kind == AttentionKind.IN_DOUBT]
        pending = Operation.objects.filter(run_id__in=standing, status=OpStatus.PENDING)
        self.doubtful = list(pending.order_by("started_at")) if standing else []
        for run in runs:
            assert run.attention_kind != "diverged", run.reason
            assert run.epoch >= self.epochs.get(run.pk, 0), "an epoch went back"
            self.epochs[run.pk] = run.epoch
            end = (run.status, run.step_seq, run.result, run.failure_kind, run.finished_at)
            assert self.ended.setdefault(run.pk, end) == end if run.is_terminal else run.pk not in self.ended
            if run.is_terminal and run.pk not in self.checked:
                self.check_end(run, self.plans[run.pk])
                self.checked.add(run.pk)
            if run.cancel_requested_at is not None:
                later = Operation.objects.filter(
                    run=run, kind=Kind.EFFECT, compensates=None, intent_at__gt=run.cancel_requested_at
                )
                assert not later.exists(), "an effect began after the cancel"
        self.check_append_only()

    def check_end(self, run: Run, plan: Plan) -> None:
        done = {
            self.thing(o) for o in Operation.objects.filter(run=run, kind=Kind.EFFECT, status=OpStatus.DONE)
        }
        happened = {thing for thing, n in world.ledger.items() if n and thing.startswith(f"{plan.of} ")}
        assert happened == done, "the ledger and the record differ"
        if run.status == Status.COMPLETED:
            second = "G" if plan.wait == "approval" else "B"
            first = "U" if plan.undoable else "A"
            names = [first] if plan.short else [first, second, "C"]
            assert happened == {f"{plan.of} {name}" for name in names}
            assert [a for a in run.result if isinstance(a, str)] == [f"{plan.of} {name} 1" for name in names]
        if run.status == Status.CANCELLED:
            assert run.cancel_requested_at is not None
            assert (f"{plan.of} U" in happened) == (f"{plan.of} undo" in happened), "not compensated"
        elif run.cancel_requested_at is not None:
            assert run.finished_at is not None and run.finished_at <= run.cancel_requested_at, "cancel lost"

    def check_append_only(self) -> None:
        rows = AttemptRow.objects.filter(run_id__in=self.plans).values_list(
            "run_id", "step_seq", "attempt_no", "epoch", "outcome", "closed_by", "ended_at"
        )
        attempts = {row[:3]: row[3:] for row in rows}
        assert self.attempts_seen.items() <= attempts.items(), "an attempt changed or went"
        self.attempts_seen = attempts
        events = {
            (run, seq): bytes(head)
            for run, seq, head in Event.objects.filter(run_id__in=self.plans).values_list(
                "run_id", "seq", "head"
            )
        }
        assert self.events_seen.items() <= events.items(), "an event changed or went"
        self.events_seen = events

    @invariant()
    def the_data_is_healthy(self) -> None:
        assert examined(ALWAYS) == []

    # --- the end -----------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            if self.plans:
                self.come_to_an_end()
        finally:
            self.exit.close()

    def come_to_an_end(self) -> None:
        """The faults stop; what people are asked they answer: now every run must end."""
        for scope, name in Policy.objects.values_list("scope", "name"):
            if scope == "workflow":
                resume_workflow(self.people["admin"], name, reason="")
            clear_limits(self.people["admin"], scope, name, reason="")
        for attempt in self.attempts:
            attempt.loses = 0
        for worker in self.stage.workers:
            if not worker.dead:
                worker.kill()
            elif not worker.reaped:
                worker.reap()
        for request in self.flying():
            self.arrive(request, True)
        worker = self.stage.worker()
        for _ in range(60):
            unfinished = list(Run.objects.filter(pk__in=self.plans).exclude(status__in=TERMINAL))
            if not unfinished:
                break
            for run in unfinished:
                self.help(run)
            worker._sweep()
            worker.beat()
            for attempt in worker.claim():
                attempt.finish()
            self.check()
            self.stage.pass_time(timedelta(minutes=2))
        else:
            told = [(r.status, r.reason, r.wake_at, r.held_by, self.plans[r.pk]) for r in unfinished]
            raise AssertionError(f"some runs do not come to an end: {told}")
        self.checked.clear()
        self.check()
        assert [p for p in examined(doctor.DATA, grace=60) if p.severity == "error"] == []

    def check(self) -> None:
        self.one_effect_for_each_operation()
        self.nothing_runs_that_nobody_approved()
        self.rows_are_as_they_must()
        self.the_data_is_healthy()

    def help(self, run: Run) -> None:
        plan = self.plans[run.pk]
        if run.status == Status.WAITING and "signal" in plan.wait:
            self.signal(run.pk, again=False)
        for approval in Approval.objects.filter(run=run, state="open"):
            self.decide(approval, "approve", stale=False)
        if run.status == Status.ATTENTION:
            doubtful = Operation.objects.filter(run=run, status=OpStatus.PENDING).first()
            if doubtful is not None:
                self.say(doubtful)
            else:
                force_resume(self.people["support"], run.pk, reason="")


@pytest.fixture(autouse=True)
def people(transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Protocol.people = {
        "operator": factories.operator(),
        "support": factories.support(),
        "admin": factories.admin(),
    }
    doctor.load()
    # The pause after a restart of PostgreSQL: its server has been up for longer.
    settings.AGENTOPS_LEASE_SECONDS = 0.01
    monkeypatch.setattr(doubt, "LOOKS", 3)


def play(examples: int, steps: int, *, fixed: bool) -> None:
    run_state_machine_as_test(
        Protocol,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=fixed,
            database=None,
            deadline=None,
            print_blob=True,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_random_interleavings_keep_every_invariant_and_come_to_an_end() -> None:
    play(30, 40, fixed=True)


@pytest.mark.long
def test_many_random_interleavings_keep_every_invariant_and_come_to_an_end() -> None:
    play(5000, 80, fixed=False)
