"""Items of the inbox that are no approvals, and the forms on items of any kind: who may, stale pages, twice, unknown ones."""

import re
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from django.contrib.auth.models import Permission, User
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from approvals import services
from approvals.models import Approval, Comment, Item, ItemKind, ReadMark
from approvals.policies import declared
from runs import clock
from runs.lifecycle import Actor
from runs.models import Event, Run
from runs.models.run import new_id
from runs.states import Outcome, Status
from tests import factories
from tests.approvals.views.conftest import SignIn
from tests.races import at_one_instant

pytestmark = pytest.mark.django_db

declared.policy("items_admins", groups=["admins"])

#: Each form, as the page of an item that nobody has touched would send it.
FORMS: dict[str, dict[str, Any]] = {
    "claim": {"seen": 0},
    "release": {"seen": 0},
    "assign": {"seen": 0, "reason": "knows it"},
    "snooze": {"seen": 0, "minutes": 30},
    "wake": {"seen": 0},
    "comment": {"token": "11111111-1111-4111-8111-111111111111", "text": "seen"},
}


def made(kind: ItemKind) -> uuid.UUID:
    """An item of a kind that waits."""
    if kind == ItemKind.APPROVAL:
        return factories.approval().pk
    if kind == ItemKind.DOUBT:
        return factories.doubt().run_id
    return factories.run(Status.ATTENTION if kind == ItemKind.STUCK else Status.FAILED).pk


def url(verb: str, kind: str, item: uuid.UUID) -> str:
    return reverse(f"approvals:{verb}", args=[kind, item])


def send(client: Client, verb: str, item: uuid.UUID, kind: str = "approval", **changes: Any) -> HttpResponse:
    return client.post(url(verb, kind, item), FORMS[verb] | changes)  # type: ignore[return-value]


def text_of(response: HttpResponse) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", response.content.decode()).split())


def pk(actor: Actor) -> int:
    return cast(User, actor.user).pk


def to(actor: Actor, verb: str) -> dict[str, Any]:
    """Whom to assign it to; nothing for the other forms."""
    return {"to": pk(actor)} if verb == "assign" else {}


def known(item: uuid.UUID) -> Item:
    return Item.objects.get(item_id=item)


# --- pages ---------------------------------------------------------------------------------------------------------------


def test_the_last_error_of_an_item_is_no_pause_of_the_engine(sign_in: SignIn) -> None:
    run = Run.objects.get(pk=made(ItemKind.STUCK))
    factories.attempt(run, error_type="ServiceUnavailable", error="503")
    paused = {"error_type": "BackOff", "error": "it could not be looked up", "outcome": Outcome.SUSPENDED}
    factories.attempt(run, attempt_no=2, **paused)
    page = sign_in(factories.support()).get(url("item", ItemKind.STUCK, run.pk)).content.decode()
    assert "ServiceUnavailable" in page
    assert "BackOff" not in page


@pytest.mark.parametrize("kind", [kind for kind in ItemKind if kind != ItemKind.APPROVAL])
def test_the_page_of_an_item_says_what_happened_and_what_would_move_it_on(
    kind: ItemKind, sign_in: SignIn
) -> None:
    item, verb = made(kind), {"doubt": "answer", "stuck": "Force the run on", "dead": "Retry step pack"}
    client = sign_in(factories.support())
    for name in ("item", "item_now"):
        html = client.get(url(name, kind, item)).content.decode()
        assert (verb[kind] if kind != ItemKind.DOUBT else "Say whether book_courier happened") in html
    told = {"HX-Request": "true"}
    first = client.get(url("item_now", kind, item), headers=told)
    again = client.get(url("item_now", kind, item), headers=told | {"HX-PTag": first["HX-PTag"]})
    assert again.status_code == 304


