"""Editing a payload in a form made from its schema."""

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from approvals import services, waits
from approvals.models import Approval, ApprovalVersion
from approvals.policies import declared
from runs import codec
from runs.states import Status
from tests import factories
from tests.approvals.views.conftest import SignIn

pytestmark = pytest.mark.django_db

declared.policy("edit_two", votes=2)

QUESTION = {
    "type": "object",
    "properties": {
        "language": {"enum": ["fr", "en"], "title": "Language"},
        "words": {"type": "integer", "minimum": 10},
        "share": {"type": "number", "maximum": 1},
        "copy": {"type": "boolean"},
        "tone": {"type": ["string", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "text": {"type": "string", "minLength": 1},
    },
    "required": ["language", "words", "share", "copy", "tone", "tags", "text"],
}
ANSWER = {
    "language": "fr",
    "words": 120,
    "share": 0.5,
    "copy": True,
    "tone": "formal",
    "tags": ["a"],
    "text": "One.\r\nTwo.",
}


def question(**more: Any) -> Approval:
    given = {"name": "May I?", "schema": QUESTION, "arguments": ANSWER} | more
    return factories.approval(**given)


def url(approval: Approval) -> str:
    return reverse("approvals:edit", args=[approval.pk])


def typed(client: Client, approval: Approval) -> dict[str, str]:
    """The form as a browser would send it unchanged."""
    html = (
        client.get(url(approval)).content.decode().partition('id="payload-form"')[2].partition("</form>")[0]
    )
    form = client.get(url(approval)).context["edit"]
    sent = {"version": str(approval.version)}
    for bound in form.payload_fields:
        assert f'name="{bound.html_name}"' in html
        value = bound.value()
        if value is not False:
            sent[bound.html_name] = (
                "on" if value is True else str(value).replace("\r\n", "\n").replace("\n", "\r\n")
            )
    return sent


def names(client: Client, approval: Approval) -> dict[str | None, str]:
    form = client.get(url(approval)).context["edit"]
    return {field.key: name for name, field in form.offered.items()}


def send(client: Client, approval: Approval, *, drop: str = "", **changes: str) -> HttpResponse:
    """Change these fields of the form (by the names in the payload) and send it."""
    sent, by_key = typed(client, approval), names(client, approval)
    for key, value in changes.items():
        sent[by_key.get(key, key)] = value
    if drop:
        del sent[by_key[drop]]
    response = client.post(url(approval), sent)
    approval.refresh_from_db()
    return response  # type: ignore[return-value]


def current(approval: Approval) -> Any:
    return codec.decode(waits.true_arguments(approval))


def test_a_look_shows_what_would_change_and_changes_nothing(olga: Client) -> None:
    approval = factories.approval()
    response = send(olga, approval, amount="5.00", reason="shipping", look="yes")
    assert response.status_code == 200 and approval.version == 1
    part = response.content.decode().partition('id="changes"')[2].partition("</section>")[0]
    assert re.findall(r"<(?:del|ins)><span[^>]*>(was|now) </span>(?:<bdi>)?([\d.]+)", part) == [
        ("was", "10.00"),
        ("now", "5.00"),
    ]
    assert "1042" not in part, "only what changes"
    assert 'value="5.00"' in response.content.decode() and 'value="shipping"' in response.content.decode()
    unchanged = send(olga, approval, look="yes").content.decode()
    assert "You have changed nothing yet" in unchanged
    wrong = send(olga, approval, amount="much", look="yes")
    assert wrong.status_code == 422 and 'id="changes"' not in wrong.content.decode()


def test_an_edit_makes_a_new_version_and_says_that_votes_are_void(olga: Client) -> None:
    approval = factories.approval(policy="edit_two")
    services.decide(factories.operator(), approval.pk, version=1, digest=approval.digest, verdict="approve")
    assert "1 vote on version 1 becomes void." in olga.get(url(approval)).content.decode()
    response = send(olga, approval, amount="5.00", reason="shipping is not refundable")
    assert response.status_code == 302
    assert approval.version == 2
    assert current(approval) == {"order": "1042", "amount": Decimal("5.00")}
    version = ApprovalVersion.objects.get(approval=approval, version=2)
    assert (version.by, version.reason) == ("olga", "shipping is not refundable")
    html = olga.get(response["Location"]).content.decode()
    assert "Version 2 is up for decision; earlier votes are void." in html


def test_each_kind_of_field_has_its_control_and_keeps_its_type(olga: Client) -> None:
    approval = question()
    html = olga.get(url(approval)).content.decode()
    assert "<select" in html
    assert 'type="checkbox"' in html
    assert 'inputmode="numeric"' in html
    assert 'inputmode="decimal"' in html
    assert html.count("<textarea") == 2
    send(
        olga,
        approval,
        language='"en"',
        words="80",
        share="0.25",
        tone="",
        tags='["b", 2]'.replace(", 2", ""),
        drop="copy",
    )
    assert current(approval) == ANSWER | {
        "language": "en",
        "words": 80,
        "share": 0.25,
        "tone": None,
        "tags": ["b"],
        "copy": False,
    }


def test_what_is_left_alone_stays_exactly_as_it_was(olga: Client) -> None:
    arguments = {
        "at": datetime(2026, 1, 2, tzinfo=UTC),
        "id": UUID(int=1),
        "n": Decimal("1.10"),
        "text": "a\r\nb",
        "x": 1,
    }
    approval = question(schema={}, arguments=arguments)
    send(olga, approval, x="2")
    assert current(approval) == arguments | {"x": 2}
    send(olga, approval, n="2.50", at="2027-01-02T00:00:00+00:00")
    assert current(approval) == arguments | {
        "x": 2,
        "n": Decimal("2.50"),
        "at": datetime(2027, 1, 2, tzinfo=UTC),
    }


def test_a_payload_that_is_no_object_is_one_field(olga: Client) -> None:
    approval = question(schema={"type": "string"}, arguments="hello")
    send(olga, approval, **{names(olga, approval)[None]: "good bye"})
    assert current(approval) == "good bye"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("words", "5", "5 is less than the minimum of 10"),
        ("words", "many", "Enter a whole number."),
        ("words", "", "This is needed."),
        ("share", "NaN", "Enter a number."),
        ("share", "2", "2.0 is greater than the maximum of 1"),
        ("tags", "[1]", "1 is not of type"),
        ("tags", "[", "This is not valid json"),
        ("tags", "[NaN]", "NaN is not JSON"),
        ("text", "", "&#x27;&#x27; should be non-empty"),
        ("language", '"de"', "Select a valid choice"),
    ],
)
def test_a_mistake_stands_at_its_field_and_what_was_typed_stays(
    key: str, value: str, said: str, olga: Client
) -> None:
    approval = question()
    response = send(olga, approval, **{key: value, "tone": "kind & short"})
    html = response.content.decode()
    assert response.status_code == 422
    name = names(olga, approval)[key]
    errors = re.search(rf'<ul class="errors" id="id_{name}_error">(.*?)</ul>', html, re.S)
    assert errors is not None, html[-3000:]
    assert said.lower() in errors[1].lower()
    assert "kind &amp; short" in html
    assert approval.version == 1


