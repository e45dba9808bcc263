"""Adding a person, who signs in with a link that is shown once."""

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from agentops.people import services
from runs.errors import Invalid, NotAllowed, NotFound
from runs.models import AuditEvent
from tests import factories
from tests.agentops.people.test_grant import desk
from tests.runs.views.people import client

pytestmark = pytest.mark.django_db

PASSWORD = "brass-lamp-without-plug"


def group(name: str) -> int:
    return Group.objects.get(name=name).pk


def test_a_person_is_there_with_groups_and_without_a_password_and_the_audit_tells():
    made = services.add_person(
        factories.admin("ada"), "olivia", first_name="Olivia", group_ids=[group("operators")], reason="new"
    )
    person = User.objects.get(username="olivia")
    assert (person.first_name, person.is_staff, person.is_superuser) == ("Olivia", False, False)
    assert not person.has_usable_password()
    event = AuditEvent.objects.get()
    assert (event.kind, event.target, event.old) == ("person_added", "person olivia", None)
    assert event.new == {"groups": ["operators"], "active": True, "grants": []}
    assert made.token not in str(event.new)


@pytest.mark.parametrize("name", ["", "  ", "o" * 151, "olivia smith", "olivia\u202e"])
def test_what_is_no_name_is_refused(name: str):
    with pytest.raises(Invalid):
        services.add_person(factories.admin(), name, reason="x")


def test_a_name_that_is_taken_is_refused_also_in_other_case():
    factories.user("olivia")
    for name in ("olivia", "Olivia"):
        with pytest.raises(Invalid, match=r"already|exists"):
            services.add_person(factories.admin(), name, reason="x")


def test_whoever_manages_people_only_adds_nobody_to_other_groups_than_their_own():
    services.add_person(desk(), "olivia", reason="x")
    with pytest.raises(NotAllowed):
        services.add_person(desk(), "jun", group_ids=[group("admins")], reason="x")
    assert not User.objects.filter(username="jun").exists()


def test_a_group_that_is_not_there_or_no_permission_adds_nobody():
    with pytest.raises(NotFound):
        services.add_person(factories.admin(), "olivia", group_ids=[10**6], reason="x")
    with pytest.raises(NotAllowed):
        services.add_person(factories.support(), "olivia", reason="x")
    assert not User.objects.filter(username="olivia").exists()


# --- the link ------------------------------------------------------------------------------------------------------------


def added() -> str:
    """The path of the link that the page of a new person shows."""
    given = {"username": "olivia", "groups": [group("operators")], "reason": "new here"}
    page = client("admins").post("/people/add/", given)
    assert page.status_code == 200
    html = page.content.decode()
    assert "olivia was added and may sign in with a link" in html
    address = html.partition("<code>")[2].partition("</code>")[0]
    assert address.startswith("http://testserver/sign-in/first/")
    return address.removeprefix("http://testserver")


def choose(browser: Client, path: str, password: str = PASSWORD) -> int:
    form = browser.get(path, follow=True)
    if not form.redirect_chain:
        return form.status_code
    given = {"new_password1": password, "new_password2": password}
    return browser.post(form.redirect_chain[-1][0], given).status_code


def test_the_link_lets_its_owner_choose_a_password_and_signs_them_in():
    browser, path = Client(), added()
    assert choose(browser, path) == 302
    assert browser.get("/approvals/").status_code == 200
    assert Client().login(username="olivia", password=PASSWORD)
    event = AuditEvent.objects.get(kind="password_changed")
    assert (event.actor, event.target, event.reason) == ("olivia", "person olivia", "by a sign-in link")


def test_a_password_that_is_too_weak_is_told_and_the_link_still_holds():
    browser, path = Client(), added()
    assert choose(browser, path, "olivia") == 422
    assert choose(browser, path) == 302


def test_a_used_link_says_so_and_changes_nothing():
    path = added()
    choose(Client(), path)
    page = Client().get(path)
    assert "This link does not hold any more" in page.content.decode()
    assert choose(Client(), path) == 200


def test_of_two_browsers_with_the_link_open_the_second_finds_it_used():
    path = added()
    first, second = Client(), Client()
    places = [browser.get(path, follow=True).redirect_chain[-1][0] for browser in (first, second)]
    one, other = (
        {"new_password1": word, "new_password2": word} for word in (PASSWORD, "copper-kettle-with-lid")
    )
    assert first.post(places[0], one).status_code == 302
    assert "does not hold" in second.post(places[1], other).content.decode()
    assert Client().login(username="olivia", password=PASSWORD)


def test_the_link_of_somebody_who_was_switched_off_holds_no_more():
    path = added()
    person = User.objects.get(username="olivia")
    services.switch_off(factories.admin(), person.pk, reason="x")
    assert "does not hold" in Client().get(path).content.decode()


def test_a_link_with_another_name_in_it_does_not_hold():
    path = added()
    other = factories.user()
    made = services.renew_link(factories.admin(), other.pk, reason="x")
    token = path.rstrip("/").rpartition("/")[2]
    assert "does not hold" in Client().get(f"/sign-in/first/{made.uid}/{token}/").content.decode()
    assert "does not hold" in Client().get("/sign-in/first/!!/x/").content.decode()
