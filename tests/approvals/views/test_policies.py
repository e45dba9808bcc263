"""Pages of policies."""

from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from approvals.models import Approval, Policy
from approvals.policies import declared, verbs
from tests import factories
from tests.people import SignIn

pytestmark = pytest.mark.django_db

declared.policy("page.data", groups=["operators"], when=lambda arguments: arguments["amount"] > 10)

TOOL = ["tool", "book_courier"]


@pytest.fixture
def ada(sign_in: SignIn) -> Client:
    return sign_in(factories.admin("ada"))


def rule(number: int = 1, **fields: Any) -> dict[str, Any]:
    """What the form sends for one rule."""
    typed = {
        "when": "amount > 100",
        "order": str(number),
        "groups": ["operators"],
        "users": "",
        "votes": "2",
        "exclude_starter": "on",
        "fresh_minutes": "",
        "time_limit": "24",
        "remind_every": "",
        "escalate_for": "24",
        "on_expiry": "reject",
        "sentence": "",
    } | fields
    return {f"rule-{number}-{name}": value for name, value in typed.items()}


def form(*rules: dict[str, Any], seen: int = 0, **more: Any) -> dict[str, Any]:
    sent: dict[str, Any] = {"rules": str(len(rules)), "seen_revision": str(seen), "reason": "because"}
    for one in rules:
        sent |= one
    return sent | more


def post(browser: Client, name: str, sent: dict[str, Any], *arguments: Any) -> Any:
    return browser.post(reverse(f"policies:{name}", args=arguments or TOOL), sent)


def test_the_list_shows_what_the_code_says_beside_what_data_says(ada, olga):
    verbs.set_policy(
        factories.admin(), *TOOL, rules=[{"groups": ["operators"], "when": "amount > 7", "votes": 2}]
    )
    page = olga.get(reverse("policies:list")).content.decode()
    assert "One vote of operators" in page
    assert "amount &gt; 7" in page and "2 different people of operators" in page
    assert "Force a run on" in page


def test_an_admin_sets_rules_in_the_order_that_was_typed(ada):
    sent = form(rule(1, order="2"), rule(2, order="1", when="amount > 1000", groups=["admins"], users="ada"))
    done = post(ada, "edit", sent)
    assert done.status_code == 302
    policy = Policy.objects.get()
    assert [one["when"] for one in policy.rules] == ["amount > 1000", "amount > 100"]
    assert policy.rules[0]["users"][0]["name"] == "ada"
    page = ada.get(done.headers["Location"]).content.decode()
    assert "If <code" in page and "because" in page


def test_a_rule_can_be_left_out_and_another_added(ada):
    post(ada, "edit", form(rule(1), rule(2, when="")))
    added = post(ada, "edit", form(rule(1), rule(2, when=""), seen=1, add="1"))
    assert added.status_code == 200 and "Rule 3" in added.content.decode()
    post(ada, "edit", form(rule(1, remove="on", votes="nonsense"), rule(2, when=""), seen=1))
    assert [one["when"] for one in Policy.objects.get().rules] == [""]


def test_a_preview_says_what_would_be_asked_and_changes_nothing(ada):
    factories.approval(tool="book_courier", arguments={"order": "1", "amount": Decimal(500)})
    page = post(ada, "edit", form(rule(1), preview="1")).content.decode()
    assert "2 different people of operators" in page
    assert "caught the only call" in page
    assert "nobody is there to give them" in page
    assert not Policy.objects.exists()


@pytest.mark.parametrize("button", ["preview", "add"])
def test_a_reason_is_asked_for_only_when_the_rules_are_to_act(ada, button):
    given = form(rule(1)) | {"reason": ""}
    assert "This field is required" not in post(ada, "edit", given | {button: "1"}).content.decode()
    assert "This field is required" in post(ada, "edit", given).content.decode()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"when": "amount >"}, "at character 9"),
        ({"when": "amuont > 5"}, "no field"),
        ({"users": "nobody-known"}, "nobody of this name"),
        ({"votes": "0"}, "greater than or equal to 1"),
        ({"on_expiry": "approve"}, "sentence says so"),
        ({"groups": []}, "who decides"),
    ],
)
def test_what_is_no_rule_is_shown_again_with_the_mistake_and_all_that_was_typed(ada, changes, says):
    answer = post(ada, "edit", form(rule(1, fresh_minutes="17", **changes)))
    assert answer.status_code == 422
    page = answer.content.decode()
    assert says in page and 'value="17"' in page
    assert not Policy.objects.exists()


