"""Who races with whom, in which situation, and who may win.

Each of the twelve acts through the code that production uses. A scene prepares runs in a state in which both can act; where the
state of a run rules one of them out (a run that can be retried is not running), the scene brings about the moment between: the
checkpoint that fails the run while the retry arrives, or a worker of long ago that comes back to a run that is being deleted.
"""

import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

from approvals.models import Approval
from approvals.services import decide
from runs import clock, policies
from runs.engine import leases
from runs.errors import NotFound, Unavailable, VerbError
from runs.models import Attempt, Policy, Signal, Worker
from runs.services import (
    cancel,
    force_resume,
    pause_workflow,
    receive_signal,
    resume_workflow,
    retention,
    retry,
    set_limits,
)
from tests.races.flows import GATES, Gate
from tests.races.stage import SYSTEM, Act, Case, Stage

ACTORS = (
    "claim",
    "checkpoint",
    "beat",
    "expiry",
    "signal",
    "decision",
    "timeout",
    "cancel",
    "resume",
    "retry",
    "limit",
    "retention",
)
PAIRS = list(combinations_with_replacement(ACTORS, 2))

#: Those that wait for the lock of the run (or hold it while they wait for another); all others pass a locked run by.
WAIT = {"checkpoint", "signal", "decision", "cancel", "resume", "retry", "retention"}

type Prepare = Callable[[Stage, int], list[Case]]
type Make = Callable[[Stage, Case, int], Act]
"""Makes what one side does; the last argument is the side, 0 or 1."""


# --- situations: so many runs in a state -------------------------------------------------------------------------------


def queued(text: str = "complete") -> Prepare:
    return lambda stage, count: stage.start(text, count)


def performed(text: str, limit_ms: int | None = None, workflow: str = "r_racing") -> Prepare:
    """Executed once: it waits, or has failed, as the text says."""

    def prepare(stage: Stage, count: int) -> list[Case]:
        cases = stage.start(text, count, limit_ms=limit_ms, workflow=workflow)
        stage.perform(cases)
        approvals = {a.run_id: a for a in Approval.objects.filter(run__in=[c.run_id for c in cases])}
        for case in cases:
            case.approval = approvals.get(case.run_id)
        return cases

    return prepare


def waiting(text: str = "signal") -> Prepare:
    return performed(text)


def both_waiting(stage: Stage, count: int) -> list[Case]:
    return performed("", workflow="r_racing_both")(stage, count)


def expired(text: str = "signal") -> Prepare:
    """Waiting, and due since its time limit has passed."""
    return performed(text, limit_ms=1)


def failed_by_expiry(text: str) -> Prepare:
    def prepare(stage: Stage, count: int) -> list[Case]:
        cases = expired(text)(stage, count)
        stage.perform(cases)
        return cases

    return prepare


def gated(text: str = "complete", neighbours: bool = False) -> Prepare:
    """Executed by a worker of its own, the body standing at its gate; with two neighbours in the same worker."""

    def prepare(stage: Stage, count: int) -> list[Case]:
        cases = stage.start(text, count)
        for case in cases:
            stage.at_gate(case)
        if neighbours:
            for case, *others in zip(cases, *[iter(stage.start("goto", 2 * count))] * 2, strict=True):
                _beside(stage, case, others)
        return cases

    return prepare


def _beside(stage: Stage, case: Case, others: Sequence[Case]) -> None:
    """Other runs in the worker of this case: their checkpoints may share a statement with its."""
    (hand,) = case.hands
    for other in others:
        gate = Gate()
        GATES.setdefault(other.run_id, deque()).append(gate)
        assert hand.claim(other.queue) == 1
        assert gate.arrived.wait(20)
        case.neighbours.append(gate)


def given_back(prepare: Prepare) -> Prepare:
    """Each run is due again, although its body still stands at the gate: that worker is a zombie."""

    def back(stage: Stage, count: int) -> list[Case]:
        cases = prepare(stage, count)
        for case in cases:
            assert leases.hand_back_stray(case.run_id, case.hands[0].worker_id, case.run.epoch)
        return cases

    return back