def test_a_tools_own_types_judge_its_arguments(olga: Client) -> None:
    approval = factories.approval()
    response = send(olga, approval, amount="much")
    assert response.status_code == 422
    assert "Enter a number." in response.content.decode()
    assert approval.version == 1


def test_an_edit_that_changes_nothing_is_refused(olga: Client) -> None:
    approval = factories.approval()
    response = send(olga, approval)
    assert response.status_code == 422
    assert "The edit changes nothing." in response.content.decode()


def test_the_title_tells_the_new_amount(olga: Client) -> None:
    from agentops.demo import tools

    run = factories.run(Status.WAITING)
    arguments = {
        "order_id": "1042",
        "amount": Decimal(246),
        "currency": "EUR",
        "reason": "broken",
        "run_id": run.pk,
    }
    approval = factories.approval(
        run,
        name="refund",
        arguments=arguments,
        title="Refund 246 EUR for order 1042",
        schema=tools.refund.arguments.model_json_schema(),
    )
    assert "cannot be changed" in olga.get(url(approval)).content.decode()
    send(olga, approval, amount="184.50")
    assert approval.title == "Refund 184.50 EUR for order 1042"
    assert current(approval) == arguments | {"amount": Decimal("184.50")}


def test_a_stale_form_is_409_with_the_fresh_view(olga: Client) -> None:
    approval = factories.approval()
    stale = typed(olga, approval)
    services.edit(
        factories.operator("ann"), approval.pk, version=1, arguments={"order": "1042", "amount": "7.00"}
    )
    response = olga.post(url(approval), stale)
    html = response.content.decode()
    assert response.status_code == 409
    assert "This request has changed since the page was loaded" in html
    assert "7.00" in html
    approval.refresh_from_db()
    assert approval.version == 2


def test_a_rejected_request_is_409_and_names_who_decided(olga: Client) -> None:
    approval = factories.approval()
    sent = typed(olga, approval)
    by_key = names(olga, approval)
    services.decide(
        factories.operator("ann"),
        approval.pk,
        version=1,
        digest=approval.digest,
        verdict="reject",
        reason="no",
    )
    response = olga.post(url(approval), sent | {by_key["amount"]: "5"})
    assert response.status_code == 409
    assert "rejected by ann" in response.content.decode()


def test_an_approval_that_the_run_has_not_taken_over_can_still_be_edited(olga: Client) -> None:
    approval = factories.approval()
    services.decide(factories.operator(), approval.pk, version=1, digest=approval.digest, verdict="approve")
    assert send(olga, approval, amount="5").status_code == 302
    assert approval.state == "open"


def test_a_double_click_makes_one_version(olga: Client) -> None:
    approval = factories.approval()
    sent = typed(olga, approval) | {names(olga, approval)["amount"]: "5"}
    assert olga.post(url(approval), sent).status_code == 302
    assert olga.post(url(approval), sent).status_code == 409
    approval.refresh_from_db()
    assert approval.version == 2


@pytest.mark.parametrize("method", ["put", "delete", "patch"])
def test_other_methods_are_refused(method: str, olga: Client) -> None:
    assert getattr(olga, method)(url(factories.approval())).status_code == 405


@pytest.mark.parametrize("who", [factories.support, factories.stranger])
def test_a_wrong_role_gets_403(who: Any, sign_in: SignIn) -> None:
    approval, client = factories.approval(), sign_in(who())
    assert client.get(url(approval)).status_code == 403
    assert client.post(url(approval), {"version": "1"}).status_code == 403
    assert ApprovalVersion.objects.count() == 1


def test_an_anonymous_visitor_is_led_to_the_sign_in_page() -> None:
    assert Client().post(url(factories.approval()))["Location"].startswith("/sign-in/")
