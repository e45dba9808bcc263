"""Changing a limit."""

from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from runs import clock, services
from runs.models import AuditEvent, Policy
from runs.states import Status
from tests import factories
from tests.runs.limits_views.conftest import SignIn

pytestmark = pytest.mark.django_db

PAGE = reverse("runs:limit", args=["step", "parcel/pack"])
SET = reverse("runs:set_limit", args=["step", "parcel/pack"])


def send(client: Client, url: str = SET, **changes: str) -> HttpResponse:
    form = {
        "limit": "max_attempts",
        "value": "8",
        "seen_revision": "0",
        "reason": "outage, incident 7731",
    } | changes
    return client.post(url, form)  # type: ignore[return-value]


def test_it_acts_at_once_and_is_written_down(ada: Client) -> None:
    spent = factories.run(Status.RETRYING, failures=3)
    response = send(ada, value="3")
    assert (response.status_code, response["Location"]) == (302, PAGE)
    spent.refresh_from_db()
    assert spent.wake_at is not None and spent.wake_at <= clock.now()
    event = AuditEvent.objects.get()
    assert (event.actor, event.reason, event.old, event.new) == (
        "ada",
        "outage, incident 7731",
        {"max_attempts": None},
        {"max_attempts": 3},
    )
    assert "Retry limit of parcel, step pack is now 3 attempts." in ada.get(PAGE).content.decode()


def test_a_preview_changes_nothing_and_keeps_what_is_typed_out_of_the_address(ada: Client) -> None:
    factories.run(Status.RETRYING, failures=3)
    response = send(ada, value="3", preview="1")
    html = response.content.decode()
    assert response.status_code == 200
    assert "outage, incident 7731" in html
    assert "Changes 1 waiting run" in html
    assert not Policy.objects.exists()


@pytest.mark.parametrize(
    ("limit", "value", "stored"),
    [
        ("max_attempts", "1000", 1000),
        ("backoff_base_s", "0.5", 0.5),
        ("backoff_max_s", "0", 0.0),
        ("timeout_s", "2.5", 2.5),
        ("crash_limit", "1", 1),
    ],
)
def test_every_limit_can_be_set(limit: str, value: str, stored: float, ada: Client) -> None:
    assert send(ada, limit=limit, value=value).status_code == 302
    assert getattr(Policy.objects.get(), limit) == stored


@pytest.mark.parametrize(("scope", "name"), [("workflow", "parcel"), ("tool", "book_courier")])
def test_workflows_and_tools_have_limits_too(scope: str, name: str, ada: Client) -> None:
    assert send(ada, reverse("runs:set_limit", args=[scope, name])).status_code == 302
    assert Policy.objects.get(scope=scope, name=name).max_attempts == 8


def test_an_empty_value_gives_the_limit_back(ada: Client) -> None:
    send(ada)
    assert send(ada, value="", seen_revision="1").status_code == 302
    assert Policy.objects.get().max_attempts is None


@pytest.mark.parametrize("method", ["get", "head", "put", "delete"])
def test_any_other_method_changes_nothing(method: str, ada: Client) -> None:
    assert (
        getattr(ada, method)(f"{SET}?limit=max_attempts&value=1&seen_revision=0&reason=x").status_code == 405
    )
    assert not Policy.objects.exists()


@pytest.mark.parametrize("who", [factories.operator, factories.support, factories.stranger])
def test_a_wrong_role_gets_403(who: Any, sign_in: SignIn) -> None:
    assert send(sign_in(who())).status_code == 403
    assert send(sign_in(who()), value="nonsense").status_code == 403
    assert not Policy.objects.exists()


def test_an_anonymous_visitor_is_led_to_the_sign_in_page(db: None) -> None:
    assert send(Client())["Location"].startswith("/sign-in/")
    assert not Policy.objects.exists()


def test_a_stale_page_is_409_with_the_fresh_limits_and_what_was_typed(ada: Client) -> None:
    services.set_limits(factories.admin("bea"), "step", "parcel/pack", max_attempts=6)
    response = send(ada, reason="half typed")
    html = response.content.decode()
    assert response.status_code == 409
    assert "changed by bea since the page was loaded" in html
    assert "6 attempts" in html
    assert 'value="half typed"' in html
    assert 'name="seen_revision" value="1"' in html
    assert Policy.objects.get().max_attempts == 6


def test_a_double_click_changes_once(ada: Client) -> None:
    first, second = send(ada), send(ada)
    assert (first.status_code, second.status_code) == (302, 302)
    assert first["Location"] == second["Location"]
    assert AuditEvent.objects.count() == 1
    assert "was already set" in ada.get(PAGE).content.decode()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"value": "0"}, "greater than or equal to 1"),
        ({"value": "1001"}, "less than or equal to 1000"),
        ({"value": "many"}, "Enter a whole number."),
        ({"limit": "timeout_s", "value": "0"}, "greater than or equal to 0.001"),
        ({"limit": "timeout_s", "value": "nan"}, "Enter a number."),
        ({"limit": "timeout_s", "value": "inf"}, "Enter a number."),
        ({"limit": "timeout_s", "value": "1e300"}, "less than or equal to"),
        ({"reason": ""}, "This field is required."),
        ({"reason": "nul \x00"}, "Null characters are not allowed."),
    ],
)
def test_what_no_limit_may_be_comes_back_with_the_form(
    changes: dict[str, str], said: str, ada: Client
) -> None:
    response = send(ada, **changes)
    assert response.status_code == 422
    assert said in response.content.decode()
    assert not Policy.objects.exists()


def test_an_unknown_limit_or_scope_is_refused(ada: Client) -> None:
    assert send(ada, limit="paused", value="1").status_code == 400
    assert send(ada, reverse("runs:set_limit", args=["step", "parcel/fly"])).status_code == 404
    assert not Policy.objects.exists()
