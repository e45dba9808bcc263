"""Receiving a signal."""

import uuid
from typing import Any

import pytest
from django.db import transaction

from runs import codec, lifecycle, services, waits
from runs.errors import Invalid, NotAllowed, NotFound, Stale
from runs.models import Event, Operation, Run, Signal
from runs.models.operation import OpStatus
from runs.states import Hold, Status
from tests import factories
from tests.races import Caller, at_one_instant, wait_until_blocked

pytestmark = pytest.mark.django_db

SENDER = lifecycle.Actor("shop")


def send(actor=SENDER, external_id="1", payload=None, **address) -> services.Received:
    given = {"amount": 3} if payload is None else payload
    return services.receive_signal(
        actor, name="paid", payload=given, external_id=external_id, source="shop", **address
    )


def is_due(run: Run) -> bool:
    run.refresh_from_db()
    return run.wake_at is not None and run.sort_at is not None


def test_a_signal_settles_the_open_wait_and_wakes_the_run():
    wait = factories.signal_wait()
    received = send(run_id=wait.run_id)
    wait.refresh_from_db()
    assert received.created and received.signal.consumed_by == wait.pk
    assert wait.status == OpStatus.DONE
    assert codec.decode(wait.result) == {"amount": 3}
    assert is_due(wait.run)
    event = Event.objects.get(run_id=wait.run_id, kind="signal")
    assert event.actor == "shop" and event.data["settled"] == str(wait.pk)
    assert "amount" not in str(event.data)


def test_the_preview_says_what_a_signal_would_do():
    wait = factories.signal_wait()
    assert "goes on" in services.preview_signal(wait.run, "paid").sentence
    assert "kept" in services.preview_signal(wait.run, "other").sentence
    assert "not used" in services.preview_signal(factories.run(Status.FAILED), "paid").sentence


def test_a_signal_before_its_wait_is_kept_and_found_when_the_wait_opens():
    run = factories.run()
    assert send(run_id=run.pk).signal.consumed_at is None
    wait = factories.signal_wait(run)
    with transaction.atomic():
        assert waits.kind("signal").look(lifecycle.lock_run(run.pk), wait)
    assert codec.decode(wait.result) == {"amount": 3}
    assert Signal.objects.get().consumed_by == wait.pk


def test_the_second_of_two_signals_waits_for_the_second_wait():
    wait = factories.signal_wait()
    send(run_id=wait.run_id, external_id="1", payload={"n": 1})
    send(run_id=wait.run_id, external_id="2", payload={"n": 2})
    second = factories.signal_wait(wait.run)
    with transaction.atomic():
        assert waits.kind("signal").look(lifecycle.lock_run(wait.run_id), second)
    assert codec.decode(second.result) == {"n": 2}


def test_a_duplicate_is_answered_like_the_first_and_changes_nothing():
    wait = factories.signal_wait()
    first = send(run_id=wait.run_id)
    wait.run.refresh_from_db()
    again = send(run_id=wait.run_id)
    assert (again.signal, again.created, again.sentence) == (first.signal, False, first.sentence)
    seen = wait.run.event_seq
    wait.run.refresh_from_db()
    assert wait.run.event_seq == seen


def test_another_payload_under_the_same_id_does_not_replace_the_first_and_is_on_record():
    wait = factories.signal_wait()
    send(run_id=wait.run_id)
    again = send(run_id=wait.run_id, payload={"amount": 4})
    assert again.signal.payload == {"amount": 3}
    conflict = Event.objects.get(run_id=wait.run_id, kind="signal_conflict")
    assert conflict.data["first"] != conflict.data["again"]


@pytest.mark.parametrize("status", [Status.FAILED, Status.CANCELLED, Status.COMPLETED])
def test_a_signal_for_a_finished_run_is_stored_and_ignored(status):
    run = factories.run(status)
    received = send(run_id=run.pk)
    assert received.created and received.signal.ignored == "run is finished"
    assert "not used" in received.sentence
    run.refresh_from_db()
    assert run.status == status


def test_a_signal_for_an_unknown_run_is_an_error_and_is_not_stored():
    with pytest.raises(NotFound):
        send(run_id=uuid.uuid4())
    assert not Signal.objects.exists()


def test_a_signal_without_address_is_refused():
    with pytest.raises(Invalid, match="correlation"):
        send()


def test_a_signal_settles_the_wait_of_a_running_run_and_leaves_its_wake_time_alone():
    run = factories.run(Status.RUNNING)
    wait = factories.signal_wait(run)
    send(run_id=run.pk)
    wait.refresh_from_db()
    before = run.wake_at
    run.refresh_from_db()
    assert wait.status == OpStatus.DONE
    assert (run.status, run.wake_at, run.sort_at) == (Status.RUNNING, before, None)


