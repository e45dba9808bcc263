"""The verbs that people have beside the twelve: who races with whom where the outcome matters, and who may win.

Groups of pairs share a database: what is prepared, raced and checked for one pair is done with before the next begins.
"""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

from django.contrib.auth.models import User

from approvals.asking import ask
from approvals.inbox.handling import assign, comment, snooze
from approvals.inbox.handling import claim as take
from approvals.inbox.together import Outcome, Tick, Together, decide_each
from approvals.models import Answer, Approval, Item, ItemKind, Question, Request, Vote
from approvals.policies import verbs as approval_policies
from approvals.requests import four_eyes
from approvals.services import decide, edit
from runs import blobs, clock, services
from runs.engine import leases
from runs.errors import Asked, NotFound
from runs.lifecycle import Actor
from runs.models import Attempt, AuditEvent, Bulk, BulkItem, Event, Evidence, Operation, Policy, Run, Worker
from runs.models.operation import OpStatus
from runs.services import bulk as bulks
from runs.services import bulk_work, limits
from runs.services.doubt import File
from runs.states import Outcome as Ended
from tests.races.actors import (
    ACTS,
    DELETING,
    RUN,
    WAIT,
    WORKER,
    Make,
    Prepare,
    Scene,
    any_outcome,
    cancelled_afterwards,
    delete,
    due,
    expired,
    gated,
    gated_again,
    is_error,
    lease_over,
    old,
    one_attempt_ends,
    one_changes,
    one_succeeds,
    performed,
    queued,
    retrying,
    waiting,
)
from tests.races.stage import Act, Case, Stage

#: Those that wait for the lock of the run.
WAITS = WAIT | {
    *("fork", "skip", "state", "kill", "answer", "turn", "together", "edit", "ask", "take", "assign"),
    *("snooze", "outcome", "undo"),
}
#: Retention deletes no run in doubt, so that it does not wait for the answer.
APART = {("answer", "retention")}

REQUEST = "SELECT FROM approvals_request WHERE run_id = %s FOR UPDATE"
POLICY = "SELECT FROM runs_policy WHERE %s::uuid IS NOT NULL FOR UPDATE"
PATH = ("step", "r_racing/late")


# --- situations --------------------------------------------------------------------------------------------------------


def side_by_side(prepare: Prepare) -> Prepare:
    """Each case with the approval of another run beside its own."""

    def prepared(stage: Stage, count: int) -> list[Case]:
        cases = prepare(stage, 2 * count)
        for case, other in zip(cases[:count], cases[count:], strict=True):
            case.beside = other.approval
        return cases[:count]

    return prepared


def executed_with_the_decision(stage: Stage, count: int) -> list[Case]:
    """Approved, and a worker has read that: the body stands at its gate."""
    cases = waiting("decision")(stage, count)
    for case in cases:
        approved(stage, case)
        stage.at_gate(case)
    return cases


def in_doubt(stage: Stage, count: int) -> list[Case]:
    """An effect was sent by a worker that is taken for dead; its call still stands at the gate."""
    cases = gated("pay")(stage, count)
    for case in cases:
        lease_over(stage, case)
    leases.sweep()
    for case in cases:
        stage.drive_one(case)
        assert case.run.attention_kind == "in_doubt", case.run.status
        case.operation = Operation.objects.get(run_id=case.run_id, status=OpStatus.PENDING)
    return cases


def killed_in_doubt(stage: Stage, count: int) -> list[Case]:
    cases = in_doubt(stage, count)
    for case in cases:
        services.kill(stage.admin, case.run_id, reason="stop it")
    return cases


def with_a_child_at_work(stage: Stage, count: int) -> list[Case]:
    """One of two children has completed, the body of the other stands at its gate."""
    parents = performed("family")(stage, count)
    ids = [case.run_id for case in parents]
    children = Run.objects.filter(parent_id__in=ids).order_by("child_index")
    made = {run.pk: Case(0, run.pk, f"race {run.pk}") for run in children}
    stage.runs += made
    stage.execute("UPDATE runs_run SET queue = 'prepared' WHERE parent_id = ANY(%s)", ids)
    stage.own_queues()
    stage.perform([made[run.pk] for run in children if run.child_index == 0])
    working = {run.parent_id: made[run.pk] for run in children if run.child_index == 1}
    for parent in parents:
        child = working[parent.run_id]
        stage.at_gate(child)
        parent.hands, parent.gates = child.hands, child.gates
    return parents


def large(text: str) -> Prepare:
    """Runs whose input lies apart, each its own."""

    def prepare(stage: Stage, count: int) -> list[Case]:
        cases = stage.start(text, count, filler=30_000)
        stage.perform(cases)
        return cases

    return prepare


def asked_for(prepare: Prepare, **rule: Any) -> Prepare:
    """Somebody has asked to force each run on; others have to approve that."""

    def prepared(stage: Stage, count: int) -> list[Case]:
        cases = guarded(prepare, **rule)(stage, count)
        for case in cases:
            try:
                services.force_resume(stage.support, case.run_id, reason="stuck")
            except Asked:
                case.request = Request.objects.get(run_id=case.run_id)
        return cases

    return prepared


def guarded(prepare: Prepare, **rule: Any) -> Prepare:
    """Policies want an operator to approve that a run is forced on."""

    def prepared(stage: Stage, count: int) -> list[Case]:
        rules = [{"groups": ["operators"], **rule}]
        approval_policies.set_policy(stage.admin, "verb", "force_resume", rules=rules, reason="four eyes")
        return prepare(stage, count)

    return prepared


