"""The page of a parent shows its child runs, and the page of a child leads to its parent."""

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from runs import selectors
from runs.kin import offspring
from runs.models import Grant, Run
from runs.models.operation import Kind, OpStatus
from runs.pages import reasons
from runs.states import Status
from tests import factories
from tests.runs.engine.family import as_running, ended, parked, silently_ended
from tests.runs.views.people import client

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Client:
    return client("operators")


def page(browser: Client, run: Run, query: str = "") -> str:
    response = browser.get(f"/runs/{run.pk}/{query}")
    assert response.status_code == 200
    return response.content.decode()


def shown(html: str) -> list[str]:
    """Ids of the child runs in the table, in its order."""
    return re.findall(r'<tr id="child-([0-9a-f-]{36})"', html)


def test_a_run_without_children_has_no_such_section(operator: Client) -> None:
    assert "Child runs" not in page(operator, factories.run())


def test_the_children_that_failed_come_first_with_their_reason(operator: Client) -> None:
    run, _, made = parked(5)
    silently_ended(made[0])
    silently_ended(made[3], Status.FAILED)
    Run.objects.filter(pk=made[3].pk).update(reason="the city was not found")
    html = page(operator, run)
    assert shown(html) == [str(made[place].pk) for place in (3, 1, 2, 4, 0)]
    assert "Declared by the workflow: <bdi>the city was not found</bdi>" in html
    assert re.search(r"children=failed#children\"[^>]*>Failed <span class=\"n\">1</span>", html)
    assert re.search(r"Queued <span class=\"n\">3</span>", html)


def test_each_status_can_be_paged_through(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offspring, "ROWS", 2)
    run, _, made = parked(5)
    silently_ended(made[0])
    first = page(operator, run, "?children=queued")
    assert shown(first) == [str(made[1].pk), str(made[2].pk)]
    more = re.search(r'href="(\?children=queued&amp;after=[0-9a-f-]+)#children"', first)
    assert more
    second = page(operator, run, more[1].replace("&amp;", "&"))
    assert shown(second) == [str(made[3].pk), str(made[4].pk)]
    assert "Child runs, pages" not in second
    assert "2 are shown; choose a status to page through all." in page(operator, run)


@pytest.mark.parametrize(
    "query", ["?children=nonsense", "?children=queued&after=nonsense", "?children=failed"]
)
def test_what_is_no_page_shows_what_there_is(query: str, operator: Client) -> None:
    run, _, _ = parked(1)
    assert "Child runs" in page(operator, run, query)


def test_the_page_of_a_child_leads_to_its_parent(operator: Client) -> None:
    run, _, made = parked(3)
    html = page(operator, made[2])
    assert f'href="/runs/{run.pk}/"' in html
    assert "child 3, depth 1" in html


def test_the_sentence_counts_the_children_that_are_waited_for(operator: Client) -> None:
    run, _, made = parked(10)
    assert str(reasons.why(run)) == "10 child runs of f_child have not ended"
    for one in made[:7]:
        silently_ended(one)
    assert str(reasons.why(run)) == "3 of 10 child runs of f_child have not ended"
    assert "Waiting because 3 of 10 child runs of f_child have not ended." in page(operator, run)
    few, _, _ = parked(4, wanted=2)
    assert str(reasons.why(few)) == "4 child runs of f_child have not ended (2 are enough)"
    one, _, _ = parked(1)
    assert str(reasons.why(one)) == "a child run of f_child has not ended"


def test_children_that_somebody_may_not_see_are_not_counted_for_them(operator: Client) -> None:
    run, _, made = parked(3, wanted=2)
    approval = factories.approval(run)
    person = factories.user("nils", "operators")
    person.groups.clear()
    for capability in ("view", "approve"):
        Grant.objects.create(
            user=person, capability=capability, scope="workflow", name=run.workflow, granted_by="ada"
        )
    Grant.objects.create(user=person, capability="view", scope="subject", name="theirs", granted_by="ada")
    Run.objects.filter(pk__in=[one.pk for one in made]).update(workflow="letter", subject="")
    partly = Client()
    partly.force_login(person)

    def behind(browser: Client) -> str:
        return browser.get(reverse("approvals:approval", args=[approval.pk])).content.decode()

    assert "3 child runs" in behind(operator) and "child run" not in behind(partly)
    Run.objects.filter(pk=made[0].pk).update(subject="theirs 1")
    assert "1 child run" in behind(partly)
    run, _, made = parked(3, wanted=2)
    Run.objects.filter(pk__in=[one.pk for one in made]).update(workflow="letter", subject="")
    assert "3 child runs of f_child have not ended (2 are enough)" in page(operator, run)
    html = page(partly, run)
    assert "child runs of f_child have not ended" in html
    assert "3 child runs" not in html and "are enough" not in html
    assert "2 are enough" not in partly.get("/runs/").content.decode()


def test_a_list_of_parents_takes_as_many_queries_however_many_they_are(
    django_assert_num_queries: Any,
) -> None:
    some = [parked(3)[0] for _ in range(4)]
    with django_assert_num_queries(3):
        told = reasons.of_all(some)
    assert {str(why) for why in told.values()} == {"3 child runs of f_child have not ended"}


def test_the_page_of_a_parent_takes_at_most_twelve_queries(
    operator: Client, django_assert_max_num_queries: Any
) -> None:
    run, _, made = parked(30)
    silently_ended(made[0], Status.FAILED)
    with django_assert_max_num_queries(12):
        page(operator, run)


def test_the_page_changes_when_a_child_does() -> None:
    run, _, made = parked(2)
    before = selectors.version(run.pk)
    assert (before.children, selectors.version(run.pk).tag) == (2, before.tag)
    as_running(made[1])
    assert selectors.version(run.pk).tag != before.tag


def test_a_large_family_is_counted_up_to_a_limit(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "CHILDREN_COUNTED", 3)
    run, _, _ = parked(5)
    html = page(operator, run)
    assert "5 started, the first 10,000 counted" in html
    assert re.search(r"Queued <span class=\"n\">3</span>", html)


def test_an_approval_that_a_child_waits_for_stands_in_the_inbox(operator: Client) -> None:
    _, _, (child,) = parked(1)
    approval = factories.approval(child)
    html = operator.get("/approvals/").content.decode()
    assert str(approval.pk) in html


def test_what_hostile_children_say_is_text(operator: Client) -> None:
    run, _, (child,) = parked(1)
    Run.objects.filter(pk=child.pk).update(subject="<script>alert(1)</script>", reason="<b>\u202egnp.exe")
    html = page(operator, run)
    assert "<script>alert(1)" not in html
    assert "<b>\u202e" not in html


def test_an_ended_parent_still_shows_its_children(operator: Client) -> None:
    run, wait, _ = parked(2)
    ended(run)
    assert len(shown(page(operator, run))) == 2
    assert (wait.kind, OpStatus(wait.status)) == (Kind.CHILD, OpStatus.OPEN)
