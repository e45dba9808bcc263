"""Every address of people × every role: all of it is for whoever may manage people, and for nobody else."""

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import URLPattern, reverse

from agentops.people import urls
from tests import factories
from tests.agentops.people.test_pages import grant
from tests.runs.views.people import client, client_with

pytestmark = pytest.mark.django_db

#: Pages without a form; the others take POST.
LOOK = {"list", "groups", "who", "person", "group"}
NAMES = [pattern.name for pattern in urls.urlpatterns if isinstance(pattern, URLPattern)]


def address(name: str) -> str:
    person = factories.user("", "operators")
    given = {
        "user_id": person.pk,
        "group_id": Group.objects.get(name="operators").pk,
        "grant_id": grant(person, "view").pk,
    }
    pattern = next(one for one in urls.urlpatterns if one.name == name)
    return reverse(f"people:{name}", kwargs={one: given[one] for one in pattern.pattern.converters})


@pytest.mark.parametrize("name", NAMES)
def test_who_may_look_and_who_may_do(name: str):
    path = address(name)
    for browser in (
        client("operators"),
        client("support"),
        client(),
        client_with("view_run", "view_auditevent"),
    ):
        assert browser.get(path).status_code == 403
        assert browser.post(path, {}).status_code in (403, 405)
    for browser in (client("admins"), client_with("manage_people")):
        assert browser.get(path).status_code == 200
        # An empty form: whoever may is told what is missing.
        assert browser.post(path, {}).status_code == (405 if name in LOOK else 422)


@pytest.mark.parametrize("name", NAMES)
def test_an_anonymous_visitor_sees_the_sign_in_page_only(name: str):
    path = address(name)
    for answer in (Client().get(path), Client().post(path, {})):
        assert (answer.status_code, answer["Location"][:15]) == (302, "/sign-in/?next=")
