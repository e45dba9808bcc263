"""Several like approvals on one page, and one verdict for all that are ticked."""

import html as htmllib
import re
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, cast

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from agentops.look.samples import HOSTILE
from approvals import services
from approvals.inbox import listing, together
from approvals.models import Approval, Vote
from approvals.policies import declared
from runs import clock, codec
from runs import services as run_services
from runs.models import Event
from runs.models.run import new_id
from runs.states import Status
from tests import factories
from tests.approvals.views.conftest import SignIn
from tests.races import Caller, run_held, wait_until_blocked

pytestmark = pytest.mark.django_db

PAGE = reverse("approvals:together")

declared.policy("together_two", votes=2)
declared.policy("together_admins", groups=["admins"])


def like(number: int, **options: Any) -> list[Approval]:
    """So many requests of one tool in one step, whose amounts differ."""
    return [
        factories.approval(
            title=f"courier {n}", arguments={"order": "1042", "amount": Decimal(f"{n + 1}.50")}, **options
        )
        for n in range(number)
    ]


def of(approvals: Sequence[Approval]) -> dict[str, list[str]]:
    return {"id": [str(one.pk) for one in approvals]}


def look(client: Client, approvals: Sequence[Approval]) -> str:
    response = client.get(PAGE, of(approvals))
    assert response.status_code == 200
    return response.content.decode()


def ticks(html: str) -> list[str]:
    """What the check boxes of a page would send."""
    found = re.findall(r'<input type="checkbox" name="item" value="([^"]+)"( checked)?', html)
    return [htmllib.unescape(value) for value, ticked in found if ticked]


def send(client: Client, items: Sequence[str], verdict: str = "approve", **changes: Any) -> HttpResponse:
    form = {"item": list(items), "verdict": verdict, "reason": "seen"} | changes
    address = PAGE + "?" + "&".join(f"id={item.partition('.')[0]}" for item in items)
    return client.post(address, form)  # type: ignore[return-value]


def results(client: Client, response: HttpResponse) -> str:
    """What became of them, as text."""
    assert response.status_code == 302
    html = client.get(response["Location"]).content.decode()
    part = html[html.index('id="results"') : html.index("</ul>", html.index("together-results"))]
    return " ".join(htmllib.unescape(re.sub(r"<[^>]+>", " ", part)).split())


def states(approvals: Sequence[Approval]) -> list[str]:
    return [str(Approval.objects.values_list("state", flat=True).get(pk=one.pk)) for one in approvals]


# --- what the page shows -------------------------------------------------------------------------------------------------


def test_what_is_the_same_is_told_once_and_what_differs_stands_in_the_table(olga: Client) -> None:
    html = look(olga, like(3))
    head, _, table = html.partition('id="differs"')
    same = head[head.index('id="same"') :]
    assert "The same in all 3" in same and "Order" in same and "1042" in same
    assert "Amount" not in same
    assert re.findall(r'data-label="(\w+)"', table) == ["Amount", "Due"] * 3
    assert [amount in table for amount in ("1.50", "2.50", "3.50")] == [True] * 3
    assert "7.50" in head, "the amounts of all, added up"
    assert len(ticks(html)) == 3


def test_a_field_that_some_do_not_have_differs(olga: Client) -> None:
    schema = {"type": "object", "properties": {"order": {"type": "string"}, "note": {"type": "string"}}}
    made = [
        factories.approval(name="ask", arguments=given, schema=schema)
        for given in ({"order": "1"}, {"order": "1", "note": "fragile"})
    ]
    html = look(olga, made)
    assert "fragile" in html and "not given" in html


def test_long_texts_are_shown_from_where_they_part(olga: Client) -> None:
    begin = "Dear customer, " + "we are sorry about this parcel. " * 20
    made = [
        factories.approval(name="ask", arguments={"text": f"{begin} Yours, {who}"}, schema={"type": "object"})
        for who in ("Ann", "Bob")
    ]
    html = look(olga, made)
    assert "Yours, Ann" in html and "Yours, Bob" in html
    assert html.count("Dear customer") == 0


