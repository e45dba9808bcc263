"""Each rule of the reference model, attacked along the shortest way on which the protocol fails without it.

docs/proof.md lists the rules; the ways are those that the model's search finds when it takes one rule away.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from approvals.models import Approval
from approvals.services import decide, edit
from runs import lifecycle
from runs.errors import Stale, StateMismatch
from runs.lifecycle import Actor
from runs.models import Attempt as AttemptRow
from runs.models import Event, LogLine, Message, Operation, Run, Worker
from runs.services import answer_doubt, cancel, declare_gone, force_resume, receive_signal, retry, start
from tests import factories
from tests.harness.waiting import wait_until
from tests.model.flows import SETTLE, WINDOW, Plan
from tests.model.stage import LEASE, Attempt, Stage, VirtualWorker
from tests.races import blocked_sessions

pytestmark = pytest.mark.django_db(transaction=True)

#: Between two checks of the clock: the settle time is over, the attempt's time is not.
SETTLED = SETTLE + timedelta(minutes=1)
#: The attempt's time is over.
OVERDUE = timedelta(hours=2)
SOON = timedelta(minutes=2)


def begin(stage: Stage, kind: str = "idempotent", **plan: Any) -> Run:
    given: dict[str, Any] = {"of": stage.queue, "kinds": (kind, kind, "idempotent"), "short": True, **plan}
    return start(Actor("test"), "m_whole", Plan(**given), queue=stage.queue).run


def claimed(worker: VirtualWorker) -> Attempt:
    (attempt,) = worker.claim()
    return attempt


def taken_over(stage: Stage, frozen: VirtualWorker) -> Attempt:
    """`frozen` stops for longer than its lease; what another worker makes of its run."""
    frozen.freeze()
    other = stage.worker()
    assert stage.sweep() == 1
    return claimed(other)


def answered_behind_a_flying_send(stage: Stage, answer: str) -> tuple[Run, VirtualWorker]:
    """A run whose first sender was killed in its request, `stage.world.net[0]`; another worker sent again and had this answer."""
    run, first = begin(stage), stage.worker()
    claimed(first).to("tool.in_request")
    first.kill()
    other = stage.worker()
    sender = claimed(other).to("tool.in_request")
    sender.answer(answer)
    sender.finish()
    return run, other


def again(run: Run) -> Run:
    return Run.objects.get(pk=run.pk)


def the_effect(run: Run) -> Operation:
    return Operation.objects.get(run=run, kind="effect", compensates=None)


def outcomes(run: Run) -> list[tuple[int, int, str]]:
    rows = AttemptRow.objects.filter(run_id=run.pk).order_by("step_seq", "attempt_no")
    return list(rows.values_list("step_seq", "epoch", "outcome"))


def events(run: Run) -> list[str]:
    return list(Event.objects.filter(run_id=run.pk).order_by("seq").values_list("kind", flat=True))


def signal(run: Run) -> None:
    receive_signal(
        Actor("test"), name="paid", payload=7, run_id=run.pk, source="test", external_id=str(run.pk)
    )


def stop(run: Run) -> None:
    cancel(factories.support(), run.pk, reason="enough")


def vote(run: Run, verdict: str = "approve", version: int | None = None) -> None:
    approval = Approval.objects.get(run=run)
    decide(
        factories.operator(),
        approval.pk,
        version=version or approval.version,
        digest=approval.digest,
        verdict=verdict,
        reason="because",
    )


def say(run: Run, *, happened: bool) -> None:
    answer_doubt(
        factories.operator(),
        the_effect(run).pk,
        happened=happened,
        result="seen" if happened else None,
        reason="looked",
    )


# --- the fence -------------------------------------------------------------------------------------------------------

PLACES: dict[str, tuple[str, dict[str, Any]]] = {
    "intent": ("intent.before", {}),
    "query": ("query.answered", {"short": False}),
    "goto": ("checkpoint.before", {"short": False}),
    "complete": ("checkpoint.before", {}),
    "suspend": ("suspend.before", {"short": False, "wait": "signal"}),
    "failure": ("attempt.ended", {"short": False, "fails": 1}),
}


def written(run: Run) -> list[Any]:
    """Everything that a worker may write for a run."""
    models = (Run.objects.filter(pk=run.pk), AttemptRow.objects.filter(run_id=run.pk).order_by("attempt_no"))
    of_run = (m.objects.filter(run_id=run.pk).order_by("id") for m in (Operation, Message, LogLine))
    return [list(rows.values()) for rows in (*models, *of_run)]


@pytest.mark.parametrize("what", PLACES)
def test_a_thawed_attempt_whose_run_is_executed_elsewhere_writes_nothing(what: str, stage: Stage) -> None:
    place, plan = PLACES[what]
    run, first = begin(stage, **plan), stage.worker()
    late = claimed(first).to(place)
    visit = late.execution.step_seq
    second = taken_over(stage, first)
    assert (second.execution.epoch, second.execution.step_seq) == (2, visit)
    before = written(run)
    late.finish()
    assert written(run) == before
    second.finish()
    assert again(run).status == ("waiting" if what == "suspend" else "completed")


@pytest.mark.parametrize("what", PLACES)
def test_a_thawed_attempt_whose_run_waits_for_its_next_claim_writes_nothing(what: str, stage: Stage) -> None:
    """Until then the run has the epoch and the visit of that attempt."""
    place, plan = PLACES[what]
    run, first = begin(stage, **plan), stage.worker()
    late = claimed(first).to(place)
    other = stage.worker()
    first.freeze()
    assert stage.sweep() == 1
    assert (again(run).status, again(run).epoch) == ("queued", 1)
    before = written(run)
    late.finish()
    assert written(run) == before
    claimed(other).finish()
    assert again(run).status == ("waiting" if what == "suspend" else "completed")


def test_a_thawed_claim_of_a_waiting_run_does_not_park_it_again(stage: Stage) -> None:
    run, first = begin(stage, short=False, wait="signal"), stage.worker()
    claimed(first).finish()
    force_resume(factories.support(), run.pk, reason="look")
    late, other = claimed(first), stage.worker()
    first.freeze()
    assert stage.sweep() == 1
    before = written(run)
    late.finish()
    assert written(run) == before
    claimed(other).finish()
    assert again(run).status == "waiting"


def test_a_goto_whose_answer_is_lost_moves_the_cursor_once(stage: Stage) -> None:
    run = begin(stage, short=False)
    attempt = claimed(stage.worker()).to("checkpoint.before")
    attempt.loses = 1
    attempt.finish()
    assert again(run).status == "completed", again(run).reason
    assert outcomes(run) == [(1, 1, "succeeded"), (2, 1, "succeeded")]


@pytest.mark.parametrize(("place", "plan"), [PLACES["suspend"], PLACES["failure"], PLACES["complete"]])
def test_a_move_that_gave_the_run_away_is_not_made_again_when_its_answer_is_lost(
    place: str, plan: dict[str, Any], stage: Stage
) -> None:
    run = begin(stage, **plan)
    attempt = claimed(stage.worker()).to(place)
    visit, attempt.loses = attempt.execution.step_seq, 1
    attempt.finish()
    assert len([o for o in outcomes(run) if o[0] == visit]) == 1
    assert again(run).status == {"suspend.before": "waiting", "attempt.ended": "retrying"}.get(
        place, "completed"
    )
    # It knows that it has made the move itself.
    assert not attempt.execution.lost


# --- the row lock in the fenced insert ---------------------------------------------------------------------------------


def superseded_in_flight(run: Run, attempt: Attempt) -> None:
    """The attempt's next statement reaches the database while another transaction takes its run away, and is decided after it."""
    place = attempt.place
    with transaction.atomic():
        locked = lifecycle.lock_run(run.pk)
        locked.epoch += 1
        locked.save(update_fields=["epoch"])
        attempt.let_go()
        wait_until(lambda: blocked_sessions() > 0 or attempt.place != place, 20, "the statement is there")
    attempt.stands()


