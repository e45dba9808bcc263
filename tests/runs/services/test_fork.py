"""A new run that begins at a visit of another one: what it reuses, what happens again, who may."""

import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from pydantic import BaseModel

from runs import clock, doctor, history, services
from runs.engine.worker import RunWorker
from runs.errors import Invalid, NotAllowed, Stale, StateMismatch
from runs.models import Attempt, Event, Message, Operation, Run
from runs.models.operation import Kind, OpStatus
from runs.services.fork import NOT_GIVEN, visits
from runs.states import AttentionKind, Outcome, Status
from runs.workflow import Child, Complete, Fail, Goto, Workflow, tool
from tests import factories
from tests.runs.engine.conftest import running_worker, unhealthy, until

LEDGER: list[str] = []


class Order(BaseModel):
    order: str
    fails: bool = False


class Broken:
    """Whether the last step fails."""

    now = True


shop = Workflow("k_shop", input=Order, subject=lambda given: f"order {given.order}")
parcel_child = Workflow("k_child", input=Order)


@tool
def price_of(order: str) -> int:
    LEDGER.append(f"ask {order}")
    return 12


@tool(effect=True, idempotent=timedelta(hours=1))
def charge_it(order: str, amount: int, *, idempotency_key: str) -> str:
    LEDGER.append(f"charge {order} {amount}")
    return f"ch_{len(LEDGER)}"


@tool(effect=True, idempotent=timedelta(hours=1))
def mail_it(order: str, *, idempotency_key: str) -> str:
    LEDGER.append(f"mail {order}")
    return "sent"


@parcel_child.step(start=True)
def carry(ctx: Any) -> Complete:
    LEDGER.append(f"carry {ctx.input.order}")
    return Complete("carried")


@shop.step(start=True)
def look(ctx: Any) -> Goto:
    ctx.messages.add("user", f"order {ctx.input.order}")
    ctx.state["price"] = ctx.call(price_of, order=ctx.input.order)
    return Goto(pay)


@shop.step
def pay(ctx: Any) -> Goto:
    ctx.call(price_of, order="again")
    ctx.state["receipt"] = ctx.call(charge_it, order=ctx.input.order, amount=ctx.state["price"])
    return Goto(deliver)


@shop.step
def deliver(ctx: Any) -> Goto:
    ctx.state["way"] = ctx.children([Child(parcel_child, {"order": ctx.input.order})])[0].result
    return Goto(tell)


@shop.step
def tell(ctx: Any) -> Complete | Fail:
    ctx.call(mail_it, order=ctx.input.order)
    if Broken.now:
        return Fail("the printer is on fire")
    return Complete({"receipt": ctx.state["receipt"], "heard": [m["content"] for m in ctx.messages]})


named = Workflow("k_named", input=Order)


@tool(effect=True, idempotent=timedelta(hours=1))
def label_for(run: uuid.UUID, text: str, *, idempotency_key: str) -> None:
    LEDGER.append(text)


@tool
def bin_of(run: str) -> None:
    LEDGER.append(f"bin {run}")


@named.step(start=True)
def label(ctx: Any) -> Complete | Fail:
    run = uuid.UUID(ctx.state.get("names", str(ctx.run_id)))
    ctx.call(label_for, run=run, text=f"label for {run}")
    ctx.children([Child(parcel_child, {"order": "7"})], label=f"parcel of {ctx.input.order}")
    if Broken.now:
        return Fail("the printer is on fire")
    ctx.call(bin_of, run=str(run))
    return Complete()


@pytest.fixture
def worker(transactional_db: None, settings: Any) -> Iterator[RunWorker]:
    settings.AGENTOPS_BEAT_SECONDS, settings.AGENTOPS_POLL_SECONDS = 0.2, 0.05
    LEDGER.clear()
    Broken.now = True
    with running_worker() as started:
        yield started
        assert unhealthy() == []


def failed_order() -> Run:
    run = services.start(factories.SYSTEM, "k_shop", {"order": "1042"}).run
    until(run, "failed")
    assert LEDGER == ["ask 1042", "ask again", "charge 1042 12", "carry 1042", "mail 1042"]
    Broken.now = False
    LEDGER.clear()
    return run


def of(run: Run, name: str) -> Operation:
    return Operation.objects.get(run_id=run.pk, name=name)


