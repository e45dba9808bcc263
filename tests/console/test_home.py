"""The front page."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.urls import reverse

from runs import clock, lifecycle
from runs.diagnosis import failures
from runs.models import Activity, FailureTally, Run
from runs.models.worker import BINS
from runs.states import Hold, Status
from tests import factories
from tests.runs.views.people import client, client_with

pytestmark = pytest.mark.django_db


def page(*groups: str) -> str:
    return client(*groups).get(reverse("home")).content.decode()


def test_a_quiet_installation_says_so():
    text = page("operators", "support")
    assert "Nothing needs you" in text and "No failure is unhandled." in text
    assert (
        text.count("Nothing waits for you") == 2 and "Nothing is stuck" in text and "Nothing is slow" in text
    )


def test_what_waits_fails_is_slow_and_is_stuck_stands_there_with_its_link():
    approval = factories.approval()
    doubt = factories.doubt()
    slow = factories.run(Status.RUNNING, subject="order 7")
    Run.objects.filter(pk=slow.pk).update(attempt_started_at=clock.now() - timedelta(minutes=5))
    factories.run(Status.QUEUED, held_by=Hold.NO_CAPABLE_WORKER)
    text = page("operators", "support", "admins")
    assert "What needs you now" in text
    assert reverse("approvals:approval", args=[approval.pk]) in text
    assert reverse("approvals:item", args=["doubt", doubt.run_id]) in text
    assert reverse("runs:run", args=[slow.pk]) in text and "order 7" in text
    assert "1 run waits" in text and "for a worker that can execute their step" in text


def test_requests_that_wait_for_me_stand_among_what_needs_a_person():
    factories.request()
    text = page("admins")
    assert "1 request waits for your decision." in text and "Nothing needs you" not in text
    assert f'<a href="{reverse("requests:list")}">1 request to decide</a>' in text
    assert "for your decision" not in page("support")


def test_a_queue_that_nobody_serves_is_said_to_be_stuck():
    run = factories.run(Status.QUEUED, queue="lonely")
    Run.objects.filter(pk=run.pk).update(
        wake_at=clock.now() - timedelta(minutes=2), sort_at=clock.now() - timedelta(minutes=2)
    )
    text = page("admins")
    assert "Runs are due that no worker takes." in text and "lonely" in text


def test_the_day_is_added_up_over_workers_and_queues():
    for queue, worker in (("default", factories.worker()), ("mail", factories.worker())):
        Activity.objects.create(
            at=clock.now() - timedelta(hours=2),
            worker_id=worker.pk,
            queue=queue,
            started=4,
            completed=3,
            steps=9,
            suspended=0,
            failed=1,
            waits=[0] * BINS,
            times=[0] * BINS,
        )
    text = page("support")
    assert "<strong>6</strong> runs completed" in text and "<strong>2</strong> attempts failed" in text


def test_nobody_sees_what_their_account_may_not_see():
    approval = factories.approval()
    text = client_with("view_run").get(reverse("home")).content.decode()
    assert approval.title not in text and "Nothing waits for you" in text


def test_an_account_without_any_permission_is_told_that_there_is_nothing():
    response = client().get(reverse("home"))
    assert response.status_code == 200 and b"Needs a person" not in response.content


def test_it_asks_the_database_a_bounded_number_of_things(django_assert_max_num_queries):
    for _ in range(3):
        factories.approval()
        factories.doubt()
    browser = client("operators", "support", "admins")
    browser.get(reverse("home"))
    with django_assert_max_num_queries(14):
        browser.get(reverse("home"))
    polled = browser.get(reverse("home"), headers={"HX-Request": "true"})
    again = browser.get(reverse("home"), headers={"HX-Request": "true", "HX-PTag": polled.headers["HX-PTag"]})
    assert again.status_code == 304


def test_it_takes_twelve_queries_at_most(django_assert_max_num_queries):
    factories.approval()
    factories.doubt()
    factories.run(Status.QUEUED, held_by=Hold.NO_CAPABLE_WORKER)
    run = factories.run(Status.FAILED)
    with transaction.atomic():
        failures.entered(run, lifecycle.CLOCK)
        run.save(update_fields=["fingerprint"])
    slow = factories.run(Status.RUNNING, subject="order 7")
    Run.objects.filter(pk=slow.pk).update(attempt_started_at=clock.now() - timedelta(minutes=5))
    for groups in (["operators", "support", "admins"], ["operators"], ["support"]):
        browser = client(*groups)
        with django_assert_max_num_queries(12):
            text = browser.get(reverse("home")).content.decode()
        assert "order 7" in text and "A failure waits to be handled." in text


def test_the_trend_of_a_group_is_the_one_of_its_own_page():
    run = factories.run(Status.FAILED)
    with transaction.atomic():
        failures.entered(run, lifecycle.CLOCK)
    assert run.fingerprint is not None
    now = clock.now()
    for hours, number in ((1, 2), (30, 5), (13 * 24, 1), (20 * 24, 9)):
        FailureTally.objects.create(
            fingerprint=run.fingerprint, hour=now - timedelta(hours=hours), shard=1, failures=number
        )
    [(group, trend)], _ = failures.latest(User(is_superuser=True), 5)
    assert trend == failures.trends([group.pk], now)[group.pk]
    assert sum(trend.days) == 9 and sum(trend.hours) == 3
