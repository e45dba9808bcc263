"""Saved views of lists."""

import pytest
from django.test import Client
from django.urls import reverse

from agentops.models import SavedView
from agentops.saved_views import MOST
from tests.runs.views.people import client

pytestmark = pytest.mark.django_db


def save(browser: Client, **fields: str):
    given = {
        "page": "runs:list",
        "query": "status=failed&before=abc&workflow=parcel",
        "name": "Broken parcels",
    } | fields
    return browser.post(reverse("save_view"), given)


def menu(browser: Client, query: str = "") -> str:
    return browser.get(f"{reverse('runs:list')}{query}").content.decode()


def test_filters_are_kept_under_a_name_and_offered_as_a_link():
    browser = client("support")
    assert "Save these filters as" in menu(browser, "?workflow=parcel&status=failed")
    response = save(browser)
    assert response.headers["Location"] == f"{reverse('runs:list')}?status=failed&workflow=parcel"
    text = menu(browser)
    assert "Broken parcels" in text and "?status=failed&amp;workflow=parcel" in text
    again = menu(browser, "?workflow=parcel&status=failed")
    assert 'aria-current="true">' in again and "Save these filters as" not in again


def test_the_same_name_is_replaced():
    browser = client("support")
    save(browser)
    save(browser, query="status=attention")
    assert SavedView.objects.get().query == "status=attention"


def test_each_person_has_their_own():
    save(client("support"))
    other = client("support")
    assert "Broken parcels" not in menu(other)
    assert other.post(reverse("delete_view", args=[SavedView.objects.get().pk])).status_code == 404
    assert SavedView.objects.count() == 1


def test_a_view_is_deleted():
    browser = client("support")
    save(browser)
    response = browser.post(reverse("delete_view", args=[SavedView.objects.get().pk]))
    assert response.headers["Location"] == reverse("runs:list")
    assert not SavedView.objects.exists()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": ""}, "This field is required"),
        ({"name": "x" * 61}, "at most 60 characters"),
        ({"query": "before=abc"}, "There is no filter to save"),
        ({"page": "admin:index"}, "Views are kept for lists only"),
        ({"page": "https://evil.example/"}, "Views are kept for lists only"),
    ],
)
def test_what_cannot_be_kept_is_said(fields: dict[str, str], says: str):
    response = save(client("support"), **fields)
    assert response.status_code == 422 and says in response.content.decode()


def test_there_is_an_end_to_how_many():
    browser = client("support")
    save(browser)
    mine = SavedView.objects.get()
    for number in range(MOST - 1):
        SavedView.objects.create(user=mine.user, page=mine.page, name=f"view {number}", query="status=failed")
    assert save(browser, name="one more").status_code == 422
    assert save(browser).status_code == 302


def test_a_hostile_name_is_text():
    browser = client("support")
    save(browser, name="<img src=x onerror=alert(1)>", query="q=%3Cscript%3E")
    text = menu(browser)
    assert "<img src=x" not in text and "&lt;img src=x" in text


def test_runs_are_filtered_by_the_reason_why_they_do_not_move():
    from runs.states import Hold, Status
    from tests import factories

    held = factories.run(Status.QUEUED, held_by=Hold.RATE, subject="held one")
    factories.run(Status.FAILED, subject="failed one")
    text = menu(client("support"), "?reason=rate")
    assert reverse("runs:run", args=[held.pk]) in text and "failed one" not in text


@pytest.mark.parametrize(
    ("page", "query"),
    [
        ("runs:failures", "seen=day"),
        ("runs:bulks", "status=running"),
        ("runs:list", "q=7"),
        ("audit:list", "by=sam"),
    ],
)
def test_lists_have_the_menu(page: str, query: str):
    browser = client("support", "admins")
    assert "Save these filters as" in browser.get(f"{reverse(page)}?{query}").content.decode()
    assert save(browser, page=page, query=query).headers["Location"] == f"{reverse(page)}?{query}"
    text = browser.get(reverse(page)).content.decode()
    assert "Broken parcels" in text and f'href="{reverse(page)}?{query}"' in text


def test_views_of_people_have_a_page_of_their_own():
    browser, people = client("admins"), reverse("people:list")
    here = f"{reverse('views')}?page=people:list&query=q%3Dsam"
    assert here.replace("&", "&amp;") in browser.get(f"{people}?q=sam").content.decode()
    assert save(browser, page="people:list", query="q=sam").headers["Location"] == f"{people}?q=sam"
    assert "Broken parcels" in browser.get(here).content.decode()


def test_views_of_the_inbox_have_a_page_of_their_own():
    browser, inbox = client("operators"), reverse("approvals:inbox")
    text = browser.get(f"{inbox}?claim=me").content.decode()
    here = f"{reverse('views')}?page=approvals:inbox&query=show%3Dmine%26claim%3Dme"
    assert here.replace("&", "&amp;") in text
    text = browser.get(here).content.decode()
    assert "You have saved none yet." in text and f'href="{inbox}?claim=me&amp;show=mine"' in text
    save(browser, page="approvals:inbox", query="claim=me&show=mine", name="My own")
    text = browser.get(here).content.decode()
    assert "My own" in text and "Save these filters as" not in text


def test_there_is_no_page_of_views_for_what_is_no_list():
    assert client("support").get(f"{reverse('views')}?page=admin:index").status_code == 404
