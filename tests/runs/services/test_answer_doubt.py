"""Answering whether an effect happened."""

from datetime import timedelta
from decimal import Decimal

import pytest

from runs import clock, codec, services
from runs.errors import Invalid, NotAllowed, NotFound, Stale, StateMismatch
from runs.models import Event
from runs.models.operation import Kind, OpStatus
from runs.models.run import new_id
from runs.states import AttentionKind, Status
from tests import factories
from tests.races import at_one_instant

pytestmark = pytest.mark.django_db

RECEIPT = {"id": "r-1", "amount": "10.00"}


def proven(**fields):
    """In doubt, and "it did not" can be proved: the sender was reaped and the settle time is over."""
    pending = factories.doubt(intent_worker_id=factories.worker(reaped=True).pk, **fields)
    clock.shift(timedelta(minutes=5))
    return pending


def test_it_happened_records_the_result_and_the_run_goes_on():
    pending = factories.doubt()
    services.answer_doubt(
        factories.operator("olga"),
        pending.pk,
        seen_version=pending.run.event_seq,
        happened=True,
        result=RECEIPT,
        reason="seen in the bank's list",
    )
    pending.refresh_from_db()
    assert (pending.status, pending.settled_by) == (OpStatus.DONE, "olga")
    assert codec.decode(pending.result) == {"id": "r-1", "amount": Decimal("10.00")}
    assert (pending.run.status, pending.run.attention_kind) == (Status.QUEUED, "")
    event = Event.objects.get(run_id=pending.run_id, kind="doubt_answered")
    assert (event.actor, event.reason, event.data["happened"]) == ("olga", "seen in the bank's list", True)


def test_a_reference_is_enough_where_the_tool_makes_a_result_of_it():
    pending = factories.doubt()
    services.answer_doubt(factories.support(), pending.pk, happened=True, reference="ch_7")
    pending.refresh_from_db()
    assert pending.provider_ref == "ch_7"
    assert codec.decode(pending.result)["id"] == "ch_7"


def test_a_reference_is_not_enough_for_other_tools():
    pending = factories.doubt(name="print_label")
    with pytest.raises(Invalid, match="give its result"):
        services.answer_doubt(factories.support(), pending.pk, happened=True, reference="l-1")
    with pytest.raises(Invalid, match="needs the result"):
        services.answer_doubt(factories.support(), pending.pk, happened=True)


def test_a_result_that_the_tool_would_not_return_is_refused_with_its_path():
    pending = factories.doubt()
    with pytest.raises(Invalid, match="amount"):
        services.answer_doubt(factories.support(), pending.pk, happened=True, result={"id": "r-1"})
    pending.refresh_from_db()
    assert pending.status == OpStatus.PENDING


def test_an_effect_without_a_known_tool_takes_any_result_that_can_be_recorded():
    pending = factories.doubt(name="once: post")
    services.answer_doubt(factories.support(), pending.pk, happened=True, result=[1, 2])
    pending.refresh_from_db()
    assert pending.result == [1, 2]


def test_it_did_not_happen_lets_it_run_again_under_a_new_key():
    pending = proven()
    services.answer_doubt(factories.operator("olga"), pending.pk, happened=False, reason="not in the list")
    pending.refresh_from_db()
    assert (pending.status, pending.generation, pending.finished_at) == (OpStatus.RETRY, 1, None)
    assert pending.run.status == Status.QUEUED


def test_the_key_stays_while_an_earlier_send_could_land():
    pending = proven(earlier_send_open=True)
    services.answer_doubt(factories.operator(), pending.pk, happened=False)
    pending.refresh_from_db()
    assert (pending.status, pending.generation) == (OpStatus.RETRY, 0)


def test_it_did_not_needs_the_sender_to_have_ended():
    pending = factories.doubt()
    assert not services.proof_of(pending).accepted
    with pytest.raises(StateMismatch, match="may still act"):
        services.answer_doubt(factories.operator(), pending.pk, happened=False)