@pytest.mark.parametrize("what", ["intent", "query"])
def test_an_insert_sees_the_fence_as_it_is_when_the_take_over_commits(what: str, stage: Stage) -> None:
    place, plan = PLACES[what]
    run = begin(stage, **plan)
    attempt = claimed(stage.worker()).to(place)
    before = written(run)[1:], len(stage.world.net)
    superseded_in_flight(run, attempt)
    if not attempt.over:
        attempt.finish()
    assert (written(run)[1:], len(stage.world.net)) == before


# --- the intent, and who may send ----------------------------------------------------------------------------------------


def test_what_was_sent_without_an_answer_is_on_record_before_it_is_sent(stage: Stage) -> None:
    run, first = begin(stage, "unknowable"), stage.worker()
    claimed(first).to("tool.in_request")
    assert the_effect(run).status == "pending"
    first.kill()
    claimed(stage.worker()).finish()
    assert (again(run).status, again(run).attention_kind) == ("attention", "in_doubt")
    assert len(stage.world.net) == 1


def test_a_thawed_worker_whose_lease_is_over_does_not_send(stage: Stage) -> None:
    run, first = begin(stage, "unknowable"), stage.worker()
    late = claimed(first).to("intent.committed")
    second = taken_over(stage, first)
    late.finish()
    assert stage.world.net == []
    second.finish()
    # It said that it had not sent: nobody need be asked.
    stage.pass_time(SOON)
    for attempt in second.worker.claim():
        attempt.finish()
    assert again(run).status in ("completed", "attention")