def test_fields_beyond_the_columns_are_shown_as_well(olga: Client) -> None:
    keys = [f"field{n}" for n in range(together.COLUMNS + 2)]
    made = [
        factories.approval(
            name="ask", arguments={key: f"{key} of {n}" for key in keys}, schema={"type": "object"}
        )
        for n in range(2)
    ]
    html = look(olga, made)
    assert all(f"{key} of {n}" in html for key in keys for n in range(2))


def test_unlike_ones_are_named_with_the_reason_and_a_page_of_their_own(olga: Client) -> None:
    couriers = like(2)
    labels = [factories.approval(name="print_label", title="label", arguments={"order": "7"})]
    elsewhere = [factories.approval(factories.run(Status.WAITING, step="ship"), title="shipped")]
    html = look(olga, couriers + labels + elsewhere)
    assert {tick.partition(".")[0] for tick in ticks(html)} == {str(one.pk) for one in couriers}
    part = html[html.index('id="left-out"') :]
    assert "print_label" in part and "in step <bdi>ship</bdi>" in part
    assert part.count("one verdict answers one question") == 2
    more = look(olga, [*like(1, name="print_label"), *labels, *couriers[:1]])
    assert "Decide on 2" in more


def test_those_that_cannot_be_decided_say_why(sign_in: SignIn) -> None:
    olga, ann = factories.operator("olga"), factories.operator("ann")
    decided, voted, admins, void = (
        like(1) + like(1, policy="together_two") + like(1, policy="together_admins") + like(1)
    )
    services.decide(ann, decided.pk, version=1, digest=decided.digest, verdict="approve")
    services.decide(olga, voted.pk, version=1, digest=voted.digest, verdict="approve")
    run_services.cancel(factories.support(), void.run_id)
    html = look(sign_in(olga), [decided, voted, admins, void])
    assert ticks(html) == []
    for why in (
        "Approved by <bdi>",
        "You have voted on it",
        "only members of admins may decide this",
        "Void",
    ):
        assert why.replace("<bdi>", "") in html


def test_nothing_chosen_unknown_ids_and_nonsense_are_an_empty_page(olga: Client) -> None:
    for query in ({}, {"id": [str(new_id())]}, {"id": ["x", "\x00", "9" * 5000, "'"]}):
        response = olga.get(PAGE, query)
        assert response.status_code == 200
        assert "Nothing is chosen" in response.content.decode()


def test_at_most_so_many_are_decided_at_once_and_the_page_says_so(
    olga: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "MOST", 2)
    html = look(olga, like(3))
    assert len(ticks(html)) == 2
    assert "1 more of those you chose still wait" in html


def test_who_may_not_see_payloads_sees_none_and_decides_nothing(blindfolded: Client) -> None:
    made = like(2)
    html = look(blindfolded, made)
    assert ticks(html) == []
    assert "1.50" not in html and "You cannot decide on what you may not see." in html
    response = send(blindfolded, [f"{one.pk}.1.{one.digest}" for one in made])
    assert "2 not yours to decide" in results(blindfolded, response)
    assert not Vote.objects.exists()


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_harmless(text: str, olga: Client) -> None:
    stored = codec.clean_text(text)
    made = []
    for n in range(2):
        run = factories.run(Status.WAITING, subject=stored)
        arguments = {"order": stored, stored or "x": f"{n} {stored}"}
        made.append(
            factories.approval(run, title=text, why=text, arguments=arguments, schema={"type": "object"})
        )
    html = look(olga, made)
    assert len(ticks(html)) == 2
    assert "<script>alert" not in html
    assert "onerror=alert(2)>" not in html
    assert "\u202e" not in html


def test_the_number_of_queries_does_not_grow(olga: Client, django_assert_max_num_queries: Any) -> None:
    made = like(12)
    with django_assert_max_num_queries(12):
        look(olga, made)


# --- deciding ------------------------------------------------------------------------------------------------------------


