"""Force a run on, from its page."""

import pytest

from runs import services
from runs.models import Event
from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db


def url(run):
    return f"/runs/{run.pk}/force-resume/"


@pytest.fixture
def waiting():
    return factories.signal_wait().run


def test_the_page_says_that_open_waits_stay_open(support, waiting):
    assert "What it waits for stays open (paid)" in support.get(url(waiting)).content.decode()


def test_it_works(support, waiting, form):
    response = support.post(url(waiting), form(waiting), follow=True)
    waiting.refresh_from_db()
    assert waiting.wake_at is not None
    assert Event.objects.filter(run_id=waiting.pk).latest("seq").kind == "force_resumed"
    assert "A worker looks at the run now" in response.content.decode()


def test_only_get_and_post(support, waiting):
    assert support.put(url(waiting)).status_code == 405


def test_a_wrong_role_is_refused_by_direct_post_and_sees_no_button(operator, waiting, form):
    assert operator.post(url(waiting), form(waiting)).status_code == 403
    assert url(waiting) not in operator.get(f"/runs/{waiting.pk}/").content.decode()
    assert not Event.objects.filter(run_id=waiting.pk, kind="force_resumed").exists()


def test_a_stale_page_is_answered_with_the_fresh_view(support, waiting, form):
    sent = form(waiting)
    services.receive_signal(
        factories.SYSTEM, name="other", payload={}, external_id="1", source="shop", run_id=waiting.pk
    )
    response = support.post(url(waiting), sent)
    assert response.status_code == 409
    assert "Force the run to resume" in response.content.decode()


def test_a_run_that_has_ended_meanwhile_is_shown_as_it_is_now(support, waiting, form):
    sent = form(waiting)
    services.cancel(factories.support(), waiting.pk, reason="no longer wanted")
    response = support.post(url(waiting), sent)
    assert response.status_code == 409
    assert "Force the run to resume" not in response.content.decode()


def test_a_run_whose_worker_is_alive_says_why_it_cannot_be_forced(support, form):
    running = factories.run(Status.RUNNING)
    assert "its worker is alive" in support.get(url(running)).content.decode().lower()
    assert support.post(url(running), form(running)).status_code == 409


def test_an_effect_in_doubt_has_to_be_answered_first(support):
    run = factories.doubt().run
    assert "answer that first" in support.get(url(run)).content.decode()
    assert url(run) not in support.get(f"/runs/{run.pk}/").content.decode()
