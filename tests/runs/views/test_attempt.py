"""The page of one attempt."""

import re
import uuid
from datetime import timedelta

import pytest

from runs import clock
from runs.models import Attempt, LogLine, Message
from runs.models.operation import Kind
from runs.states import Outcome, Status
from tests import factories
from tests.runs.views.people import client_with
from tests.runs.views.test_operation import because, sent
from tests.runs.views.test_run import attempt

pytestmark = pytest.mark.django_db


def page(client, run, visit=1, number=1, query=""):
    response = client.get(f"/runs/{run.pk}/attempts/{visit}/{number}/{query}")
    assert response.status_code == 200
    return response.content.decode()


def test_it_begins_with_how_it_ended_and_what_it_changed_outside(support):
    run = factories.run(Status.FAILED)
    attempt(run, error_type="ConnectionError", error="the provider hung up\nat once", traceback="Traceback:")
    factories.operation(run, name="charge", attempt_no=1)
    factories.operation(run, Kind.QUERY, name="get_order", attempt_no=1)
    assert because(page(support, run)) == (
        "Failed after 2.0 s: ConnectionError: the provider hung up. It sent charge, which happened."
    )


def test_an_effect_that_a_later_attempt_sent_again_is_among_what_it_did(support):
    run = factories.run(Status.COMPLETED)
    attempt(run), attempt(run, 2, outcome=Outcome.SUCCEEDED)
    factories.operation(run, name="charge", attempt_no=2, earlier_sends=[sent("lost", attempt=1)])
    for number in (1, 2):
        assert "It sent charge, which happened." in page(support, run, 1, number)


def test_it_shows_error_traceback_input_state_messages_and_log(support):
    run = factories.run(Status.FAILED, step_seq=2)
    attempt(run, step_seq=1, outcome=Outcome.SUCCEEDED, state_after={"plan": "plan-b"})
    attempt(run, error_type="ValueError", error="20 prices", traceback="Traceback:\n  File x\nValueError: 20")
    of = {"run_id": run.pk, "step_seq": 2, "attempt_no": 1, "position": "1"}
    Message.objects.create(role="agent", content="I will look", digest="", **of)
    LogLine.objects.create(text="looking", data={"shelf": "shelf nine"}, **of)
    html = page(support, run, 2)
    places = [
        html.index(text)
        for text in ("20 prices", "Traceback:", "plan-b", "1042", "I will look", "shelf nine")
    ]
    assert len(set(places)) == 6
    hidden = page(client_with("view_run"), run, 2)
    for text in ("20 prices", "Traceback:", "plan-b", "I will look", "shelf nine"):
        assert text not in hidden, text
    assert "ValueError" in hidden


def test_its_neighbours_are_one_step_away_across_visits(support):
    run = factories.run(Status.RUNNING, step_seq=3, attempt_no=1)
    attempt(run, step_seq=1), attempt(run, 2, step_seq=1), attempt(run, step_seq=2)

    def neighbours(visit, number):
        html = page(support, run, visit, number)
        found = {
            rel: re.search(f'rel="{rel}" href="[^"]*/attempts/([^"]+)/"', html) for rel in ("prev", "next")
        }
        return [one and one[1] for one in found.values()]

    assert neighbours(1, 1) == [None, "1/2"]
    assert neighbours(1, 2) == ["1/1", "2/1"]
    assert neighbours(2, 1) == ["1/2", "3/1"], "the one that goes on has no row yet"
    assert neighbours(3, 1) == ["2/1", None]


def test_the_attempt_that_goes_on_has_its_address_already(support):
    run = factories.run(Status.RUNNING)
    html = page(support, run)
    assert because(html) == "It goes on at this moment. It has changed nothing outside so far."
    assert f'href="/runs/{run.pk}/attempts/1/1/"' in support.get(f"/runs/{run.pk}/").content.decode()
    assert support.get(f"/runs/{run.pk}/attempts/1/2/").status_code == 404


def test_many_log_lines_are_on_several_pages(support):
    run = factories.run(Status.FAILED)
    attempt(run)
    LogLine.objects.bulk_create(
        LogLine(run_id=run.pk, step_seq=1, attempt_no=1, position=f"{n:06}", text=f"line {n}.")
        for n in range(150)
    )
    html = page(support, run)
    more = re.search(r'href="(\?after=[^"#]+)#log"', html)
    assert more and "line 99." in html and "line 100." not in html
    html = page(support, run, query=more[1])
    assert "line 100." in html and "line 149." in html and "line 99." not in html


def test_it_takes_at_most_twelve_queries_in_the_midst_of_five_thousand(
    support, django_assert_max_num_queries
):
    run = factories.run(Status.WAITING)
    now = clock.now()
    Attempt.objects.bulk_create(
        Attempt(
            run_id=run.pk,
            step_seq=visit,
            attempt_no=1,
            epoch=visit,
            step="pack",
            outcome=Outcome.SUCCEEDED,
            started_at=now,
            ended_at=now + timedelta(seconds=1),
            worker_id=uuid.uuid4(),
            state_after={"visit": visit},
        )
        for visit in range(1, 5001)
    )
    with django_assert_max_num_queries(12):
        html = page(support, run, 2500)
    assert "/attempts/2499/1/" in html and "/attempts/2501/1/" in html