def test_one_verdict_and_one_reason_decide_each_that_is_ticked(olga: Client) -> None:
    made = like(3)
    response = send(olga, ticks(look(olga, made))[:2], reason="photos seen")
    assert "2 approved." in results(olga, response)
    assert states(made) == ["approved", "approved", "open"]
    votes = Vote.objects.order_by("at")
    assert [(vote.voter_name, vote.version, vote.reason) for vote in votes] == [
        ("olga", 1, "photos seen")
    ] * 2


def test_all_are_rejected_with_the_reason_that_each_agent_reads(olga: Client) -> None:
    made = like(2)
    response = send(olga, ticks(look(olga, made)), "reject", reason="paid already")
    assert "2 rejected." in results(olga, response)
    assert set(Approval.objects.values_list("state", "reason")) == {("rejected", "paid already")}


def test_what_has_changed_or_was_decided_meanwhile_is_left_and_the_others_go_on(sign_in: SignIn) -> None:
    ann, olga = factories.operator("ann"), sign_in(factories.operator("olga"))
    made = like(4)
    items = ticks(look(olga, made))
    services.edit(ann, made[1].pk, version=1, arguments={"order": "1042", "amount": "9.00"})
    services.decide(ann, made[2].pk, version=1, digest=made[2].digest, verdict="reject", reason="no")
    response = send(olga, items)
    told = results(olga, response)
    assert "2 approved. Not decided: 1 decided before or over, 1 changed since you looked." in told
    assert "Already rejected by ann." in told
    assert states(made) == ["approved", "open", "rejected", "approved"]
    assert not Vote.objects.filter(approval=made[1]).exists()
    # It is offered as it is now, to be read before it is ticked.
    html = olga.get(response["Location"]).content.decode()
    assert "9.00" in html and ticks(html) == []


def test_two_person_policies_hold_for_each(sign_in: SignIn) -> None:
    two, one = like(1, policy="together_two")[0], like(1)[0]
    olga, ann = sign_in(factories.operator("olga")), sign_in(factories.operator("ann"))
    html = look(olga, [two, one])
    assert "One of them needs another vote after yours." in html
    told = results(olga, send(olga, ticks(html)))
    assert "1 approved, 1 with your vote, waiting for another." in told
    assert states([two, one]) == ["open", "approved"]
    # Not with the same person's second vote.
    assert "decided so by you before" in results(olga, send(olga, ticks(html)))
    assert states([two]) == ["open"]
    assert "1 approved." in results(ann, send(ann, ticks(look(ann, [two]))))
    assert states([two]) == ["approved"]


def test_a_young_sign_in_is_asked_for_by_those_that_want_it_only(sign_in: SignIn) -> None:
    strict, easy = like(2)
    Approval.objects.filter(pk=strict.pk).update(requirement=strict.requirement | {"fresh_minutes": 15})
    client = sign_in(factories.operator("olga"))
    clock.shift(timedelta(minutes=16))
    html = look(client, [strict, easy])
    assert "1 of them wants your password to be not older than 15 minutes" in html
    response = send(client, ticks(html))
    assert "1 approved. Not decided: 1 waiting for your password." in results(client, response)
    assert states([strict, easy]) == ["open", "approved"]
    html = client.get(response["Location"]).content.decode()
    assert ticks(html) == [f"{strict.pk}.1.{strict.digest}"] and 'value="seen"' in html
    again = htmllib.unescape(re.findall(r'href="([^"]*sign-in/again/[^"]*)"', html)[0])
    back = client.post(again, {"password": "secret", "next": response["Location"]})
    assert back["Location"] == response["Location"]
    assert "1 approved." in results(client, send(client, ticks(html)))


# --- never twice ---------------------------------------------------------------------------------------------------------


def test_the_same_form_sent_again_decides_nothing_again(olga: Client) -> None:
    made = like(3)
    items = ticks(look(olga, made))
    first, second = send(olga, items), send(olga, items)
    assert first["Location"] == second["Location"]
    assert "Nothing was done. 3 decided so by you before." in results(olga, second)
    assert Vote.objects.count() == 3
    assert Event.objects.filter(kind="approval_decided").count() == 3