def in_a_bulk(prepare: Prepare) -> Prepare:
    """Each run is the one run of a bulk that retries it next."""

    def prepared(stage: Stage, count: int) -> list[Case]:
        cases = prepare(stage, count)
        for case in cases:
            case.bulk = Bulk.objects.create(
                name="Outage",
                reason="It is over",
                verb=Bulk.Verb.RETRY,
                filter={},
                status=Bulk.Status.RUNNING,
                started_by_id=stage.admin.id,
                started_by_name=stage.admin.name,
                acts_for_id=stage.admin.id,
                acts_for_name=stage.admin.name,
                chosen=True,
                total=1,
                looked=1,
                to_look=1,
            )
            BulkItem.objects.create(
                bulk=case.bulk, place=1, run_id=case.run_id, seen_version=case.run.event_seq
            )
        return cases

    return prepared


# --- just before a round -----------------------------------------------------------------------------------------------


def approved(stage: Stage, case: Case) -> None:
    """The run is due for it, and has not taken the decision over."""
    assert case.approval is not None
    decide(
        stage.yes,
        case.approval.pk,
        version=case.approval.version,
        digest=case.approval.digest,
        verdict="approve",
    )


def one_question(stage: Stage, case: Case) -> None:
    """The run is due to answer it."""
    _ask(stage.no, case, "first")()


def drained(stage: Stage, case: Case) -> None:
    services.ask_worker(stage.admin, case.hands[0].worker_id, "drain", reason="so")


def later(stage: Stage, seconds: float) -> None:
    stage.execute(
        "INSERT INTO runs_clock VALUES (1, make_interval(secs => %s))"
        " ON CONFLICT (id) DO UPDATE SET shift = runs_clock.shift + excluded.shift",
        seconds,
    )


def limit_for_a_while(stage: Stage, case: Case) -> None:
    """A limit that somebody has set for a minute, which is over now."""
    Policy.objects.all().delete()
    limits.set_limits(stage.admin, *PATH, max_attempts=9, until=clock.now() + timedelta(seconds=61))
    later(stage, 62)
    case.version = AuditEvent.objects.filter(target=" ".join(PATH)).count()


def limit_set(stage: Stage, case: Case) -> None:
    """A limit that somebody has set for good."""
    Policy.objects.all().delete()
    limits.set_limits(stage.admin, *PATH, max_attempts=9)
    case.version = AuditEvent.objects.filter(target=" ".join(PATH)).count()


def paused_for_a_while(stage: Stage, case: Case) -> None:
    """The pause that has parked the run is over now."""
    Policy.objects.all().delete()
    limits.pause_scope(stage.admin, "workflow", "r_racing", until=clock.now() + timedelta(seconds=61))
    assert stage.driver.claim(case.queue) in (0, 1)
    stage.driver.idle()
    assert case.run.held_by == "paused"
    later(stage, 62)


# --- what they do --------------------------------------------------------------------------------------------------------


def ask_fork(stage: Stage, case: Case, side: int) -> Act:
    def act() -> Run:
        made = services.fork(stage.support, case.run_id, visit=1, reason="from its first visit").run
        stage.runs.append(made.pk)
        return made

    return act


def ask_skip(stage: Stage, case: Case, side: int) -> Act:
    return lambda: services.skip(stage.support, case.run_id, to="finish", reason="go on behind it")


def edit_state(stage: Stage, case: Case, side: int) -> Act:
    state = {"mark": f"edited {side}"}
    return lambda: services.edit_state(stage.support, case.run_id, state=state, reason="so")


def as_seen(verb: Callable[..., Any], **given: Any) -> Make:
    """A verb from a page that shows the run as it is before the race."""

    def make(stage: Stage, case: Case, side: int) -> Act:
        version = case.run.event_seq
        return lambda: verb(stage.support, case.run_id, seen_version=version, reason="as I saw it", **given)

    return make


SKIP_AS_SEEN = as_seen(services.skip, to="finish")
RETRY_AS_SEEN = as_seen(services.retry)
STATE_AS_SEEN = as_seen(services.edit_state, state={"mark": "as seen"})


def ask_kill(stage: Stage, case: Case, side: int) -> Act:
    return lambda: services.kill(stage.admin, case.run_id, reason="stop it")


def it_happened(stage: Stage, case: Case, side: int) -> Act:
    """With a file as evidence."""
    assert case.operation is not None
    operation = case.operation.pk
    proof = File("proof.txt", f"seen by {side}".encode())
    return lambda: services.answer_doubt(
        stage.support, operation, happened=True, reference=f"re_{side}", reason="I looked", file=proof
    )


def it_did_not(stage: Stage, case: Case, side: int) -> Act:
    assert case.operation is not None
    operation = case.operation.pk
    return lambda: services.answer_doubt(stage.support, operation, happened=False, reason="I looked")


def say_gone(stage: Stage, case: Case, side: int) -> Act:
    return lambda: services.declare_gone(stage.admin, case.hands[0].worker_id, reason="the host burnt down")


def ask_worker(what: str) -> Make:
    return lambda stage, case, side: (
        lambda: services.ask_worker(stage.admin, case.hands[0].worker_id, what, reason="so")
    )


def turn(stage: Stage, case: Case, side: int) -> Act:
    assert case.bulk is not None
    bulk_id = case.bulk.pk
    return lambda: bulk_work.turn(bulk_id)


def on_bulk(verb: Callable[..., Any]) -> Make:
    def make(stage: Stage, case: Case, side: int) -> Act:
        assert case.bulk is not None
        bulk_id = case.bulk.pk
        return lambda: verb(stage.admin, bulk_id, reason="wait")

    return make


def who(stage: Stage, side: int) -> Actor:
    return (stage.yes, stage.no)[side]