def test_a_send_after_the_attempts_deadline_is_not_made(stage: Stage) -> None:
    run, first = begin(stage, "verified"), stage.worker()
    late = claimed(first).to("intent.committed")
    stage.pass_time(OVERDUE)
    assert stage.sweep() == 1
    late.finish()
    assert stage.world.net == []
    assert outcomes(run)[0][2] == "timed_out"


def test_a_worker_that_was_taken_for_dead_cannot_beat_itself_back_to_life(stage: Stage) -> None:
    begin(stage, "unknowable")
    first = stage.worker()
    late = claimed(first).to("intent.committed")
    taken_over(stage, first)
    first.beat()
    assert first.closed
    assert not first.lease.allows_send
    late.finish()
    assert stage.world.net == []


def test_a_run_is_not_taken_from_a_worker_that_lives(stage: Stage) -> None:
    run, first = begin(stage), stage.worker()
    attempt = claimed(first).to("intent.committed")
    other = stage.worker()
    other._sweep()
    assert other.claim() == []
    attempt.finish()
    assert (again(run).status, outcomes(run)) == ("completed", [(1, 1, "succeeded")])


def test_a_run_that_kills_each_worker_ends_in_the_dead_letter(stage: Stage) -> None:
    run = begin(stage)
    for _ in range(6):
        if again(run).status == "failed":
            break
        worker = stage.worker()
        claimed(worker).to("attempt.begun")
        worker.kill()
        stage.pass_time(SOON)
    assert (again(run).status, again(run).failure_kind) == ("failed", "crashed")


def test_a_claim_whose_answer_is_lost_is_handed_back(stage: Stage) -> None:
    run, worker = begin(stage), stage.worker()
    assert worker.claim(lose_answer=True) == []
    assert again(run).status == "running"
    worker.beat()
    worker.beat()
    assert again(run).status == "queued"
    claimed(worker).finish()
    assert (again(run).status, again(run).crashes) == ("completed", 0)


# --- what an earlier attempt left open -------------------------------------------------------------------------------------


def test_what_is_absent_is_not_sent_again_while_its_sender_may_still_act(stage: Stage) -> None:
    run, first = begin(stage, "verified"), stage.worker()
    sender = claimed(first).to("tool.in_request")
    first.freeze()
    stage.pass_time(SETTLED)
    other = stage.worker()
    assert stage.sweep() == 1
    claimed(other).finish()
    assert (again(run).status, len(stage.world.net)) == ("retrying", 1)
    sender.finish()
    stage.pass_time(SOON)
    claimed(other).finish()
    assert (again(run).status, stage.world.ledger.total()) == ("completed", 1)


def test_what_is_absent_is_not_sent_again_before_the_settle_time_has_passed(stage: Stage) -> None:
    run, first = begin(stage, "verified"), stage.worker()
    claimed(first).to("tool.in_request")
    first.kill()
    other = stage.worker()
    claimed(other).finish()
    assert (again(run).status, len(stage.world.net)) == ("retrying", 1)
    stage.world.land(stage.world.net[0])
    stage.pass_time(SOON)
    claimed(other).finish()
    assert (again(run).status, stage.world.ledger.total()) == ("completed", 1)