def test_the_form_of_another_verdict_sent_later_changes_nothing(olga: Client) -> None:
    made = like(2)
    items = ticks(look(olga, made))
    send(olga, items)
    assert "Nothing was done. 2 decided before or over." in results(olga, send(olga, items, "reject"))
    assert states(made) == ["approved", "approved"]


def test_a_second_person_in_another_browser_is_told_who_was_first(sign_in: SignIn) -> None:
    made = like(2)
    ann, bob = sign_in(factories.operator("ann")), sign_in(factories.operator("bob"))
    html = look(ann, made), look(bob, made)
    send(ann, ticks(html[0]))
    told = results(bob, send(bob, ticks(html[1]), "reject"))
    assert told.count("Already approved by ann.") == 2
    assert states(made) == ["approved", "approved"]
    assert Vote.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_two_forms_at_one_instant_decide_each_once() -> None:
    made, person = like(3), factories.operator("olga")

    def browser() -> tuple[Client, list[str]]:
        client = Client()
        client.force_login(cast(User, person.user))
        return client, ticks(look(client, made))

    browsers = [browser(), browser()]
    first = min(made, key=lambda one: one.pk)
    with run_held(first.run_id):
        callers = []
        for client, items in browsers:
            callers.append(Caller(lambda client=client, items=items: send(client, sorted(items))))  # type: ignore[misc]
            wait_until_blocked(len(callers))
    answers = [caller.join() for caller in callers]
    assert [answer.error for answer in answers] == [None, None]
    told = [results(client, answer.result) for (client, _), answer in zip(browsers, answers, strict=True)]
    assert sum(int(number) for text in told for number in re.findall(r"(\d) approved", text)) == 3
    assert states(made) == ["approved"] * 3
    assert Vote.objects.count() == 3
    assert Event.objects.filter(kind="approval_decided").count() == 3


# --- what is refused as a whole ------------------------------------------------------------------------------------------


def test_a_rejection_without_a_reason_and_a_form_without_a_tick_come_back(olga: Client) -> None:
    made = like(2)
    items = ticks(look(olga, made))
    response = send(olga, items[:1], "reject", reason=" ")
    assert response.status_code == 422
    assert "Say why you reject them" in response.content.decode()
    bare = olga.post(f"{PAGE}?id={made[0].pk}&id={made[1].pk}", {"verdict": "approve", "reason": "typed"})
    assert bare.status_code == 422
    html = bare.content.decode()
    assert "Tick at least one of them." in html and 'value="typed"' in html and ticks(html) == []
    assert not Vote.objects.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": "perhaps"},
        {"verdict": ""},
        {"reason": "x" * 2001},
        {"reason": "nul \x00"},
        {"item": ["x"]},
        {"item": ["x.1.d"]},
        {"item": [f"{new_id()}.99999999999.d"]},
        {"item": [f"{new_id()}.1.{'d' * 65}"]},
        {"item": [f"{new_id()}.1.d"] * 51},
    ],
)
def test_an_incomplete_form_decides_nothing(changes: dict[str, Any], olga: Client) -> None:
    made = like(2)
    assert send(olga, ticks(look(olga, made)), **changes).status_code == 422
    assert not Vote.objects.exists()


def test_a_made_up_form_of_unlike_ones_is_refused_as_a_whole(olga: Client) -> None:
    made = like(1) + like(1, name="print_label")
    response = send(olga, [f"{one.pk}.1.{one.digest}" for one in made])
    assert response.status_code == 422
    assert "one verdict answers one question" in response.content.decode()
    assert not Vote.objects.exists()


def test_a_wrong_digest_and_an_unknown_id_are_results_of_their_own(olga: Client) -> None:
    made = like(2)
    items = [f"{made[0].pk}.1.{'0' * 64}", f"{new_id()}.1.abc", f"{made[1].pk}.1.{made[1].digest}"]
    told = results(olga, send(olga, items))
    assert "1 approved. Not decided: 1 changed since you looked, 1 not yours to decide." in told
    assert "There is no such request." in told


@pytest.mark.parametrize("who", [factories.support, factories.stranger])
def test_a_wrong_role_gets_403(who: Any, sign_in: SignIn) -> None:
    made = like(2)
    response = send(sign_in(who()), [f"{one.pk}.1.{one.digest}" for one in made])
    assert response.status_code == 403
    assert not Vote.objects.exists()


