"""The page of one request."""

import uuid
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from agentops.look.samples import HOSTILE
from approvals import services
from approvals.models import Approval
from approvals.policies import declared
from runs import clock, codec
from runs import services as run_services
from runs.lifecycle import Actor
from tests import factories
from tests.approvals.views.conftest import SignIn

pytestmark = pytest.mark.django_db

declared.policy("page_two", votes=2, time_limit=timedelta(hours=1), escalate_to=["support"])
declared.policy("page_fails", on_expiry="fail")
declared.policy("page_admins", groups=["admins"])


def url(approval: Approval) -> str:
    return reverse("approvals:approval", args=[approval.pk])


def page(client: Client, approval: Approval, **query: Any) -> str:
    response = client.get(url(approval), query)
    assert response.status_code == 200
    return response.content.decode()


def edited(approval: Approval, by: Actor, amount: str = "5.00") -> Approval:
    services.edit(by, approval.pk, version=approval.version, arguments={"order": "1042", "amount": amount})
    approval.refresh_from_db()
    return approval


def test_it_says_what_the_agent_wants_why_on_which_run_and_until_when(olga: Client) -> None:
    approval = factories.approval(why="The lamp is broken.", policy="page_two")
    html = page(olga, approval)
    for text in (
        "Book a courier for order 1042",
        "The lamp is broken.",
        "the agent&#x27;s words, not checked" if "agent&#x27;s" in html else "the agent's words, not checked",
        reverse("runs:run", args=[approval.run_id]),
        "then support may decide as well",
        "Open, 0 of 2 votes",
        "Approving is vote 1 of 2.",
        f'value="{approval.digest}"',
    ):
        assert text in html, text
    payload = html.partition('id="payload"')[2]
    assert payload.index("Order") < payload.index("Amount") < payload.index("10.00")


def test_the_fields_stand_in_the_order_of_the_tools_own_arguments(olga: Client) -> None:
    html = page(
        olga, factories.approval(schema={"properties": {"amount": {}, "order": {"title": "Order number"}}})
    )
    payload = html.partition('id="payload"')[2]
    assert payload.index("Order number") < payload.index(">Amount<")


def test_a_newer_version_is_shown_beside_the_one_before_and_void_votes_are_told(olga: Client) -> None:
    approval = factories.approval(policy="page_two")
    ann = factories.operator("ann")
    services.decide(ann, approval.pk, version=1, digest=approval.digest, verdict="approve")
    edited(approval, ann)
    html = page(olga, approval)
    assert '<del><span class="sr">was </span><bdi>10.00</bdi></del>' in html
    assert '<ins><span class="sr">now </span><bdi>5.00</bdi></ins>' in html
    assert "1 vote void" in html
    assert "Void since the edit" in html


def test_any_earlier_version_can_be_compared_with(olga: Client) -> None:
    approval = edited(
        edited(factories.approval(), factories.operator(), "7.00"), factories.operator(), "5.00"
    )
    assert '<del><span class="sr">was </span><bdi>7.00</bdi></del>' in page(olga, approval)
    assert '<del><span class="sr">was </span><bdi>10.00</bdi></del>' in page(olga, approval, base="1")
    assert '<del><span class="sr">was </span><bdi>7.00</bdi></del>' in page(olga, approval, base="99")


@pytest.mark.parametrize(("verdict", "word"), [("approve", "Approved by"), ("reject", "Rejected by")])
def test_a_decided_request_names_who_decided_and_offers_nothing_to_press(
    verdict: str, word: str, olga: Client
) -> None:
    approval = factories.approval()
    services.decide(
        factories.operator("ann"),
        approval.pk,
        version=1,
        digest=approval.digest,
        verdict=verdict,
        reason="because",
    )
    html = page(olga, approval)
    assert f"{word} ann" in html
    assert "“<bdi>because</bdi>”" in html
    assert 'value="approve"' not in html


def test_a_void_request_says_why(olga: Client) -> None:
    approval = factories.approval()
    run_services.cancel(factories.support(), approval.run_id)
    html = page(olga, approval)
    assert "Void: the run ended or was cancelled" in html
    assert "hx-trigger" not in html.partition('id="decision"')[2]


def test_whoever_may_not_decide_reads_why_and_has_no_button(olga: Client) -> None:
    html = page(olga, factories.approval(policy="page_admins"))
    assert "only members of admins may decide this" in html
    assert 'value="approve"' not in html


def test_past_its_time_limit_it_says_so(olga: Client) -> None:
    approval = factories.approval(policy="page_fails")
    clock.shift(timedelta(hours=25))
    assert "Its time limit passed" in page(olga, approval)


def test_payloads_are_a_permission_of_their_own(blindfolded: Client) -> None:
    approval = factories.approval(
        arguments={"order": "secret-order", "amount": Decimal(1)}, why="secret reason"
    )
    html = page(blindfolded, approval)
    assert "secret-order" not in html
    assert "secret reason" not in html
    assert 'value="approve"' not in html
    assert blindfolded.get(reverse("approvals:version", args=[approval.pk, 1])).status_code == 403
    assert blindfolded.get(reverse("approvals:edit", args=[approval.pk])).status_code == 403


