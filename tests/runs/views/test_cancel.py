"""Cancel a run, from its page."""

import pytest

from runs import services
from runs.models import Event
from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db


def url(run):
    return f"/runs/{run.pk}/cancel/"


@pytest.fixture
def waiting():
    return factories.signal_wait().run


def test_the_page_says_what_stays_and_what_is_undone(support, waiting):
    factories.operation(waiting, name="print_label")
    factories.operation(waiting, name="book_courier", compensate_with="cancel_courier")
    html = support.get(url(waiting)).content.decode()
    assert "undone in reverse order" in html
    assert html.index("Done, kept") < html.index("print_label") < html.index("Will be undone")
    assert html.index("Will be undone") < html.index("book_courier") < html.index("Unknown")


def test_it_works(support, waiting, form):
    response = support.post(url(waiting), form(waiting), follow=True)
    waiting.refresh_from_db()
    assert waiting.status == Status.CANCELLED
    assert "The run is cancelled at once." in response.content.decode()


def test_only_get_and_post(support, waiting):
    assert support.put(url(waiting)).status_code == 405


def test_a_wrong_role_is_refused_by_direct_post_and_sees_no_button(operator, waiting, form):
    assert operator.post(url(waiting), form(waiting)).status_code == 403
    assert url(waiting) not in operator.get(f"/runs/{waiting.pk}/").content.decode()
    waiting.refresh_from_db()
    assert waiting.status == Status.WAITING


def test_a_stale_page_is_answered_with_the_fresh_view(support, waiting, form):
    sent = form(waiting)
    services.force_resume(factories.support(), waiting.pk, reason="look again")
    response = support.post(url(waiting), sent)
    assert response.status_code == 409
    html = response.content.decode()
    assert "Nothing was done" in html and "Cancel the run" in html
    waiting.refresh_from_db()
    assert waiting.cancel_requested_at is None
    assert f'name="seen_version" value="{waiting.seen_version}"' in html


def test_a_cancel_that_somebody_asked_for_already_changes_nothing(support, form):
    running = factories.run(Status.RUNNING)
    sent = form(running)
    services.cancel(factories.support("sam"), running.pk, reason="first")
    response = support.post(url(running), sent, follow=True)
    assert "sam had already asked for the cancel" in response.content.decode()
    assert Event.objects.filter(run_id=running.pk, kind="cancel_requested").count() == 1
    assert "sam has already asked for the cancel" in support.get(url(running)).content.decode().lower()


def test_a_finished_run_offers_no_form_and_refuses(support, form):
    done = factories.run(Status.COMPLETED)
    html = support.get(url(done)).content.decode()
    assert "there is nothing left to cancel" in html
    assert "Cancel the run" not in html
    assert support.post(url(done), form(done)).status_code == 409
