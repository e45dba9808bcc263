"""The list of what a person may decide."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from agentops.look.samples import HOSTILE
from approvals import services
from approvals.inbox import navigation
from approvals.models import Approval
from approvals.policies import declared
from runs import clock
from runs.states import Status
from tests import factories
from tests.approvals.views.conftest import SignIn

pytestmark = pytest.mark.django_db

INBOX = reverse("approvals:inbox")
LIST = reverse("approvals:list")

declared.policy("view_admins", groups=["admins"])
declared.policy("view_two", votes=2)


def due_in(approval: Approval, **delta: float) -> None:
    Approval.objects.filter(pk=approval.pk).update(expires_at=clock.now() + timedelta(**delta))


def test_it_shows_what_i_may_decide_grouped_by_how_soon(olga: Client) -> None:
    late, soon, later, never = (
        factories.approval(title=title) for title in ("is late", "is soon", "is later", "has no limit")
    )
    due_in(late, minutes=-6)
    due_in(soon, minutes=38)
    due_in(later, hours=5)
    Approval.objects.filter(pk=never.pk).update(expires_at=None)
    html = olga.get(INBOX).content.decode()
    order = [
        "Past target",
        "is late",
        "Due within two hours",
        "is soon",
        "Due within a day",
        "has no limit",
        "is later",
    ]
    places = [html.index(text) for text in order]
    assert places == sorted(places)


def test_beside_the_list_stands_the_first_request(olga: Client) -> None:
    approval = factories.approval()
    html = olga.get(INBOX).content.decode()
    assert reverse("approvals:decide", args=[approval.pk]) in html
    assert 'data-page="list"' in html


def test_nothing_waits_for_you(olga: Client) -> None:
    response = olga.get(INBOX)
    assert response.status_code == 200
    assert "Nothing waits for you" in response.content.decode()


def test_what_others_decide_is_shown_with_the_reason(olga: Client) -> None:
    factories.approval(policy="view_admins", title="for the admins")
    assert "for the admins" not in olga.get(INBOX).content.decode()
    html = olga.get(INBOX, {"show": "others"}).content.decode()
    assert "for the admins" in html
    assert "only members of admins may decide this" in html


def test_what_i_have_voted_on_is_among_the_others(sign_in: SignIn) -> None:
    person, approval = factories.operator(), factories.approval(policy="view_two")
    services.decide(person, approval.pk, version=1, digest=approval.digest, verdict="approve")
    html = sign_in(person).get(INBOX, {"show": "others"}).content.decode()
    assert "you have voted" in html


def test_support_sees_what_others_decide(sign_in: SignIn) -> None:
    factories.approval(title="not theirs")
    html = sign_in(factories.support()).get(INBOX, {"show": "others"}).content.decode()
    assert "not theirs" in html
    assert "Not yours to decide" in html


def test_what_has_been_decided_can_be_read_again(olga: Client) -> None:
    approval = factories.approval(title="done and over")
    person = factories.operator("ann")
    services.decide(person, approval.pk, version=1, digest=approval.digest, verdict="approve")
    html = olga.get(INBOX, {"show": "decided"}).content.decode()
    assert "done and over" in html
    assert "by <bdi>ann</bdi>" in html


def test_a_poll_is_answered_304_until_something_changes(olga: Client) -> None:
    factories.approval()
    first = olga.get(LIST, headers={"HX-Request": "true"})
    assert first.content.decode().lstrip().startswith('<section class="inbox-list"')
    told = {"HX-Request": "true", "HX-PTag": first["HX-PTag"]}
    assert olga.get(LIST, headers=told).status_code == 304
    factories.approval(title="new one")
    again = olga.get(LIST, headers=told)
    assert again.status_code == 200
    assert "new one" in again.content.decode()


@pytest.mark.parametrize("url", [INBOX, LIST])
def test_writing_to_it_is_refused(url: str, olga: Client) -> None:
    assert olga.post(url).status_code == 405


@pytest.mark.parametrize("url", [INBOX, LIST])
def test_a_person_in_no_group_gets_403_and_an_anonymous_one_the_sign_in_page(
    url: str, sign_in: SignIn
) -> None:
    assert sign_in(factories.stranger()).get(url).status_code == 403
    response = Client().get(url)
    assert response.status_code == 302
    assert response["Location"].startswith("/sign-in/")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_titles_and_subjects_are_harmless(text: str, olga: Client) -> None:
    run = factories.run(Status.WAITING, subject=text.encode("utf-8", "replace").decode().replace("\x00", ""))
    factories.approval(run, title=text)
    html = olga.get(INBOX).content.decode()
    assert "<script>alert" not in html
    assert "onerror=alert(2)>" not in html
    assert "\u202e" not in html


def test_nonsense_in_the_query_string_is_harmless(olga: Client) -> None:
    factories.approval()
    assert olga.get(LIST, {"selected": "x", "show": "all", "before": "\x00"}).status_code == 200


def test_the_number_of_queries_does_not_grow_with_the_list(
    olga: Client, django_assert_max_num_queries: object
) -> None:
    for _ in range(5):
        factories.approval()
        factories.approval(policy="view_admins")
    for query in ({}, {"show": "others"}, {"show": "decided"}):
        with django_assert_max_num_queries(12):  # type: ignore[operator]
            olga.get(INBOX, query)
    with django_assert_max_num_queries(9):  # type: ignore[operator]
        olga.get(LIST)


def counts(html: str) -> dict[str, tuple[str, str]]:
    """Title and number beside the entries of the navigation."""
    nav = html[html.index('<nav class="nav"') : html.index("</nav>", html.index('<nav class="nav"'))]
    found = re.findall(r'</svg>(\w+)(?:<span class="count hot" title="([^"]+)">([^<]+)</span>)?</a>', nav)
    return {entry: (title, number) for entry, title, number in found if number}


def test_the_navigation_counts_all_that_the_inbox_shows(olga: Client, sign_in: SignIn) -> None:
    assert counts(olga.get(INBOX).content.decode()) == {}
    for _ in range(2):
        factories.approval()
    factories.approval(policy="view_admins")
    factories.doubt()
    factories.run(Status.ATTENTION)
    factories.run(Status.FAILED)
    html = olga.get(INBOX).content.decode()
    title = "Things in the inbox that you may act on"
    assert counts(html) == {"Inbox": (title, "3"), "Runs": ("Runs that need attention", "2")}
    assert "<title>(3) " in html
    assert counts(sign_in(factories.support()).get(INBOX).content.decode())["Inbox"] == (title, "3")
    assert counts(sign_in(factories.admin()).get("/runs/").content.decode())["Inbox"] == (title, "6")


def test_the_navigation_counts_no_further_than_its_limit(
    olga: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(navigation, "LIMIT", 2)
    for _ in range(4):
        factories.run(Status.ATTENTION)
    assert counts(olga.get(INBOX).content.decode())["Runs"][1] == "2+"


def test_a_polled_part_does_not_count_for_a_navigation_that_it_does_not_show(
    olga: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    factories.approval()
    monkeypatch.delattr(navigation, "waiting")
    assert olga.get(LIST).status_code == 200