def gated_again(prepare: Prepare) -> Prepare:
    """Waiting runs whose body is executed once more, with the wait open, and stands at the gate."""

    def again(stage: Stage, count: int) -> list[Case]:
        cases = prepare(stage, count)
        dying = stage.hand()
        for case in cases:
            stage.execute(
                "UPDATE runs_run SET wake_at = agentops_now(), sort_at = agentops_now() WHERE id = %s",
                case.run_id,
            )
            ((_, epoch),) = dying.claim_and_die(case.queue)
            assert leases.hand_back_stray(case.run_id, dying.worker_id, epoch)
            stage.at_gate(case)
        return cases

    return again


def claimed_again(prepare: Prepare) -> Prepare:
    """Executed by a second worker, whose body stands at a gate of its own."""

    def again(stage: Stage, count: int) -> list[Case]:
        cases = prepare(stage, count)
        for case in cases:
            stage.at_gate(case)
        return cases

    return again


def claimed_by_the_dead(prepare: Prepare) -> Prepare:
    def claimed(stage: Stage, count: int) -> list[Case]:
        cases = prepare(stage, count)
        for case in cases:
            case.hands.append(stage.hand())
            assert case.hands[0].claim_and_die(case.queue)
        return cases

    return claimed


def old(prepare: Prepare) -> Prepare:
    """Finished a hundred days ago."""

    def aged(stage: Stage, count: int) -> list[Case]:
        cases = prepare(stage, count)
        for case in cases:
            if not case.run.is_terminal:
                cancel(stage.support, case.run_id)
        stage.execute(
            "INSERT INTO runs_clock VALUES (1, '100 days') ON CONFLICT (id) DO UPDATE SET shift = runs_clock.shift + '100 days'"
        )
        return cases

    return aged


def old_zombie(stage: Stage, count: int) -> list[Case]:
    """Completed long ago by another worker than the one whose body still stands at its gate."""
    cases = given_back(gated())(stage, count)
    stage.perform(cases)
    return old(lambda stage, count: cases)(stage, count)


# --- just before a round -----------------------------------------------------------------------------------------------


def nothing(stage: Stage, case: Case) -> None: ...


def lease_over(stage: Stage, case: Case) -> None:
    case.hands[0].lasts(seconds=-1)


def lease_of_claimer_over(stage: Stage, case: Case) -> None:
    stage.hands[0].lasts(seconds=-1)


def due(stage: Stage, case: Case) -> None:
    force_resume(stage.support, case.run_id)


def no_limits(stage: Stage, case: Case) -> None:
    Policy.objects.all().delete()


def retrying(stage: Stage, case: Case) -> None:
    """Fails once and backs off for long; limits are those of the code."""
    no_limits(stage, case)
    stage.perform([case])
    stage.perform([case])
    assert case.run.status == "retrying"
    case.version = case.run.event_seq


def deaths(lone: int) -> Callable[[Stage, Case], None]:
    """Its worker is dead, and workers have died with it before."""

    def set_up(stage: Stage, case: Case) -> None:
        no_limits(stage, case)
        stage.execute("UPDATE runs_run SET crashes = 1, lone_crashes = %s WHERE id = %s", lone, case.run_id)
        lease_over(stage, case)

    return set_up


def paused_on_odd_rounds(stage: Stage, case: Case) -> None:
    no_limits(stage, case)
    if case.n % 2:
        pause_workflow(stage.admin, "r_racing")


# --- what they do --------------------------------------------------------------------------------------------------------


def claim(stage: Stage, case: Case, side: int) -> Act:
    """Claim the run and execute it as far as it goes."""

    def act() -> int:
        claimed = stage.hands[side].claim(case.queue)
        stage.hands[side].idle()
        return claimed

    return act