def test_the_settle_time_runs_from_the_senders_end_and_not_from_its_intent(stage: Stage) -> None:
    run, first = begin(stage, "verified"), stage.worker()
    claimed(first).to("tool.in_request")
    stage.pass_time(SETTLED)
    first.kill()
    other = stage.worker()
    claimed(other).finish()
    assert (again(run).status, len(stage.world.net)) == ("retrying", 1)
    stage.world.land(stage.world.net[0])
    stage.pass_time(SOON)
    claimed(other).finish()
    assert (again(run).status, stage.world.ledger.total()) == ("completed", 1)


def test_whether_it_may_be_sent_again_is_decided_before_the_provider_is_asked(stage: Stage) -> None:
    run, first = begin(stage, "verified"), stage.worker()
    claimed(first).to("tool.in_request")
    first.kill()
    looking = claimed(stage.worker()).to("verify.answered")
    # On its way back the answer grows old: the request lands, and the settle time passes.
    stage.world.land(stage.world.net[0])
    stage.pass_time(SETTLED)
    looking.finish()
    assert (again(run).status, len(stage.world.net)) == ("retrying", 1)


def test_a_second_send_is_the_new_senders_and_not_the_dead_ones(stage: Stage) -> None:
    run, first = begin(stage, "verified"), stage.worker()
    claimed(first).to("intent.committed")
    first.kill()
    stage.pass_time(SETTLED)
    second = stage.worker()
    claimed(second).to("tool.in_request")
    assert the_effect(run).intent_worker_id == second.worker_id
    second.kill(reaped=False)
    other = stage.worker()
    stage.sweep()
    stage.pass_time(SOON)
    claimed(other).finish()
    # Absent, and its first sender ended long ago; but the second one was not seen to end.
    assert (again(run).status, len(stage.world.net)) == ("retrying", 1)


def test_an_error_that_arrives_late_says_nothing_about_the_newer_send(stage: Stage) -> None:
    run, first = begin(stage), stage.worker()
    late = claimed(first).to("tool.in_request")
    late.answer("refused")
    late.to("outcome.before")
    second = taken_over(stage, first).to("tool.in_request")
    late.finish()
    operation = the_effect(run)
    assert (operation.status, operation.intent_epoch) == ("pending", 2)
    assert "late_outcome" in events(run)
    second.finish()
    assert (again(run).status, stage.world.ledger.total()) == ("completed", 1)


def test_a_key_is_not_used_again_once_its_window_has_passed_between_decision_and_intent(stage: Stage) -> None:
    run, first = begin(stage), stage.worker()
    claimed(first).to("tool.in_request")
    second = taken_over(stage, first).to("restamp.before")
    stage.pass_time(2 * WINDOW)
    second.finish()
    assert (the_effect(run).intent_epoch, len(stage.world.net)) == (1, 1)


def test_a_key_is_not_used_again_with_less_than_a_lease_of_its_window_left(stage: Stage) -> None:
    run, first = begin(stage), stage.worker()
    claimed(first).to("tool.in_request")
    stage.pass_time(WINDOW - timedelta(seconds=LEASE / 2))
    taken_over(stage, first).finish()
    assert (again(run).status, again(run).attention_kind) == ("attention", "in_doubt")
    assert len(stage.world.net) == 1


def test_a_call_that_ended_without_an_answer_is_over_although_its_worker_lives_on(stage: Stage) -> None:
    run, worker = begin(stage, "verified"), stage.worker()
    sender = claimed(worker).to("tool.in_request")
    sender.answer("lost")
    sender.finish()
    stop(run)
    stage.pass_time(SETTLED)
    claimed(worker).finish()
    assert (again(run).status, the_effect(run).status) == ("cancelled", "retry")
    assert stage.world.ledger.total() == 0


def test_a_person_is_asked_when_nobody_can_prove_that_the_sender_has_ended(
    stage: Stage, looks: Callable[[int], None]
) -> None:
    looks(3)
    run, first = begin(stage, "verified"), stage.worker()
    claimed(first).to("intent.committed")
    first.kill(reaped=False)
    other = stage.worker()
    stage.sweep()
    for _ in range(8):
        for attempt in other.claim():
            attempt.finish()
        stage.pass_time(SETTLED)
    assert (again(run).status, again(run).attention_kind) == ("attention", "in_doubt")
    assert "may still act" in again(run).reason


