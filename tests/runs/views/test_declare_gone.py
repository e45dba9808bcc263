"""Declare a worker gone for good, from its page."""

import pytest

from runs.models import AuditEvent
from tests import factories

pytestmark = pytest.mark.django_db


def url(worker):
    return f"/workers/{worker.pk}/gone/"


@pytest.fixture
def silent():
    return factories.worker(beats=False)


def test_the_page_says_what_that_means(support, silent):
    factories.doubt(intent_worker_id=silent.pk)
    html = support.get(url(silent)).content.decode()
    assert "an effect may be repeated" in html
    assert "book_courier" in html


def test_it_works(support, silent):
    response = support.post(url(silent), {"reason": "the host burned down"}, follow=True)
    silent.refresh_from_db()
    assert silent.reaped_at is not None and silent.gone_by
    assert AuditEvent.objects.get().reason == "the host burned down"
    assert "is recorded as gone" in response.content.decode()


def test_a_reason_is_asked_for(support, silent):
    assert support.post(url(silent), {"reason": " "}).status_code == 422
    silent.refresh_from_db()
    assert silent.reaped_at is None


def test_only_get_and_post(support, silent):
    assert support.put(url(silent)).status_code == 405


def test_a_wrong_role_is_refused_by_direct_post(stranger, silent):
    assert stranger.post(url(silent), {"reason": "x"}).status_code == 403
    silent.refresh_from_db()
    assert silent.reaped_at is None


def test_a_worker_that_beats_is_refused_with_the_fresh_view(support):
    alive = factories.worker()
    response = support.post(url(alive), {"reason": "I think so"})
    assert response.status_code == 409
    assert "still beats" in response.content.decode()


def test_said_twice_it_changes_nothing(support, silent):
    support.post(url(silent), {"reason": "first"})
    support.post(url(silent), {"reason": "second"})
    assert AuditEvent.objects.count() == 1
    assert "There is nothing left to declare." in support.get(url(silent)).content.decode()


def test_no_worker_is_not_found(support):
    assert support.get("/workers/00000000-0000-7000-8000-000000000000/gone/").status_code == 404
    assert (
        support.post("/workers/00000000-0000-7000-8000-000000000000/gone/", {"reason": "x"}).status_code
        == 404
    )