def test_a_fork_repeats_nothing_that_it_reuses_and_ends_with_the_same_receipt(worker):
    source = failed_order()
    by = factories.support("sam")
    done = services.fork(
        by, source.pk, visit=2, reason="the printer is repaired", seen_version=source.event_seq
    )
    made = done.run
    until(made, "completed")
    assert LEDGER == []  # the query before the charge was reused as well: the charge was based on it
    charge, copy = of(source, "charge_it"), of(made, "charge_it")
    assert (copy.copied_from, copy.provider_key, copy.result) == (
        charge.pk,
        charge.provider_key,
        charge.result,
    )
    assert made.result == {"receipt": charge.result, "heard": ["order 1042"]}
    assert (made.forked_from, made.forked_visit, made.step_seq, made.subject) == (
        source.pk,
        2,
        4,
        "order 1042",
    )
    assert made.started_by_name == "sam"
    source.refresh_from_db()
    assert source.status == Status.FAILED
    assert Message.objects.filter(run_id=made.pk).count() == 1


def test_calls_that_name_their_own_run_are_reused_by_a_fork_and_by_a_fork_of_that(worker):
    source = services.start(factories.SYSTEM, "k_named", {"order": "7"}).run
    until(source, "failed")
    assert [f"label for {source.pk}", "carry 7"] == LEDGER
    Broken.now = False
    by = factories.support()
    made = services.fork(by, source.pk, visit=1, reason="the printer is repaired").run
    until(made, "completed")
    again = services.fork(by, made.pk, visit=1, reason="once more").run
    until(again, "completed")
    assert LEDGER[2:] == [f"bin {made.pk}", f"bin {again.pk}"]  # only what was not there to be reused


def test_a_fork_that_names_another_run_than_its_own_still_diverges(worker):
    source = services.start(factories.SYSTEM, "k_named", {"order": "7"}).run
    until(source, "failed")
    Broken.now = False
    other = str(uuid.uuid4())
    made = services.fork(factories.support(), source.pk, visit=1, reason="x", state={"names": other}).run
    until(made, "attention")
    assert made.attention_kind == AttentionKind.DIVERGED
    assert [f"label for {source.pk}", "carry 7"] == LEDGER


def test_what_is_to_run_again_does_so_under_a_key_of_the_fork(worker):
    source = failed_order()
    mail = of(source, "mail_it")
    made = services.fork(factories.support(), source.pk, visit=3, reason="it was lost", again={mail.pk}).run
    until(made, "completed")
    assert LEDGER == ["mail 1042"]
    assert of(made, "mail_it").provider_key != mail.provider_key
    assert of(made, "mail_it").copied_from is None


def test_child_runs_are_reused_or_started_anew_as_it_was_said(worker):
    source = failed_order()
    wait = Operation.objects.get(run_id=source.pk, kind=Kind.CHILD)
    made = services.fork(factories.support(), source.pk, visit=3, reason="again", again={wait.pk}).run
    until(made, "completed")
    assert LEDGER == ["carry 1042"]


def test_another_state_leads_to_another_call_and_the_fork_asks_a_person_instead_of_charging_twice(worker):
    source = failed_order()
    made = services.fork(factories.support(), source.pk, visit=2, reason="dearer", state={"price": 99}).run
    until(made, "attention")
    assert made.attention_kind == AttentionKind.DIVERGED
    assert LEDGER == []
    charge = of(source, "charge_it")
    services.cancel(factories.support(), made.pk)
    other = services.fork(
        factories.support(), source.pk, visit=2, reason="dearer", state={"price": 99}, again={charge.pk}
    ).run
    until(other, "completed")
    assert LEDGER == ["ask again", "charge 1042 99"]


def test_a_fork_begins_with_the_state_of_its_visit_and_can_be_forked_itself(worker):
    source = failed_order()
    made = services.fork(factories.support(), source.pk, visit=2, reason="once").run
    until(made, "completed")
    first = Attempt.objects.get(run_id=made.pk, step_seq=2, attempt_no=1)
    assert (first.outcome, first.state_after, first.step) == (Outcome.FORKED, {"price": 12}, "pay")
    again = services.fork(factories.support(), made.pk, visit=2, reason="twice").run
    until(again, "completed")
    assert LEDGER == []
    assert of(again, "charge_it").copied_from == of(source, "charge_it").pk
    back = history.restored(again.pk, 2, 1)
    assert back is not None and back.shown == {"price": 12}


