"""Starting a run, and many."""

from datetime import timedelta
from decimal import Decimal

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction

from runs import clock, codec, lifecycle, services
from runs.errors import Conflict, Invalid, NotAllowed
from runs.models import Event, Run
from runs.states import Status
from tests import factories
from tests.races import Caller, wait_until_blocked

pytestmark = pytest.mark.django_db

GIVEN = {"order": "1042", "amount": "12.50"}


def test_a_started_run_is_due_at_once_and_says_who_started_it():
    person = factories.support("sam")
    started = services.start(person, "parcel", GIVEN, reason="asked by phone")
    run = Run.objects.get(pk=started.run.pk)
    assert started.created
    assert (run.status, run.step, run.step_seq, run.queue) == (Status.QUEUED, "pack", 1, "default")
    assert run.wake_at is not None and run.wake_at <= clock.now()
    assert (run.started_by, run.started_by_name, run.subject) == (person.user, "sam", "order 1042")
    assert codec.decode(run.input) == {"order": "1042", "amount": Decimal("12.50")}
    event = Event.objects.get(run_id=run.pk)
    assert (event.kind, event.actor, event.reason) == ("started", "sam", "asked by phone")


def test_a_system_may_start_runs():
    assert services.start(factories.SYSTEM, "parcel", GIVEN).created


def test_a_wrong_role_starts_nothing():
    with pytest.raises(NotAllowed):
        services.start(factories.stranger(), "parcel", GIVEN)
    assert not Run.objects.exists()


def test_a_switched_off_account_starts_nothing():
    with pytest.raises(NotAllowed):
        services.start(factories.actor("gone", "admins", is_active=False), "parcel", GIVEN)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({}, "order"),
        ({"order": "1", "amount": "much"}, "amount"),
        ({"order": "nul \x00"}, r"\$\.order holds NUL"),
        ([], "does not fit"),
    ],
)
def test_an_input_that_does_not_fit_is_refused_with_its_path(given, path):
    with pytest.raises(Invalid, match=path):
        services.start(factories.SYSTEM, "parcel", given)
    assert not Run.objects.exists()


def test_an_unknown_workflow_is_refused_with_the_known_ones():
    with pytest.raises(Invalid, match="parcel"):
        services.start(factories.SYSTEM, "parcels", GIVEN)


def test_an_input_above_the_limit_is_refused(settings):
    settings.AGENTOPS_PAYLOAD_LIMIT = 100
    with pytest.raises(Invalid, match=r"\$.order is 202 bytes of 100 bytes of JSON"):
        services.start(factories.SYSTEM, "parcel", {"order": "x" * 200})


def test_priority_is_a_head_start_and_does_not_wake_early():
    run = services.start(factories.SYSTEM, "parcel", GIVEN, priority=3).run
    assert run.wake_at is not None and run.sort_at is not None
    assert run.wake_at - run.sort_at == timedelta(minutes=3)
    with pytest.raises(Invalid):
        services.start(factories.SYSTEM, "parcel", GIVEN, priority=10)


def test_a_deadline_in_the_past_is_refused():
    with pytest.raises(Invalid, match="deadline"):
        services.start(factories.SYSTEM, "parcel", GIVEN, deadline_at=clock.now() - timedelta(seconds=1))


def test_the_same_start_key_and_input_give_the_same_run():
    first = services.start(factories.SYSTEM, "parcel", GIVEN, start_key="k")
    again = services.start(factories.support(), "parcel", {"amount": "12.50", "order": "1042"}, start_key="k")
    assert (first.created, again.created) == (True, False)
    assert again.run == first.run == Run.objects.get()


def test_the_start_key_finds_its_run_however_far_it_has_come():
    first = services.start(factories.SYSTEM, "parcel", GIVEN, start_key="k").run
    services.cancel(factories.support(), first.pk)
    again = services.start(factories.SYSTEM, "parcel", GIVEN, start_key="k")
    assert (again.run.pk, again.created) == (first.pk, False)
    assert Event.objects.filter(run_id=first.pk, kind="started").count() == 1