def test_the_page_of_an_approval_is_its_own(olga: Client) -> None:
    item = made(ItemKind.APPROVAL)
    response = olga.get(url("item", "approval", item) + "?kind=approval")
    assert response["Location"].startswith(reverse("approvals:approval", args=[item]))
    assert olga.get(url("item_now", "approval", item)).status_code == 404


@pytest.mark.parametrize("name", ["item", "item_now"])
def test_unknown_items_and_kinds_are_404(name: str, olga: Client) -> None:
    assert olga.get(url(name, "doubt", new_id())).status_code == 404
    assert olga.get(url(name, "whatever", made(ItemKind.DOUBT))).status_code == 404


def test_what_is_settled_stays_readable_without_a_verb(sign_in: SignIn) -> None:
    html = sign_in(factories.support()).get(url("item", "dead", made(ItemKind.STUCK))).content.decode()
    assert "No longer waits for anybody" in html and "Nothing is left to do here" in html


def test_what_errors_say_is_content_and_their_type_is_not(sign_in: SignIn) -> None:
    item = factories.failed("ValueError", "card 4111 refused").pk
    support = factories.support()
    assert "card 4111 refused" in sign_in(support).get(url("item", "dead", item)).content.decode()
    group = cast(User, support.user).groups.get()
    group.permissions.remove(Permission.objects.get(codename="view_payload"))
    html = sign_in(support).get(url("item", "dead", item)).content.decode()
    assert "4111" not in html and "ValueError" in html and "which your account may not see" in html


def test_the_number_of_queries_of_an_item(sign_in: SignIn, django_assert_max_num_queries: Any) -> None:
    client = sign_in(factories.support())
    for kind in (ItemKind.DOUBT, ItemKind.STUCK, ItemKind.DEAD):
        item = made(kind)
        with django_assert_max_num_queries(12):
            client.get(url("item", kind, item))


# --- every form ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [verb for verb in FORMS if verb != "assign"])
@pytest.mark.parametrize("method", ["get", "head", "put", "delete"])
def test_nothing_but_a_sent_form_does_anything(verb: str, method: str, olga: Client) -> None:
    item = made(ItemKind.APPROVAL)
    assert getattr(olga, method)(url(verb, "approval", item)).status_code == 405
    assert not Item.objects.exists()


@pytest.mark.parametrize("verb", FORMS)
def test_a_wrong_role_gets_403_and_an_anonymous_visitor_the_sign_in_page(verb: str, sign_in: SignIn) -> None:
    item = made(ItemKind.APPROVAL)
    changes = to(factories.operator(), verb)
    assert send(sign_in(factories.stranger()), verb, item, **changes).status_code == 403
    assert send(Client(), verb, item, **changes)["Location"].startswith("/sign-in/")
    assert not Item.objects.exists()


@pytest.mark.parametrize("verb", FORMS)
def test_an_unknown_item_or_kind_is_404(verb: str, olga: Client) -> None:
    changes = to(factories.operator(), verb)
    for kind in ItemKind:
        assert send(olga, verb, new_id(), kind, **changes).status_code == 404
    assert send(olga, verb, made(ItemKind.APPROVAL), "whatever", **changes).status_code == 404


@pytest.mark.parametrize("verb", FORMS)
def test_an_incomplete_form_comes_back(verb: str, olga: Client) -> None:
    item = made(ItemKind.APPROVAL)
    response = olga.post(url(verb, "approval", item), {})
    assert response.status_code == 422
    assert "Nothing was done" in response.content.decode()
    assert not Item.objects.exists()


