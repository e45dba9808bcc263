"""What pages read of queues and of what workers do."""

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from runs import clock
from runs.models import Activity, Run
from runs.models.worker import BINS
from runs.pages import activity
from runs.states import Status
from tests import factories
from tests.runs.views.people import client

pytestmark = pytest.mark.django_db


def done(queue: str, ago: timedelta, steps: int, times: dict[int, int] | None = None) -> None:
    Activity.objects.create(
        at=clock.now() - ago,
        worker_id=factories.worker().pk,
        queue=queue,
        started=0,
        completed=0,
        steps=steps,
        suspended=0,
        failed=0,
        waits=[0] * BINS,
        times=[(times or {}).get(place, 0) for place in range(BINS)],
    )


def due(queue: str, seconds: int) -> Run:
    run = factories.run(Status.QUEUED, queue=queue)
    at = clock.now() - timedelta(seconds=seconds)
    Run.objects.filter(pk=run.pk).update(wake_at=at, sort_at=at)
    return run


def test_each_queue_says_what_is_due_since_when_and_who_looks():
    for seconds in (10, 90):
        due("mail", seconds)
    factories.worker(queues=["default"])
    queues = {one.name: one for one in activity.queues()}
    assert queues["mail"].due == 2 and 89 < (queues["mail"].oldest_s or 0) < 120
    assert queues["mail"].unserved and queues["mail"].workers == 0
    assert queues["default"].workers == 1 and not queues["default"].unserved


def test_what_is_not_due_yet_is_not_counted():
    due("mail", -600)
    (queue,) = [one for one in activity.queues() if one.name == "mail"]
    assert (queue.due, queue.oldest_s) == (0, None)


def test_bars_are_half_hours_and_what_is_older_than_a_day_is_left_out():
    done("mail", timedelta(minutes=10), 5)
    done("mail", timedelta(hours=23, minutes=50), 7)
    done("mail", timedelta(hours=25), 100)
    (queue,) = [one for one in activity.queues() if one.name == "mail"]
    assert queue.steps[-1] == 5 and queue.steps[0] == 7 and sum(queue.steps) == 12
    assert queue.hour == 5


def test_latencies_are_of_the_last_hour_and_said_as_bounds():
    done("mail", timedelta(minutes=5), 0, {4: 90, 11: 10})
    done("mail", timedelta(hours=2), 0, {18: 1000})
    (queue,) = [one for one in activity.queues() if one.name == "mail"]
    assert (queue.typical_step, queue.slow_step) == ("under 16 ms", "under 2 s")
    assert queue.typical_wait == ""


@pytest.mark.parametrize(
    ("place", "says"),
    [(0, "under 1 ms"), (9, "under 512 ms"), (10, "under 1 s"), (17, "under 131 s"), (18, "over 2 min")],
)
def test_a_bin_in_words(place: int, says: str):
    assert activity.at_most([int(n == place) for n in range(BINS)], 0.5) == says


def test_what_no_chart_shows_any_more_is_deleted():
    done("mail", timedelta(days=15), 1)
    done("mail", timedelta(days=13), 1)
    assert activity.forget_old() == 1


def ask(browser: Client, worker: object, what: str, **fields: str):
    return browser.post(reverse("runs:ask_worker", args=[worker, what]), fields)


def test_the_page_shows_queues_and_offers_to_drain():
    due("mail", 90)
    worker = factories.worker(queues=["default"])
    text = client("admins").get(reverse("runs:workers")).content.decode()
    assert "No worker takes runs of" in text and "No live process takes runs" not in text
    assert reverse("runs:ask_worker", args=[worker.pk, "drain"]) in text
    assert "Drain…" not in client("support").get(reverse("runs:workers")).content.decode()


def test_draining_in_the_browser():
    worker, browser = factories.worker(), client("admins")
    form = browser.get(reverse("runs:ask_worker", args=[worker.pk, "drain"])).content.decode()
    assert "It takes no new runs and goes on beating." in form
    assert ask(browser, worker.pk, "drain").status_code == 422
    response = ask(browser, worker.pk, "drain", reason="new release")
    assert response.status_code == 302
    text = browser.get(reverse("runs:workers")).content.decode()
    assert "Draining" in text and "Resume…" in text
    assert ask(browser, worker.pk, "recycle", reason="new release").status_code == 302
    refused = ask(browser, worker.pk, "resume", reason="no")
    assert refused.status_code == 409 and "cannot be taken back" in refused.content.decode()
    assert browser.get(reverse("runs:ask_worker", args=[worker.pk, "dance"])).status_code == 404


def test_whoever_may_not_drain_sees_no_form():
    assert (
        client("support").get(reverse("runs:ask_worker", args=[factories.worker().pk, "drain"])).status_code
        == 403
    )
