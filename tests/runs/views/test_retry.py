"""Retry a failed run, from its page."""

from datetime import timedelta

import pytest

from runs import clock, services
from runs.models import Event, Run
from runs.models.operation import Kind, OpStatus
from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db


def url(run):
    return f"/runs/{run.pk}/retry/"


@pytest.fixture
def failed():
    return factories.run(Status.FAILED)


def test_the_page_says_what_is_kept_and_what_runs_again(support, failed):
    factories.operation(failed, name="book_courier")
    factories.operation(failed, Kind.QUERY, OpStatus.FAILED, name="find_address", error="503")
    html = support.get(url(failed)).content.decode()
    assert "Retry step pack" in html
    assert html.index("Done, kept") < html.index("book_courier") < html.index("Will run again")
    assert html.index("Will run again") < html.rindex("find_address") < html.index("Unknown")
    assert f'name="seen_version" value="{failed.seen_version}"' in html


def test_it_works_and_says_so_on_the_page_of_the_run(support, failed, form):
    response = support.post(url(failed), form(failed, reason="provider is back"), follow=True)
    failed.refresh_from_db()
    assert failed.status == Status.QUEUED
    assert response.redirect_chain == [(f"/runs/{failed.pk}/", 302)]
    assert "The run goes on at step pack." in response.content.decode()
    event = Event.objects.filter(run_id=failed.pk).latest("seq")
    assert (event.kind, event.reason) == ("retried", "provider is back")
    assert event.actor_id is not None


def test_a_reason_is_asked_for_and_what_was_typed_stays(support, failed, form):
    response = support.post(url(failed), form(failed, reason=""))
    assert response.status_code == 422
    assert "This field is required." in response.content.decode()
    failed.refresh_from_db()
    assert failed.status == Status.FAILED


def test_only_get_and_post(support, failed):
    assert support.put(url(failed)).status_code == 405
    assert support.delete(url(failed)).status_code == 405


def test_a_wrong_role_is_refused_by_direct_post_and_sees_no_button(operator, failed, form):
    assert operator.post(url(failed), form(failed)).status_code == 403
    assert operator.get(url(failed)).status_code == 403
    assert url(failed) not in operator.get(f"/runs/{failed.pk}/").content.decode()
    failed.refresh_from_db()
    assert failed.status == Status.FAILED


def test_a_stale_page_is_answered_with_the_fresh_view_and_keeps_what_was_typed(support, failed, form):
    sent = form(failed, reason="provider is back")
    services.retry(factories.support(), failed.pk, reason="first")
    Run.objects.filter(pk=failed.pk).update(
        status="running", worker_id=factories.worker().pk, sort_at=None, epoch=1, attempt_no=1
    )
    Run.objects.filter(pk=failed.pk).update(
        status="failed", worker_id=None, wake_at=None, failure_kind="crashed", finished_at=clock.now()
    )
    response = support.post(url(failed), sent)
    html = response.content.decode()
    assert response.status_code == 409
    assert "this run has changed since the page was loaded; it is now failed" in html
    failed.refresh_from_db()
    assert f'name="seen_version" value="{failed.seen_version}"' in html
    assert 'value="provider is back"' in html


def test_a_run_that_somebody_has_retried_already_is_shown_as_it_is_now(support, failed, form):
    sent = form(failed)
    services.retry(factories.support(), failed.pk, reason="first")
    response = support.post(url(failed), sent)
    html = response.content.decode()
    assert response.status_code == 409
    assert "it is now queued" in html and "Queued" in html
    assert "<form" not in html[html.index("<main") :]
    assert Event.objects.filter(run_id=failed.pk, kind="retried").count() == 1


def test_a_passed_deadline_asks_for_a_new_one(support, form):
    late = factories.run(Status.FAILED, deadline_at=clock.now() - timedelta(minutes=1))
    assert "New deadline" in support.get(url(late)).content.decode()
    assert support.post(url(late), form(late)).status_code == 422
    past = support.post(url(late), form(late, extend_deadline_to="2020-01-01T10:00"))
    assert past.status_code == 422
    assert "has passed" in past.content.decode()
    fresh = clock.now() + timedelta(days=1)
    support.post(url(late), form(late, extend_deadline_to=f"{fresh:%Y-%m-%dT%H:%M}"))
    late.refresh_from_db()
    assert late.status == Status.QUEUED


def test_no_run_is_not_found(support):
    assert support.get("/runs/00000000-0000-7000-8000-000000000000/retry/").status_code == 404