@pytest.mark.parametrize("verb", ["claim", "release", "assign", "snooze", "wake"])
def test_a_page_that_is_older_than_the_item_changes_nothing_and_shows_it_as_it_is(
    verb: str, olga: Client
) -> None:
    item, olgas = made(ItemKind.APPROVAL), User.objects.get(username="olga")
    other = factories.operator("ann")
    # Two changes since the page was loaded, and a state in which each verb has something to do.
    Item.objects.create(
        kind="approval",
        item_id=item,
        run_id=Approval.objects.get(pk=item).run_id,
        version=2,
        claimed_by=olgas if verb == "release" else None,
        claimed_by_name="olga" if verb == "release" else "",
        claimed_at=clock.now() if verb == "release" else None,
        snoozed_until=clock.now() + timedelta(hours=1),
        snoozed_by="ann",
    )
    response = send(olga, verb, item, **to(other, verb))
    assert response.status_code == 409
    assert "Somebody has claimed, assigned or snoozed this since the page was loaded." in text_of(response)
    assert known(item).version == 2
    assert not Event.objects.filter(kind__startswith="item_").exists()


@pytest.mark.parametrize("verb", ["claim", "assign", "snooze"])
def test_what_was_decided_meanwhile_is_409_and_says_so(verb: str, olga: Client) -> None:
    approval, ann = factories.approval(), factories.operator("ann")
    services.decide(ann, approval.pk, version=1, digest=approval.digest, verdict="approve")
    response = send(olga, verb, approval.pk, **to(ann, verb))
    assert response.status_code == 409
    assert "This request is no longer open: approved." in text_of(response)
    assert not Item.objects.exists()


# --- what each does, and does once ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ItemKind)
def test_an_item_of_each_kind_is_claimed_and_released_and_each_once(kind: ItemKind, sign_in: SignIn) -> None:
    item, client = made(kind), sign_in(factories.admin("ada"))
    for expected in ("You have claimed this.", "You had already claimed this."):
        response = send(client, "claim", item, kind)
        assert response.status_code == 302
        assert expected in client.get(response["Location"]).content.decode()
    assert known(item).claimed_by_name == "ada"
    for seen, expected in ((1, "You have released this."), (1, "Nobody has claimed this.")):
        response = send(client, "release", item, kind, seen=seen)
        assert expected in client.get(response["Location"]).content.decode()
    assert known(item).claimed_by_name == ""
    kinds = Event.objects.filter(kind__startswith="item_").order_by("seq").values_list("kind", flat=True)
    assert list(kinds) == ["item_claimed", "item_released"]


def test_a_second_person_is_told_who_has_it_and_cannot_release_it(sign_in: SignIn) -> None:
    item = made(ItemKind.APPROVAL)
    ann, bob = sign_in(factories.operator("ann")), sign_in(factories.operator("bob"))
    send(ann, "claim", item)
    for verb, told in (("claim", "Already claimed by ann."), ("release", "Claimed by ann, not by you.")):
        response = send(bob, verb, item, seen=1)
        assert (response.status_code, told in text_of(response)) == (409, True)
    assert known(item).claimed_by_name == "ann"


def test_whoever_could_not_act_on_it_cannot_claim_it(sign_in: SignIn) -> None:
    item = factories.approval(policy="items_admins").pk
    assert send(sign_in(factories.operator()), "claim", item).status_code == 403
    assert send(sign_in(factories.support()), "claim", made(ItemKind.APPROVAL)).status_code == 403
    assert not Item.objects.exists()


def test_it_is_assigned_to_one_of_those_who_may_act_and_once(olga: Client) -> None:
    item, bob, support = made(ItemKind.APPROVAL), factories.operator("bob"), factories.support("sue")
    html = olga.get(url("assign", "approval", item)).content.decode()
    offered = html[html.index('id="assign-to"') : html.index("</select>")]
    assert "bob" in offered and "sue" not in offered
    response = send(olga, "assign", item, to=pk(support))
    assert (response.status_code, "Sue may not act" in text_of(response)) == (422, True)
    assert send(olga, "assign", item, to=10**9).status_code == 422
    for _ in range(2):
        assert send(olga, "assign", item, to=pk(bob)).status_code == 302
    assert known(item).claimed_by_name == "bob"
    event = Event.objects.get(kind="item_assigned")
    assert (event.actor, event.reason, event.data["to"]) == ("olga", "knows it", "bob")


