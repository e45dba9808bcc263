import pytest
from django.db import connection
from django.db.models import Count

from runs.models.audit import Event
from runs.models.operation import Operation
from runs.models.run import Attempt, Run
from runs.states import Status
from tests.harness.data import MIX, fill


@pytest.mark.django_db
def test_a_generated_data_set_has_every_status_and_the_rows_it_says() -> None:
    filled = fill(2_000)
    assert filled.runs == Run.objects.count() == 2_000
    assert filled.attempts == Attempt.objects.count()
    assert filled.operations == Operation.objects.count()
    assert filled.events == Event.objects.count()
    counts = dict(Run.objects.values_list("status").annotate(Count("id")))
    assert set(counts) == {str(status.value) for status in MIX}
    assert 1_500 < counts[Status.COMPLETED] < 1_700


@pytest.mark.django_db
def test_generated_event_chains_verify() -> None:
    fill(50)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT count(*) FROM runs_event e LEFT JOIN runs_event p ON p.run_id = e.run_id AND p.seq = e.seq - 1
            WHERE e.head <> agentops_event_head(coalesce(p.head, ''),
                agentops_event_text(e.seq, e.at, e.kind, e.actor_id, e.actor, e.reason, e.data))
            """
        )
        assert cursor.fetchone() == (0,)
        cursor.execute(
            "SELECT count(*) FROM runs_run r JOIN runs_event e ON e.run_id = r.id AND e.seq = r.event_seq "
            "WHERE e.head = r.event_head"
        )
        assert cursor.fetchone() == (50,)


@pytest.mark.django_db
def test_data_sets_can_be_added_to_each_other() -> None:
    fill(10, workflow="first", steps=1)
    fill(20, workflow="second", steps=12, mix={Status.WAITING: 1})
    assert Run.objects.filter(workflow="second", status=Status.WAITING, step_seq=12).count() == 20


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_a_million_runs_can_be_made() -> None:
    assert fill(1_000_000, steps=1).runs == 1_000_000