def test_it_did_not_happen_is_not_accepted_while_the_request_can_land(stage: Stage) -> None:
    run, first = begin(stage, "unknowable"), stage.worker()
    claimed(first).to("tool.in_request")
    first.kill()
    other = stage.worker()
    claimed(other).finish()
    with pytest.raises(StateMismatch, match="not accepted yet"):
        say(run, happened=False)
    stage.world.settle(stage.world.net[0], "lost")
    stage.pass_time(SETTLED)
    say(run, happened=False)
    claimed(other).finish()
    assert (again(run).status, stage.world.ledger.total()) == ("completed", 1)


def test_a_worker_that_nobody_reaps_can_be_declared_gone(stage: Stage) -> None:
    run, first = begin(stage, "unknowable"), stage.worker()
    claimed(first).to("intent.committed")
    first.kill(reaped=False)
    other = stage.worker()
    stage.sweep()
    claimed(other).finish()
    stage.pass_time(SETTLED)
    with pytest.raises(StateMismatch, match="not seen to end"):
        say(run, happened=False)
    declare_gone(factories.admin(), first.worker_id, reason="its host burnt")
    assert Worker.objects.get(pk=first.worker_id).reaped_at is not None, "its end counts as known"
    stage.sender_ended(first)
    stage.pass_time(SETTLED)
    say(run, happened=False)
    claimed(other).finish()
    assert (again(run).status, stage.world.ledger.total()) == ("completed", 1)


def test_an_outcome_that_arrives_while_people_are_asked_lets_the_run_go_on(stage: Stage) -> None:
    run, first = begin(stage, "unknowable"), stage.worker()
    late = claimed(first).to("tool.in_request")
    other = taken_over(stage, first)
    other.finish()
    assert again(run).status == "attention"
    late.finish()
    assert (again(run).status, events(run)[-1]) == ("queued", "resumed")
    claimed(other.worker).finish()
    assert (again(run).status, stage.world.ledger.total()) == ("completed", 1)


def test_nobody_is_asked_about_an_outcome_that_has_arrived_meanwhile(stage: Stage) -> None:
    run, first = begin(stage, "unknowable"), stage.worker()
    late = claimed(first).to("tool.in_request")
    asking = taken_over(stage, first).to("suspend.before")
    late.finish()
    asking.finish()
    assert again(run).status == "queued"
    claimed(asking.worker).finish()
    assert again(run).status == "completed"


def test_a_run_that_is_given_up_with_an_effect_in_doubt_asks_a_person(stage: Stage) -> None:
    run = begin(stage, "verified")
    for _ in range(6):
        if again(run).status not in ("queued", "retrying"):
            break
        worker = stage.worker()
        claimed(worker).to("intent.committed" if again(run).crashes == 0 else "attempt.begun")
        worker.kill()
        stage.pass_time(SOON)
    assert (again(run).status, again(run).attention_kind) == ("attention", "in_doubt")


def test_a_refused_effect_keeps_its_key_while_an_earlier_send_can_land(stage: Stage) -> None:
    run, other = answered_behind_a_flying_send(stage, "refused for good")
    assert again(run).status == "failed"
    stage.world.land(stage.world.net[0])
    retry(factories.support(), run.pk, reason="again")
    claimed(other).finish()
    assert again(run).status == "completed"
    assert {r.key for r in stage.world.net} == {str(the_effect(run).provider_key)}
    assert stage.world.ledger.total() == 1


def test_a_retry_does_not_send_again_when_the_provider_may_have_forgotten_the_key_of_an_earlier_send(
    stage: Stage,
) -> None:
    run, other = answered_behind_a_flying_send(stage, "refused for good")
    assert again(run).status == "failed"
    stage.world.land(stage.world.net[0])
    stage.pass_time(2 * WINDOW)
    retry(factories.support(), run.pk, reason="again")
    claimed(other).finish()
    assert (again(run).status, again(run).attention_kind) == ("attention", "in_doubt")
    assert (len(stage.world.net), stage.world.ledger.total()) == (2, 1)


# --- cancel ------------------------------------------------------------------------------------------------------------------