def test_another_input_is_checked_by_its_type_and_changes_the_subject(worker):
    source = failed_order()
    with pytest.raises(Invalid, match="order: Field required"):
        services.fork(factories.support(), source.pk, visit=1, reason="x", input={})
    later = [line.operation for line in services.preview_fork(source, 1).optional]
    made = services.fork(
        factories.support(),
        source.pk,
        visit=1,
        reason="x",
        input={"order": "7"},
        again=[i for i in later if i],
    ).run
    until(made, "completed")
    assert made.subject == "order 7"
    assert LEDGER == ["ask 7", "ask again", "charge 7 12", "carry 7", "mail 7"]


def test_both_runs_tell_of_the_fork(worker):
    source = failed_order()
    mail = of(source, "mail_it")
    made = services.fork(factories.support("sam"), source.pk, visit=2, reason="why not", again=[mail.pk]).run
    until(made, "completed")
    told = Event.objects.get(run_id=source.pk, kind="forked")
    assert (told.actor, told.reason) == ("sam", "why not")
    assert told.data["run"] == str(made.pk)
    assert told.data["reused"] == ["charge_it", "k_child"]
    assert told.data["again"] == ["mail_it"]
    began = Event.objects.get(run_id=made.pk, kind="started")
    assert began.data["forked_from"] == str(source.pk)


# --- without a worker ----------------------------------------------------------------------------------------------------

pytestmark = pytest.mark.django_db


def ended(status: Status = Status.FAILED, **fields: Any) -> Run:
    run = factories.run(status, step="ship", step_seq=2, attempt_no=1, state={"a": 2}, **fields)
    now = clock.now()
    for visit, step, outcome, after in ((1, "pack", "succeeded", {"a": 1}), (2, "ship", "failed", None)):
        Attempt.objects.create(
            run_id=run.pk,
            step_seq=visit,
            attempt_no=1,
            epoch=1,
            step=step,
            outcome=outcome,
            started_at=now,
            ended_at=now,
            state_after=after,
        )
    return run


def test_the_preview_tells_each_effect_with_time_key_and_reference():
    run = ended()
    early = factories.operation(run, step_seq=1, name="print_label", provider_ref="lbl_1")
    late = factories.operation(run, provider_ref="bk_7")
    failed = factories.operation(run, status=OpStatus.FAILED, error="no courier")
    plan = services.preview_fork(run, 2)
    first, second = plan.kept
    assert (first.operation, first.reference, first.at) == (early.pk, "lbl_1", early.finished_at)
    assert (second.operation, second.key, second.reference) == (late.pk, late.provider_key, "bk_7")
    assert plan.optional == (second,)
    assert [line.operation for line in plan.again] == [failed.pk]
    assert plan.to_confirm == ()


def test_what_a_cancel_undid_cannot_be_reused_and_must_be_confirmed():
    run = ended(Status.CANCELLED)
    undone = factories.operation(run)
    factories.operation(run, step_seq=3, name="cancel_courier", compensates=undone.pk)
    with pytest.raises(Invalid, match="would repeat book_courier"):
        services.fork(factories.support(), run.pk, visit=2, reason="anew")
    made = services.fork(factories.support(), run.pk, visit=2, reason="anew", again=[undone.pk]).run
    assert not Operation.objects.filter(run_id=made.pk).exists()


def test_what_stayed_in_doubt_when_the_run_was_killed_must_be_confirmed():
    doubt = factories.doubt()
    services.kill(factories.admin(), doubt.run_id, reason="stop")
    plan = services.preview_fork(Run.objects.get(pk=doubt.run_id), 1)
    assert [line.operation for line in plan.to_confirm] == [doubt.pk]
    with pytest.raises(Invalid, match="would repeat"):
        services.fork(factories.support(), doubt.run_id, visit=1, reason="anew")


def test_a_plan_that_has_changed_since_is_refused():
    run = ended()
    seen = services.preview_fork(run, 2).digest
    factories.operation(run)
    with pytest.raises(Stale, match="keep and repeat"):
        services.fork(factories.support(), run.pk, visit=2, reason="x", seen_plan=seen)
    assert not Run.objects.filter(forked_from=run.pk).exists()


@pytest.mark.parametrize(
    "status",
    [s for s in Status if s not in (Status.FAILED, Status.CANCELLED, Status.COMPLETED, Status.ATTENTION)],
)
def test_a_run_that_may_go_on_by_itself_is_not_forked(status):
    with pytest.raises(StateMismatch, match=status):
        services.fork(factories.support(), factories.run(status).pk, visit=1, reason="x")


