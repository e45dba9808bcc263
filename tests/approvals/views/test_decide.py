"""The verdict form: approve, reject."""

import re
from typing import Any, cast

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from approvals import services
from approvals.models import Approval, Vote
from approvals.policies import declared
from runs import services as run_services
from runs.models import Event
from runs.models.run import new_id
from runs.states import Status
from tests import factories
from tests.approvals.views.conftest import SignIn

pytestmark = pytest.mark.django_db

declared.policy("verdict_two", votes=2)
declared.policy("verdict_admins", groups=["admins"])
declared.policy("verdict_starter", exclude_starter=True)


def send(client: Client, approval: Approval, verdict: str = "approve", **changes: Any) -> HttpResponse:
    form = {
        "version": approval.version,
        "digest": approval.digest,
        "verdict": verdict,
        "reason": "because",
    } | changes
    response = client.post(reverse("approvals:decide", args=[approval.pk]), form)
    approval.refresh_from_db()
    return response  # type: ignore[return-value]


def test_what_the_page_shows_is_what_is_approved(olga: Client) -> None:
    approval = factories.approval()
    html = olga.get(reverse("approvals:approval", args=[approval.pk])).content.decode()
    form = html.partition('id="decide"')[2].partition("</form>")[0]
    hidden = dict(re.findall(r'name="(version|digest)" value="([^"]*)"', form))
    response = send(olga, approval, **hidden)
    assert response.status_code == 302
    assert response["Location"] == reverse("approvals:approval", args=[approval.pk])
    assert approval.state == "approved"
    vote = Vote.objects.get()
    assert (vote.voter_name, vote.version, vote.digest, vote.reason) == (
        "olga",
        1,
        approval.digest,
        "because",
    )
    html = olga.get(response["Location"]).content.decode()
    assert "Book a courier for order 1042: approved." in html


def test_a_rejection_tells_the_reason(olga: Client) -> None:
    approval = factories.approval()
    assert send(olga, approval, "reject", reason="already paid").status_code == 302
    assert (approval.state, approval.reason) == ("rejected", "already paid")


def test_a_rejection_without_a_reason_comes_back_with_the_form(olga: Client) -> None:
    approval = factories.approval()
    response = send(olga, approval, "reject", reason="  ")
    assert response.status_code == 422
    assert "Say why you reject it" in response.content.decode()
    assert 'aria-invalid="true"' in response.content.decode()
    assert approval.state == "open"


@pytest.mark.parametrize("method", ["get", "head", "put", "delete"])
def test_any_other_method_decides_nothing(method: str, olga: Client) -> None:
    approval = factories.approval()
    query = f"?version=1&digest={approval.digest}&verdict=approve"
    assert getattr(olga, method)(reverse("approvals:decide", args=[approval.pk]) + query).status_code == 405
    assert not Vote.objects.exists()


@pytest.mark.parametrize("who", [factories.support, factories.stranger])
def test_a_wrong_role_gets_403(who: Any, sign_in: SignIn) -> None:
    approval = factories.approval()
    assert send(sign_in(who()), approval).status_code == 403
    assert send(sign_in(who()), approval, "reject", reason="").status_code == 403
    assert not Vote.objects.exists()


def test_another_group_and_whoever_started_the_run_get_403(sign_in: SignIn) -> None:
    assert send(sign_in(factories.operator()), factories.approval(policy="verdict_admins")).status_code == 403
    starter = factories.operator("starter")
    run = factories.run(Status.WAITING, started_by=starter.user, started_by_name="starter")
    response = send(sign_in(starter), factories.approval(run, policy="verdict_starter"))
    assert response.status_code == 403
    assert "you started this run" in response.content.decode().lower()
    assert not Vote.objects.exists()


def test_an_anonymous_visitor_is_led_to_the_sign_in_page() -> None:
    response = send(Client(), factories.approval())
    assert response["Location"].startswith("/sign-in/")
    assert not Vote.objects.exists()


def test_another_site_cannot_send_the_form(sign_in: SignIn) -> None:
    approval, actor = factories.approval(), factories.operator()
    client = Client(enforce_csrf_checks=True)
    client.force_login(cast(User, actor.user))
    assert send(client, approval).status_code == 403
    assert not Vote.objects.exists()


def test_a_changed_request_is_409_with_the_fresh_version_and_ones_reason_kept(olga: Client) -> None:
    approval = factories.approval()
    shown: dict[str, Any] = {"version": 1, "digest": approval.digest}
    services.edit(
        factories.operator("ann"), approval.pk, version=1, arguments={"order": "1042", "amount": "5.00"}
    )
    response = send(olga, approval, **shown, reason="half typed & sent")
    html = response.content.decode()
    assert response.status_code == 409
    assert "This request has changed since the page was loaded" in html
    assert "5.00" in html
    assert f'value="{approval.digest}"' in html
    assert 'value="half typed &amp; sent"' in html
    assert not Vote.objects.exists()
    assert send(olga, approval, "reject", **shown, reason="").status_code == 409


def test_the_digest_is_a_guard_of_its_own(olga: Client) -> None:
    assert send(olga, factories.approval(), digest="0" * 64).status_code == 409
    assert not Vote.objects.exists()


def test_a_decided_request_is_409_and_names_who_decided(sign_in: SignIn) -> None:
    approval = factories.approval()
    assert send(sign_in(factories.operator("ann")), approval).status_code == 302
    response = send(sign_in(factories.operator("bob")), approval, "reject")
    assert response.status_code == 409
    assert "Already approved by ann." in response.content.decode()
    assert approval.state == "approved"


def test_a_void_request_is_409(olga: Client) -> None:
    approval = factories.approval()
    run_services.cancel(factories.support(), approval.run_id)
    assert send(olga, approval).status_code == 409


def test_a_double_click_is_answered_like_the_first(olga: Client) -> None:
    approval = factories.approval(policy="verdict_two")
    first, second = send(olga, approval), send(olga, approval)
    assert (first.status_code, second.status_code) == (302, 302)
    assert first["Location"] == second["Location"]
    assert Vote.objects.count() == 1
    assert Event.objects.filter(run_id=approval.run_id, kind="vote").count() == 1
    assert "You had already approved this." in olga.get(second["Location"]).content.decode()


def test_a_vote_is_not_taken_back(olga: Client) -> None:
    approval = factories.approval(policy="verdict_two")
    send(olga, approval)
    response = send(olga, approval, "reject")
    assert response.status_code == 409
    assert "You had already approved this version." in response.content.decode()


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": "perhaps"},
        {"verdict": ""},
        {"version": "x"},
        {"version": ""},
        {"version": str(2**70)},
        {"digest": ""},
        {"digest": "x" * 65},
        {"reason": "x" * 2001},
        {"reason": "nul \x00"},
    ],
)
def test_an_incomplete_form_decides_nothing(changes: dict[str, str], olga: Client) -> None:
    assert send(olga, factories.approval(), **changes).status_code in (409, 422)
    assert not Vote.objects.exists()


def test_an_unknown_request_is_404(olga: Client) -> None:
    assert olga.post(reverse("approvals:decide", args=[new_id()])).status_code == 404


def test_a_hostile_reason_is_harmless_on_the_page(sign_in: SignIn) -> None:
    approval = factories.approval()
    client = sign_in(factories.operator())
    send(client, approval, "reject", reason="<script>alert(1)</script>\u202e")
    html = client.get(reverse("approvals:approval", args=[approval.pk])).content.decode()
    assert "<script>alert" not in html
    assert "\u202e" not in html
