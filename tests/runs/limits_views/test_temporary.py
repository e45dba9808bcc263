"""Pages of limits that act for a while, of reverting, of rates, and of pauses that everybody sees."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from runs import clock, services
from runs.models import AuditEvent, Policy
from runs.states import Status
from tests import factories
from tests.runs.limits_views.conftest import SignIn

pytestmark = pytest.mark.django_db

STEP = reverse("runs:limit", args=["step", "parcel/pack"])
SET = reverse("runs:set_limit", args=["step", "parcel/pack"])
END = reverse("runs:end_temporary", args=["max_attempts", "step", "parcel/pack"])


def text(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200, url
    return response.content.decode()


def for_an_hour(**values: Any) -> None:
    until = clock.now() + timedelta(hours=1)
    services.set_limits(factories.admin("bea"), "step", "parcel/pack", until=until, reason="outage", **values)


def test_a_limit_is_set_for_a_while_by_the_form(ada: Client) -> None:
    form = {"limit": "max_attempts", "value": "9", "minutes": "60", "seen_revision": "0", "reason": "outage"}
    assert ada.post(SET, form).status_code == 302
    policy = Policy.objects.get()
    assert (policy.max_attempts, policy.temporary["max_attempts"]["values"]) == (None, {"max_attempts": 9})
    html = text(ada, STEP)
    assert "then the default" in html.partition("Retry limit")[2]


def test_a_banner_tells_it_on_every_page_of_limits_and_on_runs_that_it_reaches(ada: Client) -> None:
    for_an_hour(max_attempts=9)
    here, elsewhere = factories.run(), factories.run(step="ship")
    for url in (STEP, reverse("runs:limits"), reverse("runs:run", args=[here.pk])):
        html = text(ada, url)
        assert "Temporary limit acts until" in html
        assert "9 attempts instead of the default" in html
        assert "outage" in html
    assert "Temporary limit" not in text(ada, reverse("runs:run", args=[elsewhere.pk]))
    clock.shift(timedelta(hours=1))
    assert "Temporary limit" not in text(ada, STEP)


def test_it_is_ended_from_its_banner(ada: Client) -> None:
    for_an_hour(max_attempts=9)
    assert END in text(ada, STEP)
    assert "9 attempts" in text(ada, END)
    assert not AuditEvent.objects.exclude(actor="bea").exists()
    assert ada.post(END, {"seen_revision": "1", "reason": "over"}).status_code == 302
    assert Policy.objects.get().temporary == {}
    assert (
        "no temporary one any more"
        in ada.post(END, {"seen_revision": "2", "reason": "over"}, follow=True).content.decode()
    )


def test_a_rate_is_a_number_and_a_period(ada: Client) -> None:
    form = {"limit": "rate_count", "value": "5", "period": "60.0", "seen_revision": "0", "reason": "agreed"}
    assert ada.post(SET, form).status_code == 302
    policy = Policy.objects.get()
    assert (policy.rate_count, policy.rate_period_s) == (5, 60.0)
    html = text(ada, STEP)
    assert "5 per minute" in html
    assert 'value="60.0" selected' in text(ada, f"{STEP}?change=rate_count")
    cleared = {"limit": "rate_count", "value": "", "seen_revision": "1", "reason": "over"}
    assert ada.post(SET, cleared).status_code == 302
    assert Policy.objects.get().rate_period_s is None


def test_history_leads_to_a_revert_with_its_consequence(ada: Client) -> None:
    bea = factories.admin("bea")
    services.set_limits(bea, "step", "parcel/pack", max_attempts=8)
    services.set_limits(bea, "step", "parcel/pack", max_attempts=3)
    revert = reverse("runs:revert", args=[AuditEvent.objects.latest("id").pk])
    assert revert in text(ada, STEP)
    assert "Retry limit becomes 8 attempts" in text(ada, revert)
    stale = ada.post(revert, {"seen_revision": "1", "reason": "too low"})
    assert stale.status_code == 409
    assert 'value="too low"' in stale.content.decode()
    assert ada.post(revert, {"seen_revision": "2", "reason": "too low"}).status_code == 302
    assert Policy.objects.get().max_attempts == 8
    assert "reverted" in text(ada, STEP)


def test_a_pause_of_everything_stands_above_every_page(ada: Client, sign_in: SignIn) -> None:
    url = reverse("runs:pause", args=["everything", "all"])
    assert "Nothing begins any more" in text(ada, url)
    assert ada.post(url, {"seen_revision": "0", "minutes": "60", "reason": "fire drill"}).status_code == 302
    for client in (ada, sign_in(factories.operator())):
        html = text(client, reverse("runs:list"))
        assert "Everything</bdi> is paused." in html
        assert "fire drill" in html
    assert reverse("runs:resume", args=["everything", "all"]) in text(ada, reverse("runs:list"))
    clock.shift(timedelta(hours=1))
    assert "is paused." not in text(ada, reverse("runs:list"))


def test_many_pauses_do_not_push_the_page_away(ada: Client) -> None:
    admin = factories.admin()
    for scope, name in (("everything", "all"), ("queue", "default"), ("workflow", "parcel")):
        services.pause_scope(admin, scope, name)
    Policy.objects.create(scope="queue", name="slow", paused=True)
    html = text(ada, reverse("runs:list"))
    assert html.count("is paused.") == 3
    assert "4 pauses hold" in html


@pytest.mark.parametrize(("scope", "name"), [("queue", "default"), ("everything", "all")])
def test_queues_and_everything_have_limits_of_their_own(scope: str, name: str, ada: Client) -> None:
    url = reverse("runs:limit", args=[scope, name])
    html = text(ada, url)
    assert "Concurrency" in html
    assert "Retry limit</th>" not in html
    form = {"limit": "concurrency", "value": "20", "seen_revision": "0", "reason": "small machine"}
    assert ada.post(reverse("runs:set_limit", args=[scope, name]), form).status_code == 302
    assert "20 at once" in text(ada, url)
    wrong = {"limit": "max_attempts", "value": "2", "seen_revision": "1", "reason": "x"}
    assert ada.post(reverse("runs:set_limit", args=[scope, name]), wrong).status_code == 400


def test_waiting_runs_are_sorted_by_a_verb_of_its_own(ada: Client) -> None:
    run = factories.run(Status.WAITING)
    services.set_limits(factories.admin("bea"), "workflow", "parcel", priority=4)
    url = reverse("runs:sort_waiting", args=["parcel"])
    assert "1 waiting runs get priority 4" in text(ada, url)
    assert ada.post(url, {"seen_revision": "1", "reason": "urgent"}).status_code == 302
    run.refresh_from_db()
    assert run.priority == 4


def test_dead_letters_that_could_be_retried_have_a_link(ada: Client) -> None:
    factories.run(Status.FAILED, failure_kind="exhausted")
    html = text(ada, f"{STEP}?change=max_attempts&value=8")
    assert "/bulk/new?verb=retry&amp;failure_kind=exhausted&amp;workflow=parcel&amp;step=pack" in html


@pytest.mark.parametrize("who", [factories.operator, factories.support, factories.stranger])
def test_a_wrong_role_gets_403(who: Any, sign_in: SignIn) -> None:
    for_an_hour(max_attempts=9)
    client = sign_in(who())
    change = AuditEvent.objects.latest("id").pk
    for url in (
        END,
        reverse("runs:revert", args=[change]),
        reverse("runs:sort_waiting", args=["parcel"]),
        reverse("runs:pause", args=["everything", "all"]),
        reverse("runs:resume", args=["queue", "default"]),
    ):
        assert client.get(url).status_code == 403
        assert client.post(url, {"seen_revision": "0", "reason": "x"}).status_code == 403
    assert AuditEvent.objects.count() == 1


@pytest.mark.parametrize(
    "url",
    [
        reverse("runs:revert", args=["00000000-0000-7000-8000-000000000000"]),
        reverse("runs:pause", args=["step", "parcel/pack"]),
        reverse("runs:pause", args=["queue", "nowhere"]),
        reverse("runs:end_temporary", args=["priority", "step", "parcel/pack"]),
    ],
)
def test_what_there_is_not_is_404(url: str, ada: Client) -> None:
    assert ada.get(url).status_code == 404


def test_looking_changes_nothing(ada: Client) -> None:
    for_an_hour(max_attempts=9)
    change = AuditEvent.objects.latest("id").pk
    for url in (END, reverse("runs:revert", args=[change]), reverse("runs:sort_waiting", args=["parcel"])):
        ada.get(url, {"seen_revision": "1", "reason": "x"})
        ada.head(url)
    assert Policy.objects.get().revision == 1