def test_a_run_in_doubt_is_answered_first():
    with pytest.raises(StateMismatch, match="answer that first"):
        services.fork(factories.support(), factories.doubt().run_id, visit=1, reason="x")


def test_two_runs_do_not_go_on_with_the_same_effects():
    run = ended()
    made = services.fork(factories.support(), run.pk, visit=2, reason="x").run
    for verb in (
        lambda: services.fork(factories.support(), run.pk, visit=2, reason="x"),
        lambda: services.retry(factories.support(), run.pk),
        lambda: services.skip(factories.support(), run.pk, to="pack", reason="x"),
    ):
        with pytest.raises(StateMismatch, match=f"{made.pk}, a fork of it, goes on"):
            verb()
    services.cancel(factories.support(), made.pk)
    services.retry(factories.support(), run.pk)
    run.refresh_from_db()
    assert run.status == Status.QUEUED


def test_the_fork_of_a_child_has_no_parent():
    parent = factories.run(Status.COMPLETED)
    wait = factories.operation(parent, Kind.CHILD, name="parcel", children=1)
    run = ended(parent_id=parent.pk, parent_operation_id=wait.pk, child_index=0, depth=1)
    made = services.fork(factories.support(), run.pk, visit=2, reason="x").run
    assert (made.parent_id, made.parent_operation_id, made.depth) == (None, None, 0)


def test_a_large_state_is_the_fork_s_own():
    run = ended()
    big = {"text": "x" * 20_000}
    made = services.fork(factories.support(), run.pk, visit=2, reason="x", state=big).run
    assert history.is_pointer(made.state)
    assert history.whole(made.pk, made.state, made.state_sealed).true == big
    assert [shown for *_, shown in history.walk(made.pk)] == ['{"text":"' + "x" * 20_000 + '"}']


def test_a_reused_effect_is_not_undone_by_the_fork():
    run = ended()
    factories.operation(run, compensate_with="cancel_courier")
    made = services.fork(factories.support(), run.pk, visit=2, reason="x").run
    plan = services.preview_cancel(made)
    assert (len(plan.kept), plan.again) == (1, ())


def test_what_the_source_sent_is_not_taken_for_the_fork_s_doing():
    run = ended()
    factories.operation(run, earlier_sends=[{"attempt": 3}])
    made = services.fork(factories.support(), run.pk, visit=2, reason="x").run
    assert Operation.objects.filter(run=made, earlier_sends__isnull=True).count() == 1


def test_no_such_visit_and_no_reason():
    run = ended()
    with pytest.raises(Invalid, match="no visit 9"):
        services.fork(factories.support(), run.pk, visit=9, reason="x")
    with pytest.raises(Invalid, match="say why"):
        services.fork(factories.support(), run.pk, visit=2, reason=" ")
    with pytest.raises(Invalid, match="one of the operations"):
        services.fork(factories.support(), run.pk, visit=2, reason="x", again=[run.pk])


def test_the_visits_that_can_be_chosen_are_those_of_its_steps():
    run = ended()
    assert [(v.number, v.step) for v in visits(run)] == [(2, "ship"), (1, "pack")]
    assert [(v.number, v.step) for v in visits(run, before=2)] == [(1, "pack")]


@pytest.mark.parametrize("who", [factories.operator, factories.stranger])
def test_a_wrong_role_forks_nothing(who):
    run = ended()
    with pytest.raises(NotAllowed):
        services.fork(who(), run.pk, visit=2, reason="x")
    assert not Run.objects.filter(forked_from=run.pk).exists()


def test_a_stale_page_forks_nothing():
    run = ended()
    with pytest.raises(Stale):
        services.fork(factories.support(), run.pk, visit=2, reason="x", seen_version=run.event_seq - 1)


def test_nothing_is_wrong_with_a_fork():
    run = ended()
    factories.operation(run)
    services.fork(factories.support(), run.pk, visit=2, reason="x", input=NOT_GIVEN)
    doctor.load()
    checks = (doctor.effect_done_twice, doctor.broken_chain, doctor.chain_head, doctor.attempt_digest)
    with connection.cursor() as cursor:
        at = doctor.Snapshot(cursor, 0)
        assert doctor.run_checks(checks, at) == []