def test_the_whole_payload_is_there_as_json(olga: Client) -> None:
    approval = factories.approval()
    response = olga.get(reverse("approvals:version", args=[approval.pk, 1]))
    assert response.json() == {"order": "1042", "amount": "10.00"}
    assert olga.get(reverse("approvals:version", args=[approval.pk, 2])).status_code == 404


def test_looking_decides_nothing(olga: Client) -> None:
    approval = factories.approval()
    for method in (olga.get, olga.head):
        for name in ("approval", "now", "edit"):
            assert method(reverse(f"approvals:{name}", args=[approval.pk])).status_code == 200
        assert method(reverse("approvals:decide", args=[approval.pk])).status_code == 405
    approval.refresh_from_db()
    assert (approval.state, approval.version, approval.votes.count()) == ("open", 1, 0)


def test_who_may_not_look_gets_403_and_an_anonymous_visitor_the_sign_in_page(sign_in: SignIn) -> None:
    approval = factories.approval()
    for name in ("approval", "now"):
        address = reverse(f"approvals:{name}", args=[approval.pk])
        assert sign_in(factories.stranger()).get(address).status_code == 403
        assert Client().get(address)["Location"].startswith("/sign-in/")
        assert Client().get(address, headers={"HX-Request": "true"}).status_code == 401


def test_an_unknown_request_is_404(olga: Client) -> None:
    for name in ("approval", "now", "edit"):
        assert olga.get(reverse(f"approvals:{name}", args=[uuid.uuid4()])).status_code == 404


# --- polling -----------------------------------------------------------------------------------------------------------


def poll(client: Client, approval: Approval, seen: str = "1.open", ptag: str = "") -> Any:
    address = reverse("approvals:now", args=[approval.pk])
    return client.get(address, {"seen": seen}, headers={"HX-Request": "true", "HX-PTag": ptag})


def test_an_idle_poll_is_answered_304(olga: Client) -> None:
    approval = factories.approval()
    html = page(olga, approval)
    ptag = html.partition('id="decision"')[2].partition('hx-ptag="')[2].partition('"')[0]
    assert poll(olga, approval, ptag=ptag).status_code == 304


def test_a_vote_shows_up_and_the_form_stays(olga: Client) -> None:
    approval = factories.approval(policy="page_two")
    before = poll(olga, approval)
    services.decide(
        factories.operator("ann"), approval.pk, version=1, digest=approval.digest, verdict="approve"
    )
    after = poll(olga, approval, ptag=before["HX-PTag"])
    assert after.status_code == 200
    html = after.content.decode()
    assert "Open, 1 of 2 votes" in html
    assert 'value="approve"' in html


def test_a_new_version_takes_the_buttons_away_and_leaves_the_reason(olga: Client) -> None:
    approval = edited(factories.approval(), factories.operator("ann"))
    html = poll(olga, approval).content.decode()
    assert "made version 2 of it while you were reading" in html
    assert 'value="approve"' not in html
    assert approval.digest not in html
    assert 'id="reason"' in html
    assert "value=" not in html.partition('id="reason"')[2].partition(">")[0]


def test_a_decision_by_somebody_else_takes_the_buttons_away(olga: Client) -> None:
    approval = factories.approval()
    services.decide(
        factories.operator("ann"), approval.pk, version=1, digest=approval.digest, verdict="approve"
    )
    html = poll(olga, approval).content.decode()
    assert "Approved by ann while you were reading." in html
    assert 'value="approve"' not in html


@pytest.mark.parametrize("seen", ["", "x.open", "²", "1", "99999999999999999999.open"])
def test_a_poll_with_nonsense_is_harmless(seen: str, olga: Client) -> None:
    assert poll(olga, factories.approval(), seen=seen).status_code == 200


# --- hostile, large, many ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_strings_are_harmless_wherever_they_stand(text: str, olga: Client) -> None:
    text = codec.clean_text(text)
    approval = factories.approval(
        title=text,
        why=text,
        arguments={"order": text, "amount": Decimal(1), text: text, "list": [text, {text: text}]},
        schema={"properties": {"order": {"title": text, "description": text}}},
        name="a question",
    )
    for name in ("approval", "edit"):
        html = olga.get(reverse(f"approvals:{name}", args=[approval.pk])).content.decode()
        assert "<script>alert" not in html
        assert "onerror=alert(2)>" not in html
        assert not set("\u202e\u2066\U000e0069") & set(html.partition("<form")[0])


def test_a_large_payload_makes_a_page_of_bounded_size(olga: Client) -> None:
    approval = factories.approval(arguments={"text": "word " * 200_000, "order": "1"}, name="a question")
    assert len(olga.get(url(approval)).content) < 400_000


def test_the_number_of_queries_is_bounded(olga: Client, django_assert_max_num_queries: Any) -> None:
    approval = factories.approval(policy="page_two")
    for number in range(3):
        edited(approval, factories.operator(), f"{number}.50")
        services.decide(
            factories.operator(),
            approval.pk,
            version=approval.version,
            digest=approval.digest,
            verdict="approve",
        )
    for _ in range(3):
        factories.approval()
    with django_assert_max_num_queries(12):
        olga.get(url(approval))
    with django_assert_max_num_queries(12):
        poll(olga, approval)
