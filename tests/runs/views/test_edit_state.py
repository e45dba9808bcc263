"""Edit the state of a run, from its page."""

import pytest

from runs.states import Status
from tests import factories
from tests.runs.views.people import client_with

pytestmark = pytest.mark.django_db


@pytest.fixture
def failed():
    return factories.run(Status.FAILED, state={"box": 1})


def url(run):
    return f"/runs/{run.pk}/state/"


def test_it_works_and_shows_the_difference_first(support, failed, form):
    assert "&quot;box&quot;: 1" in support.get(url(failed)).content.decode()
    looked = support.post(url(failed), form(failed, state='{"box": 2}', look="yes"))
    assert "What changes" in looked.content.decode()
    failed.refresh_from_db()
    assert failed.state == {"box": 1}
    support.post(url(failed), form(failed, state='{"box": 2}'))
    failed.refresh_from_db()
    assert (failed.state, failed.status) == ({"box": 2}, Status.FAILED)
    assert support.get(f"/runs/{failed.pk}/").status_code == 200


def test_what_no_step_could_have_left_is_refused_and_stays_typed(support, failed, form):
    response = support.post(url(failed), form(failed, state='{"a": {"$agentops": "blob", "v": 1}}'))
    assert response.status_code == 422 and "means nothing" in response.content.decode()


def test_what_is_too_long_is_refused_before_it_is_read_and_stays_typed(support, failed, form):
    typed = '{"box": "' + "x" * 1_000_000 + '"}'
    response = support.post(url(failed), form(failed, state=typed))
    html = response.content.decode()
    assert response.status_code == 422 and "This is too long: 1.0 MB. A form takes at most 900.0 KB" in html
    assert "x" * 1_000_000 in html
    failed.refresh_from_db()
    assert failed.state == {"box": 1}


def test_a_body_that_no_form_takes_is_refused_in_words(support, failed, form):
    response = support.post(url(failed), form(failed, state="x" * 3_000_000))
    html = response.content.decode()
    assert response.status_code == 413 and "A form takes at most 900.0 KB of text" in html


def test_a_state_that_is_too_large_to_be_edited_here_says_how_large(support):
    run = factories.run(Status.FAILED, state={"text": "x" * 300_000})
    html = support.get(url(run)).content.decode()
    assert "Its state cannot be edited here: it is 300.0 KB of JSON, and at most 200.0 KB are shown" in html
    assert 'name="state"' not in html


def test_a_running_run_has_no_form(support):
    html = support.get(url(factories.run(Status.RUNNING))).content.decode()
    assert "only a run that is waiting" in html and "in attention" in html and 'name="state"' not in html


def test_who_may_not_see_the_state_is_refused(failed):
    assert client_with("view_run", "edit_state").get(url(failed)).status_code == 403


def test_a_wrong_role_is_refused(operator, failed, form):
    assert operator.get(url(failed)).status_code == 403
    assert operator.post(url(failed), form(failed, state="{}")).status_code == 403
