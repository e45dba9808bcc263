"""Pausing a workflow, and resuming it."""

from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from runs import clock, services
from runs.models import AuditEvent, Policy
from runs.states import Hold, Status
from tests import factories
from tests.runs.limits_views.conftest import SignIn

pytestmark = pytest.mark.django_db

PAGE = reverse("runs:limit", args=["workflow", "parcel"])
PAUSE = reverse("runs:pause", args=["workflow", "parcel"])
RESUME = reverse("runs:resume", args=["workflow", "parcel"])


def send(client: Client, url: str, **changes: str) -> HttpResponse:
    return client.post(url, {"seen_revision": "0", "reason": "provider is down"} | changes)  # type: ignore[return-value]


def test_a_pause_is_announced_wherever_its_limits_are_shown(ada: Client) -> None:
    factories.run(Status.RUNNING)
    assert "1 running attempt" in ada.get(PAUSE).content.decode()
    response = send(ada, PAUSE)
    assert (response.status_code, response["Location"]) == (302, PAGE)
    assert Policy.objects.get().pause_reason == "provider is down"
    for url in (PAGE, reverse("runs:limits"), reverse("runs:limit", args=["step", "parcel/pack"])):
        html = ada.get(url).content.decode()
        assert "<bdi>parcel</bdi> is paused." in html
        assert "provider is down" in html
        assert RESUME in html


def test_resuming_makes_parked_runs_due(ada: Client) -> None:
    send(ada, PAUSE)
    parked = factories.run(held_by=Hold.PAUSED)
    assert "1 parked run" in ada.get(RESUME).content.decode()
    assert send(ada, RESUME, seen_revision="1", reason="up again").status_code == 302
    parked.refresh_from_db()
    assert parked.wake_at is not None and parked.wake_at <= clock.now()
    assert "is paused." not in ada.get(PAGE).content.decode()
    kinds = AuditEvent.objects.order_by("id").values_list("kind", "reason")
    assert list(kinds) == [("workflow_paused", "provider is down"), ("workflow_resumed", "up again")]


@pytest.mark.parametrize("url", [PAUSE, RESUME])
def test_looking_does_nothing_and_other_methods_are_refused(url: str, ada: Client) -> None:
    ada.get(url, {"seen_revision": "0", "reason": "x"})
    ada.head(url)
    assert ada.put(url).status_code == 405
    assert not Policy.objects.exists()


@pytest.mark.parametrize("url", [PAUSE, RESUME])
@pytest.mark.parametrize("who", [factories.operator, factories.support, factories.stranger])
def test_a_wrong_role_gets_403(who: Any, url: str, sign_in: SignIn) -> None:
    client = sign_in(who())
    assert send(client, url).status_code == 403
    assert client.get(url).status_code == 403
    assert not Policy.objects.exists()


@pytest.mark.parametrize("url", [PAUSE, RESUME])
def test_an_anonymous_visitor_is_led_to_the_sign_in_page(url: str, db: None) -> None:
    assert send(Client(), url)["Location"].startswith("/sign-in/")


def test_a_stale_page_is_409_with_the_fresh_view(ada: Client) -> None:
    services.set_limits(factories.admin("bea"), "workflow", "parcel", max_attempts=6)
    response = send(ada, PAUSE, reason="half typed")
    html = response.content.decode()
    assert response.status_code == 409
    assert "changed by bea since the page was loaded" in html
    assert 'value="half typed"' in html
    assert not Policy.objects.get().paused


@pytest.mark.parametrize(("url", "word"), [(PAUSE, "paused"), (RESUME, "resumed")])
def test_what_is_already_so_is_answered_like_the_first(url: str, word: str, ada: Client) -> None:
    if url == PAUSE:
        services.pause_workflow(factories.admin("bea"), "parcel")
    before = AuditEvent.objects.count()
    response = send(ada, url)
    assert (response.status_code, response["Location"]) == (302, PAGE)
    assert AuditEvent.objects.count() == before
    assert f"parcel was already {word}." in ada.get(PAGE).content.decode()


def test_a_pause_needs_a_reason(ada: Client) -> None:
    response = send(ada, PAUSE, reason=" ")
    assert response.status_code == 422
    assert not Policy.objects.exists()


def test_an_unknown_workflow_is_404(ada: Client) -> None:
    assert send(ada, reverse("runs:pause", args=["workflow", "parcels"])).status_code == 404
