"""What limits act, beside what the code says."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from agentops.look.samples import HOSTILE
from runs import services
from runs.models import Policy
from runs.states import Status
from tests import factories
from tests.runs.limits_views.conftest import SignIn

pytestmark = pytest.mark.django_db

LIMITS = reverse("runs:limits")
STEP = reverse("runs:limit", args=["step", "parcel/pack"])


def cells(html: str, label: str) -> str:
    """The row of one limit, without its tags' attributes."""
    row: str = html.partition(f'<th scope="row">{label}</th>')[2].partition("</tr>")[0]
    assert row, label
    return row


def test_the_default_in_code_stands_beside_the_override(ada: Client) -> None:
    services.set_limits(factories.admin("bea"), "step", "parcel/pack", max_attempts=8, reason="flaky week")
    html = ada.get(STEP).content.decode()
    row = cells(html, "Retry limit")
    assert "5 attempts" in row
    assert "8 attempts" in row
    assert "bea" in row
    assert "none" in cells(html, "Attempt time-out")


def test_an_override_of_the_workflow_is_told_where_it_acts(ada: Client) -> None:
    services.set_limits(factories.admin("bea"), "workflow", "parcel", max_attempts=7)
    row = cells(ada.get(STEP).content.decode(), "Retry limit")
    assert "7 attempts" in row
    assert "from <bdi>parcel</bdi>" in row


def test_a_workflow_tells_the_range_of_its_steps(ada: Client) -> None:
    html = ada.get(reverse("runs:limit", args=["workflow", "parcel"])).content.decode()
    assert "5 attempts" in cells(html, "Retry limit")
    assert "3 crashes" in cells(html, "Crash limit")


def test_a_tool_has_no_crash_limit(ada: Client) -> None:
    html = ada.get(reverse("runs:limit", args=["tool", "book_courier"])).content.decode()
    assert "Crash limit" not in html
    assert "30 s" in cells(html, "Operation time-out")


def test_the_overview_has_what_is_overridden_what_is_paused_and_the_history(ada: Client) -> None:
    assert "Nothing is overridden" in ada.get(LIMITS).content.decode()
    services.set_limits(
        factories.admin("bea"), "tool", "book_courier", timeout_s=45.0, reason="slow provider"
    )
    services.pause_workflow(factories.admin("cyd"), "parcel", reason="down until noon")
    html = ada.get(LIMITS).content.decode()
    assert "Time-out <b>45 s</b>" in html
    assert "<bdi>parcel</bdi> is paused." in html
    assert "down until noon" in html
    assert "the default to 45 s" in html


def test_history_says_old_new_who_and_why(ada: Client) -> None:
    services.set_limits(factories.admin("bea"), "step", "parcel/pack", max_attempts=8, reason="flaky week")
    services.set_limits(factories.admin("cyd"), "step", "parcel/pack", max_attempts=None, reason="over")
    html = ada.get(STEP).content.decode()
    history = html.partition('class="history"')[2]
    assert "the default to 8 attempts" in history
    assert "8 attempts to the default" in history
    assert history.index("cyd") < history.index("bea")
    assert "flaky week" in history


def test_the_picker_leads_to_the_scope(ada: Client) -> None:
    assert ada.get(LIMITS, {"scope": "step:parcel/pack"})["Location"] == STEP
    assert ada.get(LIMITS, {"scope": "step:parcel/fly"}).status_code == 404


@pytest.mark.parametrize(
    ("scope", "name"),
    [("step", "parcel/fly"), ("workflow", "parcels"), ("tool", "teleport"), ("planet", "earth")],
)
def test_what_no_code_declares_is_404(scope: str, name: str, ada: Client) -> None:
    assert ada.get(reverse("runs:limit", args=[scope, name])).status_code == 404


@pytest.mark.parametrize("who", [factories.operator, factories.support])
def test_others_read_and_have_no_form(who: Any, sign_in: SignIn) -> None:
    services.set_limits(factories.admin("bea"), "step", "parcel/pack", max_attempts=8, reason="secret reason")
    client = sign_in(who())
    html = client.get(STEP, {"change": "max_attempts"}).content.decode()
    assert "8 attempts" in html
    assert "Change<" not in html
    assert 'id="change"' not in html
    assert "may see limits, but not change them" in html
    assert "secret reason" not in html  # the audit history is a permission of its own
    assert client.get(LIMITS).status_code == 200


@pytest.mark.parametrize("url", [LIMITS, STEP])
def test_a_person_in_no_group_gets_403_and_an_anonymous_one_the_sign_in_page(
    url: str, sign_in: SignIn
) -> None:
    assert sign_in(factories.stranger()).get(url).status_code == 403
    assert Client().get(url)["Location"].startswith("/sign-in/")


@pytest.mark.parametrize("url", [LIMITS, STEP])
def test_writing_to_a_page_is_refused(url: str, ada: Client) -> None:
    assert ada.post(url).status_code == 405


def test_the_form_opens_in_place_with_the_consequence_beside_it(ada: Client) -> None:
    factories.run(Status.RETRYING, failures=3)
    factories.run(Status.RETRYING, failures=1)
    html = ada.get(STEP, {"change": "max_attempts", "value": "3"}).content.decode()
    assert 'name="seen_revision" value="0"' in html
    assert "1 of 2 runs in back-off" in html


def test_the_consequence_alone_is_renewed_while_one_types(ada: Client) -> None:
    factories.run(Status.RETRYING, failures=3)
    response = ada.get(STEP, {"change": "max_attempts", "value": "2"}, headers={"HX-Request": "true"})
    html = response.content.decode()
    assert html.lstrip().startswith('<section class="preview"')
    assert "1 of 1" in html
    nonsense = ada.get(STEP, {"change": "max_attempts", "value": "many"}, headers={"HX-Request": "true"})
    assert "Enter a limit" in nonsense.content.decode()


def test_looking_changes_nothing(ada: Client) -> None:
    ada.get(STEP, {"change": "max_attempts", "value": "2", "reason": "x", "seen_revision": "0"})
    ada.head(STEP)
    assert not Policy.objects.exists()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_reasons_are_harmless(text: str, ada: Client) -> None:
    clean = text.encode("utf-8", "replace").decode().replace("\x00", "")
    services.pause_workflow(factories.admin("bea"), "parcel", reason=clean)
    for url in (LIMITS, STEP):
        html = ada.get(url).content.decode()
        assert "<script>alert" not in html
        assert "\u202e" not in html


def test_the_number_of_queries_is_bounded(ada: Client, django_assert_max_num_queries: Any) -> None:
    for number in range(5):
        services.set_limits(factories.admin(), "step", "parcel/pack", max_attempts=5 + number, reason="again")
    for url in (LIMITS, STEP, f"{STEP}?change=max_attempts&value=3"):
        with django_assert_max_num_queries(12):
            assert ada.get(url).status_code == 200