def test_it_did_not_needs_the_settle_time_and_says_until_when():
    ended = clock.now()
    pending = factories.doubt(call_ended_at=ended)
    proof = services.proof_of(pending)
    assert not proof.accepted and proof.accepted_from == ended + timedelta(seconds=60)
    with pytest.raises(StateMismatch, match="until"):
        services.answer_doubt(factories.operator(), pending.pk, happened=False)
    clock.shift(timedelta(seconds=61))
    services.answer_doubt(factories.operator(), pending.pk, happened=False)
    pending.refresh_from_db()
    assert pending.status == OpStatus.RETRY


def test_a_worker_declared_gone_is_proof_after_the_settle_time(settings):
    worker = factories.worker(beats=False)
    pending = factories.doubt(intent_worker_id=worker.pk)
    services.declare_gone(factories.operator(), worker.pk, reason="host burnt down")
    assert not services.proof_of(pending).accepted
    clock.shift(timedelta(minutes=2))
    assert services.proof_of(pending).accepted


def test_the_run_stays_in_attention_while_another_effect_is_in_doubt():
    first = factories.doubt()
    second = factories.operation(first.run, Kind.EFFECT, OpStatus.PENDING, name="print_label")
    services.answer_doubt(factories.operator(), first.pk, happened=True, result=RECEIPT)
    first.run.refresh_from_db()
    assert (first.run.status, first.run.attention_kind) == (Status.ATTENTION, AttentionKind.IN_DOUBT)
    assert "print_label" in first.run.reason
    services.answer_doubt(factories.operator(), second.pk, happened=True, result="l-1")
    first.run.refresh_from_db()
    assert first.run.status == Status.QUEUED


def test_a_cancelled_run_goes_on_to_its_cancel():
    pending = factories.doubt()
    services.cancel(factories.support(), pending.run_id)
    services.answer_doubt(factories.operator(), pending.pk, happened=True, result=RECEIPT)
    pending.run.refresh_from_db()
    assert pending.run.status == Status.QUEUED
    assert pending.run.cancel_requested_at is not None and pending.run.sort_at is not None


def test_what_a_worker_is_still_settling_is_not_asked():
    run = factories.run(Status.RUNNING)
    pending = factories.operation(run, Kind.EFFECT, OpStatus.PENDING)
    with pytest.raises(StateMismatch, match="running"):
        services.answer_doubt(factories.operator(), pending.pk, happened=True, result=RECEIPT)


def test_an_unknown_operation_is_said_to_be_unknown():
    with pytest.raises(NotFound):
        services.answer_doubt(factories.operator(), new_id(), happened=True, result=RECEIPT)


def test_a_wrong_role_answers_nothing():
    pending = factories.doubt()
    with pytest.raises(NotAllowed):
        services.answer_doubt(factories.stranger(), pending.pk, happened=True, result=RECEIPT)
    pending.refresh_from_db()
    assert pending.status == OpStatus.PENDING


def test_a_stale_page_answers_nothing():
    pending = factories.doubt()
    with pytest.raises(Stale):
        services.answer_doubt(factories.operator(), pending.pk, seen_version=0, happened=True, result=RECEIPT)


def test_an_answered_question_is_closed():
    pending = factories.doubt()
    second = factories.operation(pending.run, Kind.EFFECT, OpStatus.PENDING, name="print_label")
    services.answer_doubt(factories.operator("olga"), pending.pk, happened=True, result=RECEIPT)
    with pytest.raises(StateMismatch, match="recorded as done by olga"):
        services.answer_doubt(factories.operator(), pending.pk, happened=False)
    assert second.status == OpStatus.PENDING


@pytest.mark.django_db(transaction=True)
def test_of_two_opposite_answers_at_one_instant_one_counts():
    pending = proven()
    yes, no = factories.operator("yes"), factories.operator("no")
    first, second = at_one_instant(
        pending.run_id,
        lambda: services.answer_doubt(yes, pending.pk, happened=True, result=RECEIPT),
        lambda: services.answer_doubt(no, pending.pk, happened=False),
    )
    pending.refresh_from_db()
    assert first.error is None and isinstance(second.error, StateMismatch)
    assert pending.status == OpStatus.DONE