def test_a_stale_form_changes_nothing_and_keeps_what_was_typed(ada):
    verbs.set_policy(factories.admin("bea"), *TOOL, rules=[{"groups": ["admins"]}])
    answer = post(ada, "edit", form(rule(1, when="amount > 4321")))
    page = answer.content.decode()
    assert answer.status_code == 409
    assert "changed by bea" in page and "amount &gt; 4321" in page
    assert 'name="seen_revision" value="1"' in page
    assert Policy.objects.get().revision == 1


def test_a_replayed_form_changes_nothing(ada):
    for _ in range(2):
        assert post(ada, "edit", form(rule(1))).status_code == 302
    assert Policy.objects.get().revision == 1


def test_back_to_the_code_and_back_again(ada):
    post(ada, "edit", form(rule(1)))
    assert "One vote" not in ada.get(reverse("policies:clear", args=TOOL)).content.decode()
    post(ada, "clear", {"seen_revision": "1", "reason": "enough"})
    assert not Policy.objects.get().active
    assert post(ada, "clear", {"seen_revision": "2", "reason": "enough"}).status_code == 302  # already
    preview = ada.get(reverse("policies:revert", args=[*TOOL, 1])).content.decode()
    assert "amount &gt; 100" in preview
    post(ada, "revert", {"seen_revision": "2", "reason": "after all"}, *TOOL, 1)
    assert (Policy.objects.get().active, Policy.objects.get().revision) == (True, 3)
    stale = post(ada, "clear", {"seen_revision": "1", "reason": "kept words"})
    assert stale.status_code == 409 and "kept words" in stale.content.decode()


def test_open_approvals_are_counted_and_asked_anew_on_demand(ada):
    asked = factories.approval(tool="book_courier", arguments={"order": "1", "amount": Decimal(500)})
    post(ada, "edit", form(rule(1)))
    assert "Apply the policy to them" in ada.get(reverse("policies:policy", args=TOOL)).content.decode()
    preview = ada.get(reverse("policies:reapply", args=TOOL)).content.decode()
    assert "1 open approval asks for something else" in preview
    post(ada, "reapply", {"seen_revision": "1", "reason": "now"})
    assert Approval.objects.get(pk=asked.pk).requirement["votes"] == 2


def test_an_expression_is_tried_without_changing_anything(olga):
    factories.approval(tool="book_courier", arguments={"order": "1", "amount": Decimal(500)})
    url = reverse("policies:tried", args=TOOL)
    assert "caught the only call" in olga.get(url, {"when": "amount > 100"}).content.decode()
    assert "none of 1 call" in olga.get(url, {"when": "amount > 1000"}).content.decode()
    wrong = olga.get(url, {"when": "amount > <b>"}).content.decode()
    assert "<mark>" in wrong and "&lt;b&gt;" in wrong and "<b>" not in wrong


def test_whoever_may_not_see_payloads_learns_nothing_by_trying(blindfolded):
    factories.approval(tool="book_courier", arguments={"order": "1", "amount": Decimal(500)})
    page = blindfolded.get(reverse("policies:tried", args=TOOL), {"when": "amount > 100"}).content.decode()
    assert "1 more is left out" in page and "would have caught" not in page


def test_only_admins_change_policies(olga, sign_in):
    assert "Set a policy" not in olga.get(reverse("policies:policy", args=TOOL)).content.decode()
    for name in ("edit", "clear", "reapply"):
        assert olga.get(reverse(f"policies:{name}", args=TOOL)).status_code == 403
        assert post(olga, name, form(rule(1))).status_code == 403
    assert sign_in(factories.stranger()).get(reverse("policies:list")).status_code == 403


@pytest.mark.parametrize("what", [["tool", "no_such"], ["planet", "book_courier"], ["verb", "fly"]])
def test_what_no_policy_can_be_about_is_not_found(ada, what):
    assert ada.get(reverse("policies:policy", args=what)).status_code == 404


def test_the_policy_of_a_verb_offers_only_what_a_verb_can_have(ada):
    verb = ["verb", "force_resume"]
    page = ada.get(reverse("policies:edit", args=verb)).content.decode()
    assert "And if nobody decides" not in page and "nothing is done" in page
    sent = form(rule(1, when='status == "waiting"'))
    del sent["rule-1-on_expiry"]
    assert post(ada, "edit", sent, *verb).status_code == 302


def test_each_page_makes_few_queries(ada, django_assert_max_num_queries):
    for number in range(3):
        factories.approval(tool="book_courier", arguments={"order": "1", "amount": Decimal(number)})
    post(ada, "edit", form(rule(1), rule(2, when="")))
    for name in ("list", "policy", "edit", "tried", "clear", "reapply"):
        url = reverse(f"policies:{name}", args=[] if name == "list" else TOOL)
        ada.get(url)
        with django_assert_max_num_queries(12):
            assert ada.get(url).status_code == 200
