"""Change the priority of one run, from its page."""

import re
from datetime import timedelta

import pytest
from django.db.models import F

from runs.models import Event, Run
from runs.states import Hold, Status
from tests import factories
from tests.runs.views.people import client_with

pytestmark = pytest.mark.django_db


def url(run: Run, query: str = "") -> str:
    return f"/runs/{run.pk}/priority/{query}"


def text(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_the_page_says_what_it_would_do_and_does_it(support, form):
    for _ in range(3):
        factories.run()
    Run.objects.update(sort_at=F("sort_at") - timedelta(minutes=4))
    run = factories.run()
    html = support.get(url(run, "?priority=7")).content.decode()
    assert "Workers take the run sooner" in html and "Give it priority 7" in html
    assert "Priority 0 now, 7 then" in text(html)
    assert "Due before it in queue default 3 now, 0 then" in text(html)
    response = support.post(url(run), form(run, priority="7", reason="a VIP waits"), follow=True)
    assert "Its priority is 7 now." in response.content.decode()
    run.refresh_from_db()
    event = Event.objects.get(run_id=run.pk, kind="prioritised")
    assert (run.priority, event.reason, event.data) == (7, "a VIP waits", {"before": 0, "priority": 7})


def test_each_priority_has_an_address_and_the_page_begins_with_the_next_higher(support):
    run = factories.run(priority=3)
    html = support.get(url(run)).content.decode()
    assert "Give it priority 4" in html
    assert all(f'href="?priority={one}#preview"' in html for one in range(10))
    assert "Give it priority 8" in support.get(url(factories.run(priority=9))).content.decode()
    assert "Give it priority 4" in support.get(url(run, "?priority=eleven")).content.decode()
    same = support.get(url(run, "?priority=3")).content.decode()
    assert "Its priority is 3 already" in same and "seen_version" not in same


def test_of_a_run_that_is_not_due_it_says_when_it_acts(support):
    for run in (factories.run(Status.WAITING), factories.run(held_by=Hold.PAUSED)):
        assert "once the run is due" in support.get(url(run)).content.decode()


def test_it_is_on_the_page_of_the_run_and_of_those_alone_that_workers_may_still_take(support):
    assert url(run := factories.run()) in support.get(f"/runs/{run.pk}/").content.decode()
    for status in (Status.RUNNING, Status.COMPLETED):
        run = factories.run(status)
        assert url(run) not in support.get(f"/runs/{run.pk}/").content.decode()
        assert "seen_version" not in support.get(url(run)).content.decode()


def test_a_stale_page_changes_nothing_and_keeps_what_was_typed(support, form):
    run = factories.run()
    sent = form(run, priority="7", reason="a VIP waits")
    support.post(url(run), form(run, priority="2"))
    response = support.post(url(run), sent)
    html = response.content.decode()
    assert response.status_code == 409
    assert "a VIP waits" in html and "Give it priority 7" in html and "Priority 2 now, 7 then" in text(html)
    run.refresh_from_db()
    assert run.priority == 2


@pytest.mark.parametrize("typed", [{"priority": "10"}, {"priority": ""}, {"reason": ""}])
def test_what_is_no_priority_and_a_missing_reason_are_refused(typed, support, form):
    run = factories.run()
    assert support.post(url(run), form(run, **({"priority": "7"} | typed))).status_code == 422
    run.refresh_from_db()
    assert run.priority == 0


def test_a_wrong_role_is_refused(form):
    run, browser = factories.run(), client_with("view_run", "retry_run")
    assert browser.get(url(run)).status_code == 403
    assert browser.post(url(run), form(run, priority="7")).status_code == 403
    assert url(run) not in browser.get(f"/runs/{run.pk}/").content.decode()