def test_a_parked_run_is_offered_again_when_its_signal_comes():
    run = factories.run(Status.WAITING, held_by=Hold.PAUSED)
    factories.signal_wait(run)
    send(run_id=run.pk)
    assert is_due(run)


def test_a_correlation_key_finds_the_run_that_waits_for_it():
    wait = factories.signal_wait(correlation="tx-1")
    other = factories.signal_wait(correlation="tx-2")
    received = send(correlation="tx-1")
    assert received.signal.run_id == wait.run_id
    assert is_due(wait.run)
    other.refresh_from_db()
    assert other.status == OpStatus.OPEN


def test_a_signal_with_a_key_nobody_waits_for_is_kept_unrouted_until_somebody_does():
    received = send(correlation="tx-1")
    assert received.signal.run_id is None
    wait = factories.signal_wait(correlation="tx-1")
    with transaction.atomic():
        assert waits.kind("signal").look(lifecycle.lock_run(wait.run_id), wait)
    received.signal.refresh_from_db()
    assert received.signal.run_id == wait.run_id


def test_a_person_may_send_a_signal_from_a_fresh_page_only():
    wait = factories.signal_wait()
    with pytest.raises(Stale):
        send(factories.support(), run_id=wait.run_id, seen_version=wait.run.event_seq + 1)
    assert send(factories.support(), run_id=wait.run_id, seen_version=wait.run.event_seq).created


def test_a_wrong_role_sends_nothing():
    wait = factories.signal_wait()
    with pytest.raises(NotAllowed):
        send(factories.operator(), run_id=wait.run_id)
    assert not Signal.objects.exists()


def test_what_postgresql_cannot_store_arrives_with_a_visible_mark():
    wait = factories.signal_wait()
    received = send(run_id=wait.run_id, payload={"text": "a\x00b", "$agentops": "decimal", "v": "1"})
    assert "⟦U+0000⟧" in str(received.signal.payload)
    wait.refresh_from_db()
    assert codec.decode(wait.result)["$agentops"] == "decimal"  # data stays data


# --- races -------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_the_same_signal_ten_times_at_one_instant_is_accepted_once():
    wait = factories.signal_wait()
    callers = at_one_instant(wait.run_id, *[lambda: send(run_id=wait.run_id)] * 10)
    assert [caller.error for caller in callers if caller.error] == []
    assert sum(caller.result.created for caller in callers) == 1
    assert Signal.objects.count() == 1
    assert Event.objects.filter(kind="signal").count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_signal_that_arrives_while_its_wait_opens_is_found_by_one_of_them():
    run = factories.run(Status.RUNNING)
    with transaction.atomic():
        # The suspend: it holds the run's lock, opens the wait, and finds nothing yet.
        held = lifecycle.lock_run(run.pk)
        wait = factories.signal_wait(held, correlation="tx-1")
        assert not waits.kind("signal").look(held, wait)
        sender = Caller(lambda: send(correlation="tx-1"))
        wait_until_blocked(1)
    sender.join()
    assert sender.error is None
    wait.refresh_from_db()
    assert wait.status == OpStatus.DONE
    assert Signal.objects.get().consumed_by == wait.pk


@pytest.mark.django_db(transaction=True)
def test_a_wait_that_opens_while_its_signal_arrives_finds_it():
    run = factories.run(Status.RUNNING)

    def suspend() -> bool:
        with transaction.atomic():
            held = lifecycle.lock_run(run.pk)
            return waits.kind("signal").look(held, factories.signal_wait(held, correlation="tx-1"))

    with transaction.atomic():
        send(correlation="tx-1")
        suspending = Caller(suspend)
        wait_until_blocked(1)
    assert suspending.join().result is True
    assert Operation.objects.get(kind="signal").status == OpStatus.DONE


@pytest.mark.django_db(transaction=True)
def test_a_signal_that_finds_its_wait_gone_looks_for_the_next_one():
    first, second = factories.signal_wait(correlation="tx-1"), factories.signal_wait(correlation="tx-1")
    with transaction.atomic():
        lifecycle.close_waits(lifecycle.lock_run(first.run_id))
        sender = Caller(lambda: send(correlation="tx-1"))
        wait_until_blocked(1)
    assert sender.join().result.signal.consumed_by == second.pk


@pytest.mark.parametrize("payload", [None, [], [None], 0, "", False])
def test_any_json_is_a_payload_null_included(payload):
    run = factories.run(Status.WAITING)
    given: dict[str, Any] = {"name": "paid", "external_id": "1", "source": "test", "run_id": run.pk}
    services.receive_signal(factories.SYSTEM, payload=payload, **given)
    again = services.receive_signal(factories.SYSTEM, payload=payload, **given)
    assert (again.created, again.signal.payload) == (False, payload)