def test_a_run_with_the_same_start_key_is_not_named_to_whoever_may_not_see_it():
    first = services.start(factories.SYSTEM, "parcel", GIVEN, start_key="k").run
    person = factories.actor("nils")
    assert isinstance(person.user, User)
    person.user.user_permissions.set(Permission.objects.filter(codename="start_run"))
    with pytest.raises(Conflict, match=r"was used for another input$") as refusal:
        services.start(person, "parcel", GIVEN | {"order": "7"}, start_key="k")
    assert refusal.value.existing is None and str(first.pk) not in str(refusal.value)
    (batch,) = services.start_many(
        person, "parcel", ['{"order": "7", "amount": "1"}'], start_key=lambda number: "k"
    )
    assert str(first.pk) not in batch.refused[0].reason


def test_the_same_start_key_with_another_input_is_a_conflict_that_names_the_run():
    first = services.start(factories.SYSTEM, "parcel", GIVEN, start_key="k").run
    with pytest.raises(Conflict, match=str(first.pk)) as refusal:
        services.start(factories.SYSTEM, "parcel", {"order": "7"}, start_key="k")
    assert refusal.value.existing == first


@pytest.mark.django_db(transaction=True)
def test_ten_starts_with_one_key_at_one_instant_make_one_run():
    def start() -> services.Started:
        return services.start(factories.SYSTEM, "parcel", GIVEN, start_key="k")

    with transaction.atomic():
        # An eleventh has inserted and not yet committed: all ten wait for it at the unique index, then it gives up.
        services.start(factories.SYSTEM, "parcel", GIVEN, start_key="k")
        callers = [Caller(start) for _ in range(10)]
        wait_until_blocked(10)
        transaction.set_rollback(True)
    results = [caller.join() for caller in callers]
    assert [caller.error for caller in results if caller.error] == []
    assert Run.objects.count() == 1
    assert sum(caller.result.created for caller in results) == 1
    assert {caller.result.run.pk for caller in results} == {Run.objects.get().pk}


# --- many --------------------------------------------------------------------------------------------------------------


def test_the_history_of_each_run_begins_a_chain_as_if_it_had_been_started_alone():
    lines = ['{"order": "1", "amount": "3.10"}', '{"order": "2"}']
    list(services.start_many(factories.SYSTEM, "parcel", lines, reason="asked by “ä”"))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT r.event_seq, e.seq, e.head = r.event_head, e.head = agentops_event_head('', agentops_event_text("
            " e.seq, e.at, e.kind, e.actor_id, e.actor, e.reason, e.data)) FROM runs_run r JOIN runs_event e ON e.run_id = r.id"
        )
        assert cursor.fetchall() == [(1, 1, True, True)] * 2
    run = Run.objects.order_by("pk")[0]
    with transaction.atomic():
        lifecycle.append_event(run, "signal", factories.SYSTEM)
    assert run.event_seq == 2


def test_each_line_starts_a_run_and_refused_lines_stop_nothing():
    lines = ['{"order": "1"}', "", "{", '{"amount": 3}', '{"order": "2", "amount": NaN}', '{"order": "3"}']
    batches = list(services.start_many(factories.SYSTEM, "parcel", lines, batch_size=2))
    assert sum(len(batch.started) for batch in batches) == 2
    refused = {refusal.line: refusal.reason for batch in batches for refusal in batch.refused}
    assert refused.keys() == {3, 4, 5}
    assert "not valid JSON" in refused[3] and "order" in refused[4] and "NaN" in refused[5]
    assert sorted(Run.objects.values_list("subject", flat=True)) == ["order 1", "order 3"]
    assert Event.objects.filter(kind="started").count() == 2


def test_starting_a_file_again_with_keys_starts_nothing_twice():
    lines = ['{"order": "1"}', '{"order": "2"}']

    def again(lines: list[str]) -> services.Batch:
        (batch,) = services.start_many(
            factories.SYSTEM, "parcel", lines, start_key=lambda number: f"file/{number}"
        )
        return batch

    assert len(again(lines).started) == 2
    second = again([lines[0], '{"order": "changed"}', '{"order": "3"}'])
    assert (len(second.started), len(second.existing)) == (1, 1)
    assert [refusal.line for refusal in second.refused] == [2]
    assert Run.objects.count() == 3


def test_a_wrong_role_or_workflow_is_told_before_the_first_line_is_read():
    def lines():
        raise AssertionError("a line was read")
        yield ""

    with pytest.raises(NotAllowed):
        services.start_many(factories.stranger(), "parcel", lines())
    with pytest.raises(Invalid):
        services.start_many(factories.SYSTEM, "parcels", lines())