def test_a_look_changes_nothing(olga: Client) -> None:
    (made,) = like(1)
    query = of([made]) | {"item": [f"{made.pk}.1.{made.digest}"], "verdict": ["approve"], "reason": ["x"]}
    assert olga.get(PAGE, query).status_code == 200
    assert olga.head(PAGE, query).status_code == 200
    assert olga.put(PAGE).status_code == 405
    assert not Vote.objects.exists()


def test_another_site_cannot_send_the_form() -> None:
    made = like(1)
    client = Client(enforce_csrf_checks=True)
    client.force_login(cast(User, factories.operator().user))
    assert send(client, [f"{made[0].pk}.1.{made[0].digest}"]).status_code == 403
    assert not Vote.objects.exists()


def test_an_anonymous_visitor_is_led_to_the_sign_in_page() -> None:
    assert Client().get(PAGE)["Location"].startswith("/sign-in/")
    assert Client().post(PAGE, {})["Location"].startswith("/sign-in/")


# --- from the inbox ------------------------------------------------------------------------------------------------------


def test_the_inbox_offers_a_tick_for_what_can_be_decided_and_the_way_to_those_alike(sign_in: SignIn) -> None:
    factories.doubt()
    made, (admins,) = like(2), like(1, policy="together_admins")
    client = sign_in(factories.operator())
    html = client.get(reverse("approvals:inbox")).content.decode()
    offered = re.findall(r'<input type="checkbox" id="tick-[^"]+" name="id" value="([^"]+)"', html)
    assert sorted(offered) == sorted(str(one.pk) for one in made)
    html = client.get(reverse("approvals:approval", args=[made[0].pk])).content.decode()
    link = htmllib.unescape(re.findall(r'href="([^"]*together/\?id=[^"]*)"', html)[0])
    assert len(ticks(client.get(link).content.decode())) == 2
    html = client.get(reverse("approvals:approval", args=[admins.pk]) + "?show=others").content.decode()
    assert 'name="id"' not in html


def offered(html: str) -> dict[str, str]:
    """The links above the list to those that are alike on it, by their words."""
    part = html.partition('<p class="alike">')[2].partition("</p>")[0]
    links = re.findall(r'<a href="([^"]+)"[^>]*>(.*?)</a>', part)
    return {
        " ".join(htmllib.unescape(re.sub(r"<[^>]+>", "", words)).split()): htmllib.unescape(url)
        for url, words in links
    }


def test_the_list_leads_in_one_link_to_all_that_are_alike_on_it(olga: Client) -> None:
    couriers, labels = like(3), like(2, name="print_label")
    like(1, name="ask")
    like(2, policy="together_admins")
    links = offered(olga.get(reverse("approvals:inbox")).content.decode())
    assert list(links) == ["3 × book_courier", "2 × print_label"], "most of them first"
    for alike, made in zip(links.values(), (couriers, labels), strict=True):
        ticked = [item.partition(".")[0] for item in ticks(olga.get(alike).content.decode())]
        assert sorted(ticked) == sorted(str(one.pk) for one in made)


def test_like_ones_of_two_workflows_are_told_apart(olga: Client) -> None:
    for workflow in ("parcel", "letter"):
        for _ in range(2):
            factories.approval(factories.run(Status.WAITING, workflow=workflow))
    links = offered(olga.get(reverse("approvals:inbox")).content.decode())
    assert sorted(links) == [f"2 × book_courier in {name}, step pack" for name in ("letter", "parcel")]


def test_nothing_is_offered_where_nothing_is_alike_or_mine_to_decide(olga: Client) -> None:
    like(1)
    like(1, name="print_label")
    like(2, policy="together_admins")
    for query in ({}, {"show": "others"}, {"show": "decided"}):
        assert offered(olga.get(reverse("approvals:inbox"), query).content.decode()) == {}


def test_a_page_of_the_list_never_offers_more_than_can_be_decided_together() -> None:
    assert listing.SIZE <= together.MOST