def checkpoint(stage: Stage, case: Case, side: int) -> Act:
    """Let the body end its attempt."""
    mine = side if len(case.gates) > 1 else 0

    def act() -> None:
        for gate in (*case.neighbours, case.gates[mine]):
            gate.open()
        case.hands[mine].idle()

    return act


def beat(stage: Stage, case: Case, side: int) -> Act:
    hand = case.hands[0] if case.hands else stage.hands[0]
    return lambda: hand.beat(stage.raw[side])


def expiry(stage: Stage, case: Case, side: int) -> Act:
    return leases.sweep


def signal(stage: Stage, case: Case, side: int) -> Act:
    return lambda: receive_signal(
        SYSTEM, name="paid", payload=case.n, run_id=case.run_id, source="race", external_id=str(case.run_id)
    )


def another_signal(stage: Stage, case: Case, side: int) -> Act:
    return lambda: receive_signal(
        SYSTEM,
        name="paid",
        payload=case.n,
        run_id=case.run_id,
        source=f"{side}",
        external_id=str(case.run_id),
    )


def decision(stage: Stage, case: Case, side: int) -> Act:
    assert case.approval is not None
    approval = case.approval
    who, verdict = ((stage.yes, "approve"), (stage.no, "reject"))[side]
    return lambda: decide(
        who, approval.pk, version=approval.version, digest=approval.digest, verdict=verdict, reason="so"
    )


def ask_cancel(stage: Stage, case: Case, side: int) -> Act:
    return lambda: cancel(stage.support, case.run_id, reason="enough")


def resume(stage: Stage, case: Case, side: int) -> Act:
    return lambda: force_resume(stage.support, case.run_id, seen_version=case.version, reason="go on")


def ask_retry(stage: Stage, case: Case, side: int) -> Act:
    return lambda: retry(stage.support, case.run_id, reason="again")


def attempts_limited(step: str) -> Make:
    return lambda stage, case, side: (
        lambda: set_limits(stage.admin, "step", f"r_racing/{step}", max_attempts=1)
    )


def attempts_limited_as_seen(stage: Stage, case: Case, side: int) -> Act:
    return lambda: set_limits(
        stage.admin, "step", "r_racing/late", seen_revision=0, max_attempts=1 + side, reason="race"
    )


def crashes_limited(stage: Stage, case: Case, side: int) -> Act:
    return lambda: set_limits(stage.admin, "step", "r_racing/act", crash_limit=1)


def pause_or_resume(stage: Stage, case: Case, side: int) -> Act:
    """Pause on even rounds; on odd ones lift the pause that was there before."""
    change = resume_workflow if case.n % 2 else pause_workflow
    return lambda: change(stage.admin, "r_racing")


def age_limited(stage: Stage, case: Case, side: int) -> Act:
    return lambda: set_limits(stage.admin, "workflow", "r_racing", retention_days=9_999)


def delete(stage: Stage, case: Case, side: int) -> Act:
    """Delete this run, if its workflow's rule says so."""

    def act() -> int | None:
        rule = retention.rule_of("r_racing", policies.load())
        chosen = retention.over_age(rule, clock.now()).filter(pk=case.run_id).values_list("pk", flat=True)
        return retention.delete_chosen(retention.RETENTION, rule, list(chosen))

    return act


def revived(then: Make) -> Make:
    """First retry the run, as that act alone has nothing to do with a run that ended long ago."""

    def make(stage: Stage, case: Case, side: int) -> Act:
        first, second = ask_retry(stage, case, side), then(stage, case, side)

        def act() -> Any:
            first()
            return second()

        return act

    return make


ACTS: dict[str, Make] = {
    "claim": claim,
    "checkpoint": checkpoint,
    "beat": beat,
    "expiry": expiry,
    "signal": signal,
    "decision": decision,
    "timeout": claim,  # a time limit passes when a worker looks, in the claim
    "cancel": ask_cancel,
    "resume": resume,
    "retry": ask_retry,
    "limit": attempts_limited("late"),
    "retention": delete,
}