def test_it_is_snoozed_for_a_length_that_is_offered_and_woken_and_each_once(olga: Client) -> None:
    item = made(ItemKind.APPROVAL)
    assert send(olga, "snooze", item, minutes=31).status_code == 422
    # The last one would outlast the approval's time limit.
    assert "nobody would have seen it again" in text_of(send(olga, "snooze", item, minutes=4320))
    for _ in range(2):
        assert send(olga, "snooze", item, minutes=30).status_code == 302
    assert known(item).snoozed_by == "olga"
    assert "Nothing waits for you" in olga.get(reverse("approvals:inbox")).content.decode()
    for seen in (1, 1):
        assert send(olga, "wake", item, seen=seen).status_code == 302
    assert known(item).snoozed_until is None
    assert Event.objects.filter(kind="item_snoozed").count() == 1
    assert Event.objects.filter(kind="item_woken").count() == 1


@pytest.mark.parametrize("kind", ItemKind)
def test_a_comment_is_there_once_however_often_it_is_sent(kind: ItemKind, sign_in: SignIn) -> None:
    item, client = made(kind), sign_in(factories.admin("ada"))
    for _ in range(2):
        response = send(client, "comment", item, kind, text="<b>look</b> at the photo")
    html = client.get(response["Location"]).content.decode()
    assert "&lt;b&gt;look&lt;/b&gt; at the photo" in html
    assert Comment.objects.count() == 1
    assert Event.objects.filter(kind="item_commented").count() == 1


def test_a_comment_that_is_refused_stays_typed(olga: Client) -> None:
    item = made(ItemKind.APPROVAL)
    response = send(olga, "comment", item, text="x" * 4001)
    assert response.status_code == 422 and "x" * 4001 in response.content.decode()
    assert send(olga, "comment", item, text="  ").status_code == 422
    assert not Comment.objects.exists()


def test_reading_marks_it_for_oneself_alone(olga: Client) -> None:
    item = made(ItemKind.APPROVAL)
    assert olga.get(url("read_mark", "approval", item)).status_code == 405
    assert olga.post(url("read_mark", "approval", new_id())).status_code == 404
    assert olga.post(url("read_mark", "approval", item)).status_code == 302
    assert olga.post(url("read_mark", "approval", item), headers={"HX-Request": "true"}).status_code == 204
    assert [(mark.user.username, mark.item_id) for mark in ReadMark.objects.select_related("user")] == [
        ("olga", item)
    ]


# --- at one instant --------------------------------------------------------------------------------------------------------


def _claims(client: Client, item: uuid.UUID) -> Callable[[], HttpResponse]:
    return lambda: send(client, "claim", item)


@pytest.mark.django_db(transaction=True)
def test_of_two_claims_at_one_instant_one_holds_it_and_the_other_is_told_by_whom(sign_in: SignIn) -> None:
    approval = factories.approval()
    names = ("ann", "bob")
    clients = [sign_in(factories.operator(name)) for name in names]
    callers = at_one_instant(approval.run_id, *[_claims(client, approval.pk) for client in clients])
    assert [caller.error for caller in callers] == [None, None]
    answers = {name: caller.result for name, caller in zip(names, callers, strict=True)}
    holder = known(approval.pk).claimed_by_name
    (other,) = set(names) - {holder}
    assert answers[holder].status_code == 302
    assert answers[other].status_code == 409
    assert f"Already claimed by {holder}." in text_of(answers[other])
    assert [event.actor for event in Event.objects.filter(kind="item_claimed")] == [holder]


@pytest.mark.django_db(transaction=True)
def test_a_double_click_on_claim_at_one_instant_is_one_claim(sign_in: SignIn) -> None:
    approval, client = factories.approval(), sign_in(factories.operator("ann"))
    callers = at_one_instant(approval.run_id, *[_claims(client, approval.pk)] * 2)
    assert [caller.result.status_code for caller in callers] == [302, 302]
    assert Event.objects.filter(kind="item_claimed").count() == 1
