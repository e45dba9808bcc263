"""Skip a step, from its page."""

import pytest

from runs.models import Run
from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def failed():
    return factories.run(Status.FAILED, state={"box": 1})


def url(run, query=""):
    return f"/runs/{run.pk}/skip/{query}"


def test_the_page_offers_the_steps_and_the_state_to_edit(support, failed):
    html = support.get(url(failed)).content.decode()
    assert "Skip pack, go on at ship" in html
    assert "?to=pack" in html and "&quot;box&quot;: 1" in html


def test_it_works(support, failed, form):
    response = support.post(url(failed), form(failed, to="ship", state='{"box": 9}'), follow=True)
    failed.refresh_from_db()
    assert (failed.status, failed.step, failed.state) == (Status.QUEUED, "ship", {"box": 9})
    assert "Step pack is skipped" in response.content.decode()


def test_what_changes_is_shown_before_anything_is_done(support, failed, form):
    looked = support.post(url(failed), form(failed, to="ship", state='{"box": 9}', look="yes"))
    assert "What changes" in looked.content.decode()
    failed.refresh_from_db()
    assert failed.step == "pack"


def test_a_state_that_cannot_be_edited_here_is_said_to_stay(support):
    run = factories.run(Status.FAILED, state={"text": "x" * 300_000})
    html = support.get(url(run)).content.decode()
    assert "The run goes on with it as it is." in html and 'name="state"' not in html


def test_json_with_a_mistake_is_told(support, failed, form):
    response = support.post(url(failed), form(failed, to="ship", state="{nope"))
    assert response.status_code == 422 and "not valid JSON" in response.content.decode()


def test_a_stale_page_is_answered_with_the_fresh_view(support, failed, form):
    sent = form(failed, to="ship", state='{"box": 9}', reason="typed")
    Run.objects.filter(pk=failed.pk).update(event_seq=failed.event_seq + 1)
    response = support.post(url(failed), sent)
    assert response.status_code == 409
    assert 'value="typed"' in response.content.decode() and "&quot;box&quot;: 9" in response.content.decode()


def test_a_step_that_there_is_not(support, failed, form):
    assert "no step &#x27;fly&#x27;" in support.get(url(failed, "?to=fly")).content.decode()


def test_a_wrong_role_is_refused(operator, failed, form):
    assert operator.get(url(failed)).status_code == 403
    assert operator.post(url(failed), form(failed, to="ship")).status_code == 403