# --- who may win -----------------------------------------------------------------------------------------------------------


def is_error(told: Any) -> bool:
    return isinstance(told, BaseException)


def any_outcome(stage: Stage, case: Case, a: Any, b: Any) -> None: ...


def one_claims(stage: Stage, case: Case, a: Any, b: Any) -> None:
    assert a + b == 1, (a, b)


def one_succeeds(stage: Stage, case: Case, a: Any, b: Any) -> None:
    assert is_error(a) != is_error(b), (a, b)


def one_changes(stage: Stage, case: Case, a: Any, b: Any) -> None:
    assert a.changed + b.changed == 1


def the_zombie_is_refused(stage: Stage, case: Case, a: Any, b: Any) -> None:
    zombie = case.hands[0].worker_id
    assert not Attempt.objects.filter(run_id=case.run_id, worker_id=zombie, closed_by="").exists()
    assert case.hands[0].lease.remaining > 0, "nothing but the fence held it back"


def one_attempt_ends(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """The first attempt has one end, and the worker's own exactly if it was not taken from it."""
    ends = Attempt.objects.filter(run_id=case.run_id, worker_id=case.hands[0].worker_id)
    assert [end.outcome for end in ends] in (["succeeded"], ["crashed"]), ends
    assert (ends[0].outcome == "succeeded") == (case.run.status == "completed")


def taken_or_completed(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """Checkpoint and force-resume: whoever is told that it won has won."""
    one_attempt_ends(stage, case, a, b)
    assert is_error(b) == (case.run.status == "completed"), b


def beaten_or_closed(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """A worker that was told that its beat counted keeps its run; otherwise it has been closed."""
    row = Worker.objects.get(pk=case.hands[0].worker_id)
    assert a is (row.closed_at is None), (a, b)
    assert not a or case.run.worker_id == row.pk, (a, b, case.run.status)


def beaten_or_resumed(stage: Stage, case: Case, a: Any, b: Any) -> None:
    beaten_or_closed(stage, case, a, b)
    assert a is is_error(b), (a, b)


def one_takes_over(stage: Stage, case: Case, a: Any, b: Any) -> None:
    closed = Attempt.objects.filter(run_id=case.run_id).exclude(closed_by="")
    assert [end.outcome for end in closed] in (["crashed"], []), closed
    assert not (is_error(a) or a) or closed.exists()


def completed_or_cancelled(stage: Stage, case: Case, a: Any, b: Any) -> None:
    assert case.run.status == ("completed" if is_error(b) else "cancelled"), (case.run.status, b)


def one_is_accepted(stage: Stage, case: Case, a: Any, b: Any) -> None:
    assert a.created + b.created == 1
    assert a.signal.pk == b.signal.pk
    assert Signal.objects.filter(run_id=case.run_id).count() == 1


def both_are_kept_and_one_is_used(stage: Stage, case: Case, a: Any, b: Any) -> None:
    assert a.created and b.created
    assert Signal.objects.filter(run_id=case.run_id, consumed_at__isnull=False).count() == 1


def used_or_too_late(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """A signal settles the wait, or its time limit does: never both, never neither."""
    stage.drive_one(case)
    used = Signal.objects.get(run_id=case.run_id).consumed_at is not None
    assert case.run.status == ("completed" if used else "failed")


def decided_or_expired(stage: Stage, case: Case, a: Any, b: Any) -> None:
    stage.drive_one(case)
    assert case.approval is not None
    case.approval.refresh_from_db()
    assert case.approval.state == ("expired" if is_error(a) else "approved"), (a, case.approval.state)
    assert case.run.status == ("failed" if is_error(a) else "completed")


def decided_by_one(stage: Stage, case: Case, a: Any, b: Any) -> None:
    one_succeeds(stage, case, a, b)
    assert case.approval is not None
    case.approval.refresh_from_db()
    assert case.approval.state == ("rejected" if is_error(a) else "approved")


def cancelled_afterwards(stage: Stage, case: Case, a: Any, b: Any) -> None:
    stage.drive_one(case)
    assert case.run.status == "cancelled", (a, b)


def retried_or_gone(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """Retry or deletion, never both, and never neither unless the deletion passed a locked run by."""
    if case.gone():
        assert isinstance(a, NotFound) and b == 1, (a, b)
    else:
        assert not is_error(a) and not b, (a, b)


def told_if_gone(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """Who came too late was told that there is no such run; who came earlier was told so only if it was gone."""
    assert case.gone() is (b == 1), (a, b)
    assert case.gone() or not isinstance(a, NotFound), a


def one_deletes(stage: Stage, case: Case, a: Any, b: Any) -> None:
    assert sorted([a or 0, b or 0]) in ([0, 1], [0, 0])
    assert case.gone() is ((a or 0) + (b or 0) == 1)


def expected(told: Any) -> bool:
    """Whether this is an answer that a caller may get in a race: a result, or a refusal in words."""
    return not is_error(told) or (isinstance(told, VerbError) and not isinstance(told, Unavailable))


# --- scenes ----------------------------------------------------------------------------------------------------------------

RUN = "SELECT FROM runs_run WHERE id = %s FOR NO KEY UPDATE"
WORKER = "SELECT FROM runs_worker WHERE id = %s FOR NO KEY UPDATE"
#: Whoever deletes the run holds its lock and waits here; everybody else then waits for the run.
EVENT = "SELECT FROM runs_event WHERE run_id = %s FOR UPDATE"


@dataclass(frozen=True)
class Scene:
    prepare: Prepare
    first: Make | None = None
    second: Make | None = None
    """None: what the actor always does."""
    ready: Callable[[Stage, Case], None] = nothing
    check: Callable[[Stage, Case, Any, Any], None] = any_outcome
    locks: tuple[str, ...] = (RUN,)

    def acts(
        self, stage: Stage, case: Case, pair: tuple[str, str], known: Mapping[str, Make] = ACTS
    ) -> list[Act]:
        return [
            (self.first or known[pair[0]])(stage, case, 0),
            (self.second or known[pair[1]])(stage, case, 1),
        ]

    def lock(self, case: Case, n: int) -> tuple[str, uuid.UUID] | None:
        """What a third session holds in this round; every third round is free, and all where nobody waits for locks."""
        if n % 3 == 0 or not self.locks:
            return None
        query = self.locks[n // 3 % len(self.locks)]
        return query, case.hands[0].worker_id if query == WORKER and case.hands else case.run_id


DELETING = (EVENT, RUN)
PAUSE = {"second": pause_or_resume, "ready": paused_on_odd_rounds}

SCENES: dict[tuple[str, str], tuple[Scene, ...]] = {
    ("claim", "claim"): (Scene(queued(), check=one_claims, locks=()),),
    ("claim", "checkpoint"): (
        Scene(given_back(gated("goto")), check=the_zombie_is_refused),
        Scene(gated("error")),
    ),
    ("claim", "beat"): (Scene(queued(), ready=lease_of_claimer_over, locks=(WORKER,)),),
    ("claim", "expiry"): (Scene(gated("goto"), ready=lease_over, locks=()),),
    ("claim", "signal"): (Scene(waiting("signal"), ready=due),),
    ("claim", "decision"): (Scene(waiting("decision"), ready=due),),
    ("claim", "timeout"): (Scene(expired("signal"), check=one_claims, locks=()),),
    ("claim", "cancel"): (Scene(queued("goto")),),
    ("claim", "resume"): (Scene(queued("later"), ready=retrying),),
    ("claim", "retry"): (Scene(performed("fail")),),
    ("claim", "limit"): (Scene(queued("later"), ready=retrying), Scene(queued("goto"), **PAUSE)),  # type: ignore[arg-type]
    ("claim", "retention"): (
        Scene(old(performed("fail")), first=revived(claim), check=retried_or_gone, locks=DELETING),
    ),
    ("checkpoint", "checkpoint"): (Scene(claimed_again(given_back(gated())), check=the_zombie_is_refused),),
    ("checkpoint", "beat"): (Scene(gated("goto", neighbours=True)), Scene(gated("goto"), locks=(WORKER,))),
    ("checkpoint", "expiry"): (
        Scene(gated(), ready=lease_over, check=one_attempt_ends),
        Scene(gated("goto", neighbours=True), ready=lease_over),
    ),
    ("checkpoint", "signal"): (Scene(gated("signal")), Scene(gated("goto", neighbours=True))),
    ("checkpoint", "decision"): (Scene(gated_again(waiting("decision"))),),
    ("checkpoint", "timeout"): (
        Scene(given_back(gated_again(expired("signal"))), check=the_zombie_is_refused),
        Scene(gated_again(expired("signal"))),
    ),
    ("checkpoint", "cancel"): (
        Scene(gated(neighbours=True), check=completed_or_cancelled),
        Scene(gated("goto"), check=any_outcome),
        Scene(gated("error"), check=cancelled_afterwards),
    ),
    ("checkpoint", "resume"): (Scene(gated(), ready=lease_over, check=taken_or_completed),),
    ("checkpoint", "retry"): (Scene(gated("fail")),),
    ("checkpoint", "limit"): (
        Scene(gated("error"), second=attempts_limited("act"), ready=no_limits),
        Scene(gated("goto"), **PAUSE),  # type: ignore[arg-type]
    ),
    ("checkpoint", "retention"): (
        Scene(old_zombie, check=told_if_gone, locks=DELETING),
        Scene(old(performed("fail")), first=revived(claim), check=retried_or_gone, locks=DELETING),
    ),
    ("beat", "beat"): (Scene(gated(), locks=(WORKER,)),),
    ("beat", "expiry"): (Scene(gated(), ready=lease_over, check=beaten_or_closed, locks=(WORKER, RUN)),),
    ("beat", "signal"): (Scene(gated("signal")),),
    ("beat", "decision"): (Scene(gated_again(waiting("decision"))),),
    ("beat", "timeout"): (Scene(expired("signal")),),
    ("beat", "cancel"): (Scene(gated("goto"), check=any_outcome),),
    ("beat", "resume"): (Scene(gated(), ready=lease_over, check=beaten_or_resumed, locks=(WORKER, RUN)),),
    ("beat", "retry"): (Scene(performed("fail")),),
    ("beat", "limit"): (Scene(gated("error"), second=attempts_limited("act"), ready=no_limits),),
    ("beat", "retention"): (Scene(old_zombie, check=told_if_gone, locks=DELETING),),
    ("expiry", "expiry"): (Scene(gated(), ready=lease_over, check=one_takes_over, locks=(RUN, WORKER)),),
    ("expiry", "signal"): (Scene(gated("signal"), ready=lease_over),),
    ("expiry", "decision"): (Scene(gated_again(waiting("decision")), ready=lease_over),),
    ("expiry", "timeout"): (Scene(claimed_by_the_dead(expired("signal")), ready=lease_over),),
    ("expiry", "cancel"): (Scene(gated("goto"), ready=lease_over, check=cancelled_afterwards),),
    ("expiry", "resume"): (Scene(gated(), ready=lease_over, check=one_takes_over, locks=(RUN, WORKER)),),
    ("expiry", "retry"): (Scene(gated(), ready=deaths(lone=2)),),
    ("expiry", "limit"): (Scene(gated(), second=crashes_limited, ready=deaths(lone=0)),),
    ("expiry", "retention"): (Scene(old_zombie, ready=lease_over, check=told_if_gone, locks=DELETING),),
    ("signal", "signal"): (
        Scene(waiting(), check=one_is_accepted),
        Scene(waiting(), first=another_signal, second=another_signal, check=both_are_kept_and_one_is_used),
    ),
    ("signal", "decision"): (Scene(both_waiting),),
    ("signal", "timeout"): (Scene(expired("signal"), check=used_or_too_late),),
    ("signal", "cancel"): (Scene(waiting(), check=cancelled_afterwards),),
    ("signal", "resume"): (Scene(waiting()),),
    ("signal", "retry"): (Scene(failed_by_expiry("signal")),),
    ("signal", "limit"): (Scene(waiting(), **PAUSE),),  # type: ignore[arg-type]
    ("signal", "retention"): (Scene(old(performed("fail")), check=told_if_gone, locks=DELETING),),
    ("decision", "decision"): (Scene(waiting("decision"), check=decided_by_one),),
    ("decision", "timeout"): (Scene(expired("decision"), check=decided_or_expired),),
    ("decision", "cancel"): (Scene(waiting("decision"), check=cancelled_afterwards),),
    ("decision", "resume"): (Scene(waiting("decision")),),
    ("decision", "retry"): (Scene(failed_by_expiry("decision")),),
    ("decision", "limit"): (Scene(waiting("decision"), **PAUSE),),  # type: ignore[arg-type]
    ("decision", "retention"): (Scene(old(waiting("decision")), check=told_if_gone, locks=DELETING),),
    ("timeout", "timeout"): (Scene(expired("decision"), check=one_claims, locks=()),),
    ("timeout", "cancel"): (Scene(expired("signal")),),
    ("timeout", "resume"): (Scene(expired("signal")),),
    ("timeout", "retry"): (Scene(expired("signal")),),
    ("timeout", "limit"): (Scene(expired("decision"), **PAUSE),),  # type: ignore[arg-type]
    ("timeout", "retention"): (
        Scene(old(failed_by_expiry("signal")), first=revived(claim), check=retried_or_gone, locks=DELETING),
    ),
    ("cancel", "cancel"): (Scene(waiting(), check=one_changes), Scene(gated("goto"), check=one_changes)),
    ("cancel", "resume"): (Scene(waiting(), check=cancelled_afterwards),),
    ("cancel", "retry"): (Scene(performed("fail")),),
    ("cancel", "limit"): (Scene(queued("later"), ready=retrying, check=cancelled_afterwards),),
    ("cancel", "retention"): (Scene(old(performed("fail")), check=told_if_gone, locks=DELETING),),
    ("resume", "resume"): (Scene(queued("later"), ready=retrying, check=one_succeeds),),
    ("resume", "retry"): (Scene(performed("fail")),),
    ("resume", "limit"): (Scene(queued("later"), ready=retrying),),
    ("resume", "retention"): (Scene(old(performed("fail")), check=told_if_gone, locks=DELETING),),
    ("retry", "retry"): (Scene(performed("fail"), check=one_succeeds),),
    ("retry", "limit"): (Scene(performed("fail"), second=attempts_limited("act"), ready=no_limits),),
    ("retry", "retention"): (Scene(old(performed("fail")), check=retried_or_gone, locks=DELETING),),
    ("limit", "limit"): (
        Scene(
            queued("later"),
            first=attempts_limited_as_seen,
            second=attempts_limited_as_seen,
            ready=retrying,
            check=one_succeeds,
        ),
    ),
    ("limit", "retention"): (
        Scene(old(performed("fail")), first=age_limited, ready=no_limits, check=told_if_gone, locks=DELETING),
    ),
    ("retention", "retention"): (Scene(old(performed("fail")), check=one_deletes, locks=DELETING),),
}


def finish(case: Case) -> None:
    """Let every body go that still stands at a gate, and wait for its end."""
    for gate in (*case.neighbours, *case.gates):
        gate.open()
    for hand in case.hands:
        hand.idle()