def decide_together(stage: Stage, case: Case, side: int) -> Act:
    """Both approvals of the case, as a page showed them; the second person the other way round."""
    assert case.approval is not None and case.beside is not None
    both = [Tick(one.pk, one.version, one.digest) for one in (case.approval, case.beside)]
    ticks, verdict = both[:: 1 - 2 * side], ("approve", "reject")[side]
    user = cast(User, who(stage, side).user)

    def act() -> dict[uuid.UUID, Outcome]:
        now = clock.now()
        page = Together(user, [tick.item for tick in ticks], now)
        told = decide_each(page, ticks, verdict=verdict, reason="so", signed_in_at=now)
        return {result.item: result.outcome for result in told}

    return act


def edit_payload(stage: Stage, case: Case, side: int) -> Act:
    assert case.approval is not None
    approval = case.approval
    return lambda: edit(
        stage.yes, approval.pk, version=approval.version, arguments={"amount": 7 + side}, reason="not so much"
    )


def _ask(actor: Actor, case: Case, text: str) -> Act:
    assert case.approval is not None
    approval, token = case.approval, uuid.uuid5(case.approval.pk, text)
    return lambda: ask(
        actor, approval.pk, version=approval.version, digest=approval.digest, text=text, token=token
    )


def ask_back(stage: Stage, case: Case, side: int) -> Act:
    return _ask(who(stage, side), case, f"question {side}")


def ask_the_same(stage: Stage, case: Case, side: int) -> Act:
    return _ask(stage.yes, case, "the same")


def take_item(stage: Stage, case: Case, side: int) -> Act:
    assert case.approval is not None
    item = case.approval.pk
    return lambda: take(who(stage, side), ItemKind.APPROVAL, item)


def assign_item(stage: Stage, case: Case, side: int) -> Act:
    """To the other person, from a page that shows that nobody has it."""
    assert case.approval is not None and stage.no.id is not None
    item, to = case.approval.pk, stage.no.id
    return lambda: assign(stage.yes, ItemKind.APPROVAL, item, to=to, seen=0)


def snooze_item(stage: Stage, case: Case, side: int) -> Act:
    assert case.approval is not None
    item, until = case.approval.pk, clock.now() + timedelta(hours=1 + side)
    return lambda: snooze(who(stage, side), ItemKind.APPROVAL, item, until=until, seen=0)


def snooze_whatever_was_seen(stage: Stage, case: Case, side: int) -> Act:
    assert case.approval is not None
    item, until = case.approval.pk, clock.now() + timedelta(hours=1)
    return lambda: snooze(stage.yes, ItemKind.APPROVAL, item, until=until)


def say_the_same(stage: Stage, case: Case, side: int) -> Act:
    assert case.approval is not None
    item, token = case.approval.pk, uuid.uuid5(case.approval.pk, "comment")
    return lambda: comment(stage.yes, ItemKind.APPROVAL, item, text="I am on it", token=token)


def vote(verdict: str) -> Make:
    def make(stage: Stage, case: Case, side: int) -> Act:
        assert case.request is not None
        request = case.request
        return lambda: four_eyes.vote(
            who(stage, side), request.pk, digest=request.digest, verdict=verdict, reason="seen"
        )

    return make


def withdraw(stage: Stage, case: Case, side: int) -> Act:
    assert case.request is not None
    request = case.request.pk
    return lambda: four_eyes.withdraw(stage.support, request)


def ask_others(stage: Stage, case: Case, side: int) -> Act:
    actor = (stage.support, stage.admin)[side]
    version = case.run.event_seq
    return lambda: services.force_resume(actor, case.run_id, seen_version=version, reason="stuck")


def ask_others_the_same(stage: Stage, case: Case, side: int) -> Act:
    version = case.run.event_seq
    return lambda: services.force_resume(stage.support, case.run_id, seen_version=version, reason="stuck")


def reversal(stage: Stage, case: Case, side: int) -> Act:
    """A worker's sweep finds that the time of a limit is over."""
    return limits.end_temporary


def set_limit(stage: Stage, case: Case, side: int) -> Act:
    return lambda: limits.set_limits(stage.admin, *PATH, max_attempts=4 + side, seen_revision=1)


def set_limit_whatever_was_seen(stage: Stage, case: Case, side: int) -> Act:
    return lambda: limits.set_limits(stage.admin, *PATH, max_attempts=4 + side)


def undo_limit(stage: Stage, case: Case, side: int) -> Act:
    change = AuditEvent.objects.filter(target=" ".join(PATH)).latest("id").pk
    return lambda: limits.revert_limits(stage.admin, str(change), seen_revision=1)


def lift_pause(stage: Stage, case: Case, side: int) -> Act:
    return lambda: limits.resume_workflow(stage.admin, "r_racing")


def delete_and_sweep(stage: Stage, case: Case, side: int) -> Act:
    """Delete the run, and then whatever content no run uses any more."""
    first = delete(stage, case, side)

    def act() -> Any:
        gone = first()
        blobs.sweep()
        return gone

    return act


ALL: dict[str, Make] = ACTS | {
    "fork": ask_fork,
    "skip": ask_skip,
    "state": edit_state,
    "kill": ask_kill,
    "answer": it_happened,
    "outcome": ACTS["checkpoint"],  # the gate is in the tool
    "child": ACTS["checkpoint"],  # the hands are those of a child
    "gone": say_gone,
    "drain": ask_worker("drain"),
    "turn": turn,
    "pause": on_bulk(bulks.pause_bulk),
    "stop": on_bulk(bulks.stop_bulk),
    "together": decide_together,
    "edit": edit_payload,
    "ask": ask_back,
    "take": take_item,
    "assign": assign_item,
    "snooze": snooze_item,
    "comment": say_the_same,
    "vote": vote("approve"),
    "withdraw": withdraw,
    "request": ask_others,
    "reversal": reversal,
    "change": set_limit,
    "undo": undo_limit,
}


# --- who may win -----------------------------------------------------------------------------------------------------------


def state_of(approval: Approval | None) -> str:
    assert approval is not None
    approval.refresh_from_db()
    return approval.state