def test_no_intent_follows_a_cancel(stage: Stage) -> None:
    run = begin(stage)
    attempt = claimed(stage.worker()).to("intent.before")
    stop(run)
    attempt.finish()
    assert (again(run).status, stage.world.net) == ("cancelled", [])


@pytest.mark.parametrize("plan", [{}, {"short": False}])
def test_a_cancel_beats_the_checkpoint_that_it_meets(plan: dict[str, Any], stage: Stage) -> None:
    run = begin(stage, **plan)
    attempt = claimed(stage.worker()).to("checkpoint.before")
    stop(run)
    attempt.finish()
    assert (again(run).status, len(outcomes(run))) == ("cancelled", 1)


def test_under_a_cancel_a_pending_effect_is_asked_about_and_not_sent(stage: Stage) -> None:
    run, first = begin(stage), stage.worker()
    claimed(first).to("intent.committed")
    first.kill()
    stop(run)
    other = stage.worker()
    claimed(other).finish()
    assert (again(run).status, stage.world.net) == ("attention", [])
    stage.pass_time(SETTLED)
    say(run, happened=False)
    for attempt in other.claim():
        attempt.finish()
    assert again(run).status == "cancelled"


def test_compensations_begin_although_cancel_was_asked_for(stage: Stage) -> None:
    run, worker = begin(stage, undoable=True, short=False, wait="signal"), stage.worker()
    claimed(worker).finish()
    stop(run)
    assert again(run).status == "cancelling"
    claimed(worker).finish()
    assert again(run).status == "cancelled"
    assert stage.world.ledger == {f"{stage.queue} U": 1, f"{stage.queue} undo": 1}


# --- waits and approvals --------------------------------------------------------------------------------------------------------


def test_a_signal_that_comes_while_its_wait_opens_is_found(stage: Stage) -> None:
    run, worker = begin(stage, short=False, wait="signal"), stage.worker()
    opening = claimed(worker).to("suspend.before")
    signal(run)
    opening.finish()
    assert again(run).wake_at is not None
    claimed(worker).finish()
    assert again(run).status == "completed"


def test_a_decision_that_comes_while_its_run_looks_again_is_found(stage: Stage) -> None:
    run, worker = begin(stage, short=False, wait="approval"), stage.worker()
    claimed(worker).finish()
    force_resume(factories.support(), run.pk, reason="look")
    # Forced on, it looks without a body; a decision that commits first is found by the transaction that parks it again.
    parking = claimed(worker)
    vote(run)
    parking.finish()
    for attempt in worker.claim():
        attempt.finish()
    assert again(run).status == "completed"


def test_of_two_opposite_decisions_the_second_is_told_that_it_lost(stage: Stage) -> None:
    run, worker = begin(stage, short=False, wait="approval"), stage.worker()
    claimed(worker).finish()
    vote(run)
    with pytest.raises(StateMismatch, match="already approved"):
        vote(run, "reject")
    claimed(worker).finish()
    assert again(run).status == "completed"


def test_a_vote_on_the_version_before_the_edit_does_not_count(stage: Stage) -> None:
    run, worker = begin(stage, short=False, wait="approval"), stage.worker()
    claimed(worker).finish()
    approval = Approval.objects.get(run=run)
    edit(
        factories.operator(),
        approval.pk,
        version=1,
        arguments={"of": stage.queue, "amount": 20},
        reason="more",
    )
    with pytest.raises(Stale):
        vote(run, version=1)
    assert Approval.objects.get(run=run).state == "open"


def test_an_intent_looks_at_its_approval_again(stage: Stage) -> None:
    run, worker = begin(stage, short=False, wait="approval"), stage.worker()
    claimed(worker).finish()
    vote(run)
    attempt = claimed(worker).to("intent.before")
    approval = Approval.objects.get(run=run)
    edit(
        factories.operator(),
        approval.pk,
        version=1,
        arguments={"of": stage.queue, "amount": 20},
        reason="more",
    )
    attempt.finish()
    assert f"{stage.queue} G" not in stage.world.amounts
    for parked in worker.claim():
        parked.finish()
    vote(run)
    claimed(worker).finish()
    assert (again(run).status, stage.world.amounts[f"{stage.queue} G"]) == ("completed", 20)
