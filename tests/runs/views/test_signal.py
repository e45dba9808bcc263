"""Send a run a signal, from its page."""

import pytest

from runs import services
from runs.models import Signal
from runs.models.operation import OpStatus
from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db


def url(run):
    return f"/runs/{run.pk}/signal/"


@pytest.fixture
def wait():
    return factories.signal_wait()


def fields(form, run, **more):
    return form(run, **{"name": "paid", "payload": '{"amount": "9.00"}', "external_id": "e-1", **more})


def test_the_page_offers_the_signal_that_the_run_waits_for(support, wait):
    html = support.get(url(wait.run)).content.decode()
    assert 'name="name" value="paid"' in html
    assert "The run waits for paid and goes on with this." in html


def test_it_works(support, wait, form):
    response = support.post(url(wait.run), fields(form, wait.run), follow=True)
    wait.refresh_from_db()
    assert (wait.status, wait.result) == (OpStatus.DONE, {"amount": "9.00"})
    assert "The signal was delivered to the wait that it was for." in response.content.decode()


def test_a_payload_that_is_too_long_is_refused(support, wait, form):
    long = '"' + "x" * 1_000_000 + '"'
    response = support.post(url(wait.run), fields(form, wait.run, payload=long))
    assert response.status_code == 422 and "A form takes at most 900.0 KB" in response.content.decode()
    assert not Signal.objects.exists()


def test_only_get_and_post(support, wait):
    assert support.put(url(wait.run)).status_code == 405


def test_a_wrong_role_is_refused_by_direct_post_and_sees_no_button(operator, wait, form):
    assert operator.post(url(wait.run), fields(form, wait.run)).status_code == 403
    assert url(wait.run) not in operator.get(f"/runs/{wait.run_id}/").content.decode()
    assert not Signal.objects.exists()


def test_a_stale_page_is_answered_with_the_fresh_view(support, wait, form):
    sent = fields(form, wait.run)
    services.cancel(factories.support(), wait.run_id, reason="no longer wanted")
    response = support.post(url(wait.run), sent)
    assert response.status_code == 409
    html = response.content.decode()
    assert "the signal is stored and not used" in html
    assert "{&quot;amount&quot;: &quot;9.00&quot;}" in html, "what was typed stays"
    assert not Signal.objects.exists()


def test_a_form_that_is_sent_twice_is_one_signal(support, wait, form):
    sent = fields(form, wait.run)
    support.post(url(wait.run), sent)
    again = support.post(url(wait.run), sent, follow=True)
    assert again.status_code == 200
    assert Signal.objects.count() == 1


@pytest.mark.parametrize("payload", ["{", '{"a": NaN}', "\x00"])
def test_a_payload_that_is_no_json_is_refused_at_its_field(payload, support, wait, form):
    response = support.post(url(wait.run), fields(form, wait.run, payload=payload))
    assert response.status_code == 422
    assert "id_payload_error" in response.content.decode()
    assert not Signal.objects.exists()


def test_a_finished_run_offers_no_button(support):
    run = factories.run(Status.COMPLETED)
    assert url(run) not in support.get(f"/runs/{run.pk}/").content.decode()