def events(case: Case, kind: str) -> list[Event]:
    return list(Event.objects.filter(run_id=case.run_id, kind=kind).order_by("seq"))


def one_fork(stage: Stage, case: Case, a: Any, b: Any) -> None:
    one_succeeds(stage, case, a, b)
    assert Run.objects.filter(forked_from=case.run_id).count() == 1


def forked_or_moved(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """Either a fork goes on with the effects, or the run itself."""
    one_succeeds(stage, case, a, b)
    assert Run.objects.filter(forked_from=case.run_id).exists() is not is_error(a)
    assert (case.run.status == "failed") is not is_error(a)


def forked_as_it_was(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """The fork begins with the state that the run had at that moment of its history."""
    assert not is_error(a) and not is_error(b), (a, b)
    edited = events(case, "state_edited")[0].seq < events(case, "forked")[0].seq
    assert a.state == ({"mark": "edited 1"} if edited else {}), (a.state, edited)


def forked_whole_or_gone(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """Who forks was told that the run is gone, or has a fork to which nothing is missing."""
    assert case.gone() is (b == 1), (a, b)
    if is_error(a):
        assert isinstance(a, NotFound) and case.gone(), a
    else:
        assert len(blobs.whole([Run.objects.get(pk=a.pk).input])[0]["filler"]) == 30_000 // 9 * 9


def skipped_and_finished(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """Whoever was told that the step is skipped has a run that finishes behind it, with one row that says so."""
    stage.drive_one(case)
    rows = Attempt.objects.filter(run_id=case.run_id, outcome=Ended.SKIPPED).count()
    assert rows == (0 if is_error(a) else 1)
    assert is_error(a) or (case.run.status, case.run.result) == ("completed", "finished"), case.run.status


def skipped_and_void(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """The decision was told that it came too late, exactly if the approval is void."""
    assert not is_error(a), a
    assert state_of(case.approval) == ("void" if is_error(b) else "rejected")
    skipped_and_finished(stage, case, a, b)


def skipped_once(stage: Stage, case: Case, a: Any, b: Any) -> None:
    one_succeeds(stage, case, a, b)
    skipped_and_finished(stage, case, a, b)


def marked(mark: str) -> Callable[[Stage, Case, Any, Any], None]:
    """An edit that was accepted is what the step reads, whatever came beside it."""

    def check(stage: Stage, case: Case, a: Any, b: Any) -> None:
        stage.drive_one(case)
        if case.run.status == "waiting":
            ACTS["signal"](stage, case, 0)()
            stage.drive_one(case)
        expected = None if is_error(a) else mark
        assert (case.run.status, case.run.result) == ("completed", expected), (case.run.status, a, b)

    return check


def edited_by_one(stage: Stage, case: Case, a: Any, b: Any) -> None:
    one_succeeds(stage, case, a, b)
    marked("as seen")(stage, case, a if is_error(b) else b, None)


def still_expires(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """The claim finds the wait whose time is over, though the attempt that opened it is not the last any more."""
    stage.drive_one(case)
    assert case.run.status == "failed", case.run.status


def still_decided(stage: Stage, case: Case, a: Any, b: Any) -> None:
    assert not is_error(a) and not is_error(b), (a, b)
    stage.drive_one(case)
    assert case.run.status == "completed"


def killed_or_ended(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """Who kills was told that nothing was left to kill, or the worker's attempt is fenced and counts for nothing."""
    assert case.run.status == ("completed" if is_error(a) else "cancelled"), (a, case.run.status)
    ends = Attempt.objects.filter(run_id=case.run_id, worker_id=case.hands[0].worker_id)
    assert [end.outcome for end in ends] == ["succeeded" if is_error(a) else "fenced"]


def killed(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """For good: nothing that came beside it wakes the run."""
    stage.drive_one(case)
    assert not is_error(a), a
    assert case.run.status == "cancelled", case.run.status
    assert not Operation.objects.filter(run_id=case.run_id, status=OpStatus.OPEN).exists()


def killed_before_or_after(stage: Stage, case: Case, a: Any, b: Any) -> None:
    killed(stage, case, a, b)
    assert state_of(case.approval) == ("void" if is_error(b) else "rejected")


def killed_by_one(stage: Stage, case: Case, a: Any, b: Any) -> None:
    one_succeeds(stage, case, a, b)
    assert case.run.status == "cancelled" and len(events(case, "killed")) == 1


def killed_unless_ended(stage: Stage, case: Case, a: Any, b: Any) -> None:
    assert case.run.status == "cancelled" or (is_error(a) and case.run.status == "completed"), (a, b)


def outcome_kept(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """What was being sent is recorded, although its run was killed meanwhile."""
    assert case.run.status == ("completed" if is_error(a) else "cancelled"), (a, case.run.status)
    (operation,) = Operation.objects.filter(run_id=case.run_id, name="race_pay")
    assert operation.status == OpStatus.DONE


def settled_by_one(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """An answer and another answer: one counts, with its evidence."""
    one_succeeds(stage, case, a, b)
    _settled(stage, case, f"re_{int(is_error(a))}", 1)


def settled_by_person_or_provider(stage: Stage, case: Case, a: Any, b: Any) -> None:
    _settled(stage, case, "" if is_error(a) else "re_0", int(not is_error(a)))


def _settled(stage: Stage, case: Case, reference: str, files: int) -> None:
    stage.drive_one(case)
    assert case.operation is not None
    case.operation.refresh_from_db()
    assert (case.operation.status, case.operation.provider_ref) == (OpStatus.DONE, reference)
    assert case.operation.settled_by == (stage.support.name if reference else "")
    assert Evidence.objects.filter(run_id=case.run_id).count() == files
    assert case.run.status == "completed"


def settled_and_cancelled(stage: Stage, case: Case, a: Any, b: Any) -> None:
    assert not is_error(a), a
    cancelled_afterwards(stage, case, a, b)
    assert case.operation is not None
    case.operation.refresh_from_db()
    assert case.operation.status == OpStatus.DONE


def denied_only_with_proof(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """“It did not” is accepted only once nobody can still send it."""
    assert not is_error(b), b
    assert case.operation is not None
    case.operation.refresh_from_db()
    assert case.operation.status == (OpStatus.PENDING if is_error(a) else OpStatus.RETRY)
    if is_error(a):
        it_did_not(stage, case, 0)()


def answered_or_gone(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """No evidence is left of a run that is gone."""
    assert case.gone() is (b == 1), (a, b)
    assert case.gone() or not is_error(a), a
    left = Evidence.objects.filter(run_id=case.run_id).count()
    assert left == (0 if case.gone() else 1)


def gone_or_beaten(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """A worker that was told that its beat counted is not gone."""
    assert is_error(a) is b, (a, b)
    row = Worker.objects.get(pk=case.hands[0].worker_id)
    assert (row.reaped_at is None) is b


def gone_once(stage: Stage, case: Case, a: Any, b: Any) -> None:
    told = AuditEvent.objects.filter(kind="worker_declared_gone", target=f"worker {case.hands[0].worker_id}")
    assert not is_error(a) and not is_error(b) and told.count() == 1, (a, b)


def asked_once(stage: Stage, case: Case, a: Any, b: Any) -> None:
    told = AuditEvent.objects.filter(kind="worker_drain", target=f"worker {case.hands[0].worker_id}")
    assert not is_error(a) and not is_error(b) and told.count() == 1, (a, b)


def recycled(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """A recycle is never taken back."""
    assert not is_error(a), a
    assert Worker.objects.get(pk=case.hands[0].worker_id).asked == "recycle"


def retried_once(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """One retry, however many asked for it; the bulk's own count says whether it was the bulk's."""
    item = _item(case)
    assert len(events(case, "retried")) == 1
    assert (item.state == BulkItem.State.DONE) is is_error(b), (item.state, item.said, b)


def retried_by_one_turn(stage: Stage, case: Case, a: Any, b: Any) -> None:
    assert len(events(case, "retried")) == 1 and _item(case).state == BulkItem.State.DONE


def retried_or_forked(stage: Stage, case: Case, a: Any, b: Any) -> None:
    assert len(events(case, "retried")) + len(events(case, "forked")) == 1
    assert (_item(case).state == BulkItem.State.DONE) is is_error(b)


def stands_still(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """After the pause no turn touches a run; resumed, each run has its turn once."""
    assert case.bulk is not None
    if not is_error(b):  # else it was done by then
        bulk_work.turn(case.bulk.pk)
        assert len(events(case, "retried")) == int(_item(case).state == BulkItem.State.DONE)
        bulks.resume_bulk(stage.admin, case.bulk.pk, reason="go on")
        for _ in range(3):
            bulk_work.turn(case.bulk.pk)
    retried_by_one_turn(stage, case, a, b)


def stopped_for_good(stage: Stage, case: Case, a: Any, b: Any) -> None:
    assert case.bulk is not None
    bulk_work.turn(case.bulk.pk)
    done = _item(case).state == BulkItem.State.DONE
    assert len(events(case, "retried")) == int(done)
    assert done or not is_error(b)


def retried_or_deleted(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """Either the run is gone, and the bulk says so of it, or it was retried and stays."""
    assert case.gone() is (b == 1), (a, b)
    for _ in range(2):
        turn(stage, case, 0)()
    item = _item(case)
    if case.gone():
        assert item.state == BulkItem.State.REFUSED and "there is no run" in item.said
    else:
        retried_by_one_turn(stage, case, a, b)


def _item(case: Case) -> BulkItem:
    return BulkItem.objects.get(bulk=case.bulk)


def beside_is_decided(case: Case) -> None:
    """What one of them is refused stops none of the others."""
    assert state_of(case.beside) == "approved"


def decided_by_page_or_person(stage: Stage, case: Case, a: Any, b: Any) -> None:
    assert case.approval is not None
    told = a[case.approval.pk]
    assert state_of(case.approval) == ("approved" if is_error(b) else "rejected")
    assert told == (Outcome.APPROVED if is_error(b) else Outcome.TAKEN), told
    beside_is_decided(case)


def each_decided_by_one(stage: Stage, case: Case, a: Any, b: Any) -> None:
    for one in (case.approval, case.beside):
        assert one is not None
        state = state_of(one)
        told = {"approved": (Outcome.APPROVED, Outcome.TAKEN), "rejected": (Outcome.TAKEN, Outcome.REJECTED)}
        assert (a[one.pk], b[one.pk]) == told[state]
        assert Vote.objects.filter(approval=one).count() == 1


def edited_in_any_case(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """Nothing runs that nobody has seen: the edit takes the decision back, or came before it."""
    assert not is_error(b), b
    stage.drive_one(case)
    assert (state_of(case.approval), case.run.status) == ("open", "waiting")
    assert case.approval is not None and case.approval.version == 2


def edited_together(stage: Stage, case: Case, a: Any, b: Any) -> None:
    assert case.approval is not None
    assert a[case.approval.pk] in (Outcome.APPROVED, Outcome.CHANGED)
    edited_in_any_case(stage, case, a, b)
    beside_is_decided(case)


def decided_together_or_expired(stage: Stage, case: Case, a: Any, b: Any) -> None:
    stage.drive_one(case)
    assert case.approval is not None
    counted = a[case.approval.pk] == Outcome.APPROVED
    assert (state_of(case.approval), case.run.status) == (
        ("approved", "completed") if counted else ("expired", "failed")
    )
    beside_is_decided(case)


def decided_together_or_void(stage: Stage, case: Case, a: Any, b: Any) -> None:
    cancelled_afterwards(stage, case, a, b)
    assert case.approval is not None
    counted = a[case.approval.pk] == Outcome.APPROVED
    assert state_of(case.approval) == ("approved" if counted else "void")
    beside_is_decided(case)


def one_version_more(stage: Stage, case: Case, a: Any, b: Any) -> None:
    one_succeeds(stage, case, a, b)
    assert state_of(case.approval) == "open"
    assert case.approval is not None and case.approval.version == 2


def taken_over_or_edited(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """What runs is what was approved: the run has taken it over and the edit is refused, or it waits for the new version."""
    stage.drive_one(case)
    state, run = state_of(case.approval), case.run
    if is_error(b):
        told = {"verdict": "approved", "payload": {"amount": 1}}
        assert (state, run.status, run.result) == ("approved", "completed", told), b
    else:
        assert (state, run.status) == ("open", "waiting")


def expired_whatever_it_says(stage: Stage, case: Case, a: Any, b: Any) -> None:
    stage.drive_one(case)
    assert (state_of(case.approval), case.run.status) == ("expired", "failed")


def asked_and_answered(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """No question is lost, whether the run was looking at that moment or was just about to wait again."""
    assert not is_error(a), a
    stage.drive_one(case)
    asked = Question.objects.filter(approval=case.approval)
    outcomes = Answer.objects.filter(question__in=asked).values_list("outcome", flat=True)
    assert list(outcomes) == [Answer.Outcome.ANSWERED] * asked.count() != []
    assert (state_of(case.approval), case.run.status) == ("open", "waiting")


def asked_in_time(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """The agent reads with the decision what was asked before it; what comes after is refused."""
    assert not is_error(b), b
    stage.drive_one(case)
    asked = ["question 0"] if not is_error(a) else []
    assert case.run.result == {"verdict": "rejected", "asked": asked}, case.run.result


def asked_before_the_decision(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """A decision comes while the run answers: it goes on with it, and the question is told with the decision."""
    assert not is_error(b), b
    stage.drive_one(case)
    assert case.run.result == {"verdict": "rejected", "asked": ["first"]}, case.run.result


def asked_about_what_was_shown(stage: Stage, case: Case, a: Any, b: Any) -> None:
    assert not is_error(b), b
    asked = Question.objects.filter(approval=case.approval)
    assert [one.version for one in asked] == ([] if is_error(a) else [1])


def both_asked(stage: Stage, case: Case, a: Any, b: Any) -> None:
    numbers = Question.objects.filter(approval=case.approval).order_by("number")
    assert list(numbers.values_list("number", flat=True)) == [1, 2], (a, b)
    asked_and_answered(stage, case, a, b)


def one_holds_it(stage: Stage, case: Case, a: Any, b: Any) -> None:
    one_succeeds(stage, case, a, b)
    assert case.approval is not None
    item = Item.objects.get(item_id=case.approval.pk)
    assert (item.claimed_by_name, item.version) == ("no" if is_error(a) else "yes", 1)


def one_puts_it_away(stage: Stage, case: Case, a: Any, b: Any) -> None:
    one_succeeds(stage, case, a, b)
    assert case.approval is not None
    item = Item.objects.get(item_id=case.approval.pk)
    assert (item.snoozed_by, item.version) == ("no" if is_error(a) else "yes", 1)


def decided_all_the_same(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """Who holds it keeps nobody from deciding."""
    assert not is_error(b) and state_of(case.approval) == "rejected", b


def back_with_the_answer(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """An answer brings it back to those who had put it away; who puts it away after that has read it."""
    assert not is_error(b) and case.approval is not None, b
    stage.drive_one(case)
    answered, snoozed = events(case, "question_answered")[0].seq, events(case, "item_snoozed")[0].seq
    item = Item.objects.get(item_id=case.approval.pk)
    assert (item.snoozed_until is None) is (answered > snoozed)


def carried_out_once(stage: Stage, case: Case, a: Any, b: Any) -> None:
    one_succeeds(stage, case, a, b)
    assert _request(case).state == Request.State.DONE
    assert len(events(case, "force_resumed")) == 1


def one_verdict(stage: Stage, case: Case, a: Any, b: Any) -> None:
    one_succeeds(stage, case, a, b)
    done = _request(case).state == Request.State.DONE
    assert done is is_error(b)
    assert len(events(case, "force_resumed")) == int(done)


def carried_out_or_refused(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """The run has moved on: nothing is done, and the request says so; or it was done before that."""
    assert not is_error(a), a
    state = _request(case).state
    assert state in (Request.State.DONE, Request.State.REFUSED)
    assert len(events(case, "force_resumed")) == int(state == Request.State.DONE)


def asked_others_once(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """One open request; nothing is done yet."""
    (request,) = Request.objects.filter(run_id=case.run_id, state=Request.State.OPEN)
    assert not events(case, "force_resumed")
    four_eyes.withdraw(Actor(request.requester_name, request.requester), request.pk)


def _request(case: Case) -> Request:
    assert case.request is not None
    case.request.refresh_from_db()
    return case.request


def over_once(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """A sweep passes by what somebody else holds, for the next one."""
    assert a + b + limits.end_temporary() == 1, (a, b)
    _written_down(case, {}, None)


def over_and_changed(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """The change holds if it was accepted, and what acted for a while is over in any case."""
    limits.end_temporary()
    _written_down(case, {}, None if is_error(b) else 5)


def changed_by_one(stage: Stage, case: Case, a: Any, b: Any) -> None:
    one_succeeds(stage, case, a, b)
    _written_down(case, {}, 5 if is_error(a) else None)


def undone_once(stage: Stage, case: Case, a: Any, b: Any) -> None:
    one_succeeds(stage, case, a, b)
    _written_down(case, {}, None)


def _written_down(case: Case, temporary: dict[str, Any], limit: int | None) -> None:
    """The row is so, and the history has a line for each of its revisions."""
    policy = Policy.objects.get(scope=PATH[0], name=PATH[1])
    assert (policy.temporary, policy.max_attempts) == (temporary, limit)
    assert case.version is not None
    lines = AuditEvent.objects.filter(target=" ".join(PATH)).count() - case.version + 1
    assert lines == policy.revision, (lines, policy.revision)


def goes_on(stage: Stage, case: Case, a: Any, b: Any) -> None:
    """Two who lift one pause lose no run that it had parked."""
    assert not case.run.held_by, case.run.held_by
    stage.drive_one(case)
    assert case.run.status == "completed"


# --- scenes ----------------------------------------------------------------------------------------------------------------

FAILED, WAITING = performed("fail"), waiting("signal")
DECISION, ANSWERING = waiting("decision"), waiting("answering")

SCENES: dict[str, dict[tuple[str, str], tuple[Scene, ...]]] = {
    "fork": {
        ("fork", "fork"): (Scene(FAILED, check=one_fork), Scene(performed("broken"), check=one_fork)),
        ("fork", "retry"): (Scene(FAILED, check=forked_or_moved),),
        ("fork", "skip"): (Scene(FAILED, check=forked_or_moved),),
        ("fork", "state"): (Scene(FAILED, check=forked_as_it_was),),
        ("fork", "retention"): (
            Scene(old(large("fail")), second=delete_and_sweep, check=forked_whole_or_gone, locks=DELETING),
        ),
    },
    "skip": {
        ("skip", "claim"): (Scene(WAITING, ready=due, check=skipped_and_finished),),
        ("skip", "checkpoint"): (Scene(gated("fail"), check=skipped_and_finished),),
        ("skip", "expiry"): (Scene(gated("goto"), ready=lease_over, check=skipped_and_finished),),
        ("skip", "signal"): (Scene(WAITING, check=skipped_and_finished),),
        ("skip", "decision"): (Scene(DECISION, check=skipped_and_void),),
        ("skip", "timeout"): (Scene(expired("signal"), check=skipped_and_finished),),
        ("skip", "cancel"): (Scene(WAITING, check=cancelled_afterwards),),
        ("skip", "retry"): (Scene(FAILED, first=SKIP_AS_SEEN, second=RETRY_AS_SEEN, check=skipped_once),),
        ("skip", "skip"): (Scene(WAITING, first=SKIP_AS_SEEN, second=SKIP_AS_SEEN, check=one_succeeds),),
    },
    "state": {
        ("state", "claim"): (Scene(waiting("marked"), ready=due, check=marked("edited 0")),),
        ("state", "signal"): (Scene(waiting("marked"), check=marked("edited 0")),),
        ("state", "checkpoint"): (Scene(gated_again(waiting("marked")), check=marked("edited 0")),),
        ("state", "resume"): (Scene(waiting("marked"), check=marked("edited 0")),),
        ("state", "decision"): (Scene(DECISION, check=still_decided),),
        ("state", "timeout"): (Scene(expired("signal"), check=still_expires),),
        ("state", "cancel"): (Scene(WAITING, check=cancelled_afterwards),),
        ("state", "skip"): (Scene(WAITING, first=STATE_AS_SEEN, second=SKIP_AS_SEEN, check=one_succeeds),),
        ("state", "state"): (
            Scene(waiting("marked"), first=STATE_AS_SEEN, second=STATE_AS_SEEN, check=edited_by_one),
        ),
    },
    "kill": {
        ("kill", "checkpoint"): (
            Scene(gated(), check=killed_or_ended),
            Scene(gated("goto", neighbours=True), check=killed_unless_ended),
        ),
        ("kill", "claim"): (Scene(WAITING, ready=due, check=killed),),
        ("kill", "beat"): (Scene(gated("goto"), check=killed),),
        ("kill", "expiry"): (Scene(gated("goto"), ready=lease_over, check=killed),),
        ("kill", "signal"): (Scene(WAITING, check=killed),),
        ("kill", "decision"): (Scene(DECISION, check=killed_before_or_after),),
        ("kill", "ask"): (Scene(ANSWERING, check=killed),),
        ("kill", "timeout"): (Scene(expired("signal"), check=any_outcome),),
        ("kill", "cancel"): (Scene(gated("goto"), check=killed), Scene(WAITING, check=killed_unless_ended)),
        ("kill", "resume"): (Scene(queued("later"), ready=retrying, check=killed),),
        ("kill", "kill"): (Scene(gated("goto"), check=killed_by_one),),
        ("kill", "outcome"): (Scene(gated("pay"), check=outcome_kept),),
        ("kill", "child"): (Scene(with_a_child_at_work, check=killed),),
    },
    "answer": {
        ("answer", "answer"): (Scene(in_doubt, check=settled_by_one),),
        ("answer", "outcome"): (Scene(in_doubt, check=settled_by_person_or_provider),),
        ("answer", "cancel"): (Scene(in_doubt, check=settled_and_cancelled),),
        ("answer", "kill"): (Scene(in_doubt, check=settled_and_cancelled),),
        ("answer", "gone"): (Scene(in_doubt, first=it_did_not, check=denied_only_with_proof),),
        ("answer", "retention"): (Scene(old(killed_in_doubt), check=answered_or_gone, locks=DELETING),),
    },
    "worker": {
        ("gone", "beat"): (Scene(gated(), ready=lease_over, check=gone_or_beaten, locks=(WORKER,)),),
        ("gone", "checkpoint"): (Scene(gated(), ready=lease_over, check=one_attempt_ends, locks=(WORKER,)),),
        ("gone", "expiry"): (Scene(gated(), ready=lease_over, locks=(RUN, WORKER)),),
        ("gone", "gone"): (Scene(gated(), ready=lease_over, check=gone_once, locks=(WORKER,)),),
        ("drain", "drain"): (Scene(gated(), check=asked_once, locks=(WORKER,)),),
        ("drain", "gone"): (Scene(gated(), ready=lease_over, locks=(WORKER,)),),
        ("recycle", "takeback"): (
            Scene(
                gated(),
                first=ask_worker("recycle"),
                second=ask_worker("resume"),
                ready=drained,
                check=recycled,
                locks=(WORKER,),
            ),
        ),
    },
    "family": {
        ("cancel", "child"): (Scene(with_a_child_at_work, check=cancelled_afterwards),),
        ("skip", "child"): (Scene(with_a_child_at_work, check=skipped_and_finished),),
    },
    "bulk": {
        ("turn", "retry"): (Scene(in_a_bulk(FAILED), check=retried_once),),
        ("turn", "turn"): (Scene(in_a_bulk(FAILED), check=retried_by_one_turn),),
        ("turn", "pause"): (Scene(in_a_bulk(FAILED), check=stands_still),),
        ("turn", "stop"): (Scene(in_a_bulk(FAILED), check=stopped_for_good),),
        ("turn", "fork"): (Scene(in_a_bulk(FAILED), check=retried_or_forked),),
        ("turn", "retention"): (Scene(in_a_bulk(old(FAILED)), check=retried_or_deleted, locks=DELETING),),
    },
    "together": {
        ("together", "decision"): (Scene(side_by_side(DECISION), check=decided_by_page_or_person),),
        ("together", "together"): (Scene(side_by_side(DECISION), check=each_decided_by_one),),
        ("together", "edit"): (Scene(side_by_side(DECISION), check=edited_together),),
        ("together", "cancel"): (Scene(side_by_side(DECISION), check=decided_together_or_void),),
        ("together", "timeout"): (
            Scene(side_by_side(expired("decision")), check=decided_together_or_expired),
        ),
    },
    "approval": {
        ("decision", "edit"): (Scene(DECISION, check=edited_in_any_case),),
        ("edit", "edit"): (Scene(DECISION, check=one_version_more),),
        ("claim", "edit"): (Scene(DECISION, ready=approved, check=taken_over_or_edited),),
        ("checkpoint", "edit"): (Scene(executed_with_the_decision, check=taken_over_or_edited),),
        ("timeout", "edit"): (Scene(expired("decision"), check=expired_whatever_it_says),),
        ("edit", "cancel"): (Scene(DECISION, check=cancelled_afterwards),),
        ("ask", "ask"): (
            Scene(ANSWERING, first=ask_the_same, second=ask_the_same, check=one_changes),
            Scene(ANSWERING, check=both_asked),
        ),
        ("ask", "decision"): (Scene(ANSWERING, check=asked_in_time),),
        ("ask", "edit"): (Scene(DECISION, check=asked_about_what_was_shown),),
        ("ask", "checkpoint"): (Scene(gated_again(ANSWERING), check=asked_and_answered),),
        ("ask", "claim"): (Scene(ANSWERING, ready=one_question, check=asked_and_answered),),
        ("claim", "decision"): (Scene(ANSWERING, ready=one_question, check=asked_before_the_decision),),
    },
    "inbox": {
        ("take", "take"): (Scene(DECISION, check=one_holds_it),),
        ("take", "assign"): (Scene(DECISION, check=one_holds_it),),
        ("take", "decision"): (Scene(DECISION, check=decided_all_the_same),),
        ("snooze", "snooze"): (Scene(DECISION, check=one_puts_it_away),),
        ("snooze", "decision"): (Scene(DECISION, check=decided_all_the_same),),
        ("claim", "snooze"): (
            Scene(ANSWERING, second=snooze_whatever_was_seen, ready=one_question, check=back_with_the_answer),
        ),
        ("comment", "comment"): (Scene(DECISION, check=one_changes),),
    },
    "request": {
        ("vote", "vote"): (Scene(asked_for(WAITING), check=carried_out_once, locks=(REQUEST, RUN)),),
        ("vote", "rejection"): (
            Scene(asked_for(WAITING), second=vote("reject"), check=one_verdict, locks=(REQUEST, RUN)),
        ),
        ("vote", "withdraw"): (Scene(asked_for(WAITING), check=one_verdict, locks=(REQUEST, RUN)),),
        ("vote", "signal"): (Scene(asked_for(WAITING), check=carried_out_or_refused),),
        ("vote", "cancel"): (Scene(asked_for(WAITING), check=carried_out_or_refused),),
        ("request", "request"): (
            Scene(guarded(WAITING), check=asked_others_once),
            Scene(
                guarded(WAITING),
                first=ask_others_the_same,
                second=ask_others_the_same,
                check=asked_others_once,
            ),
        ),
    },
    "limit": {
        ("reversal", "reversal"): (
            Scene(queued(), ready=limit_for_a_while, check=over_once, locks=(POLICY,)),
        ),
        ("reversal", "change"): (
            Scene(queued(), ready=limit_for_a_while, check=over_and_changed, locks=(POLICY,)),
            Scene(
                queued(),
                second=set_limit_whatever_was_seen,
                ready=limit_for_a_while,
                check=over_and_changed,
                locks=(POLICY,),
            ),
        ),
        ("undo", "change"): (Scene(queued(), ready=limit_set, check=changed_by_one, locks=(POLICY,)),),
        ("undo", "undo"): (Scene(queued(), ready=limit_set, check=undone_once, locks=(POLICY,)),),
        ("reversal", "lift"): (
            Scene(
                queued("goto"),
                second=lift_pause,
                ready=paused_for_a_while,
                check=goes_on,
                locks=(RUN, POLICY),
            ),
        ),
    },
}
