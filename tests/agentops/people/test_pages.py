"""The pages of people: the matrix, what one can do, who can do something, and the forms of the verbs."""

import re

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.people import services
from agentops.people.services import Whom
from runs.lifecycle import Actor
from runs.models import AuditEvent, Grant
from tests import factories
from tests.runs.views.people import client

pytestmark = pytest.mark.django_db


@pytest.fixture
def ada(db: None) -> Client:
    """A browser in which an administrator is signed in."""
    made = Client()
    made.force_login(factories.user("ada", "admins"))
    return made


def html(browser: Client, path: str) -> str:
    response = browser.get(path)
    assert response.status_code == 200, path
    return re.sub(r"\s+", " ", response.content.decode())


def text(page: str) -> str:
    """What a person reads."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def names(page: str) -> list[str]:
    return re.findall(r'<th scope="row"><a href="[^"]+"><bdi>([^<]+)</bdi>', page)


def grant(to: User | Group, capability: str, scope: str = "everything", name: str = "") -> Grant:
    whom = {"user": to} if isinstance(to, User) else {"group": to}
    return Grant.objects.create(capability=capability, scope=scope, name=name, granted_by="Ada", **whom)


#: Of which five are the frame's: session, person, permissions, what the navigation counts, and what is paused.
MOST_QUERIES = 12
#: Of a person and a group that hold things in every way, and of a grant of each.
PATHS = (
    "/people/",
    "/people/?state=off",
    "/people/?capability=operate&workflow=parcel",
    "/people/groups/",
    "/people/groups/?capability=operate&workflow=parcel",
    "/people/who/",
    "/people/who/?can=runs.retry_run&workflow=parcel&under=",
    "/people/who/?can=approvals.decide_approval&workflow=parcel&under=tool+book_courier",
    "/people/add/",
    "/people/groups/add/",
    "/people/{person}/",
    "/people/{off}/",
    "/people/{person}/grant/",
    "/people/{person}/grant/?capability=operate&scope=workflow&workflow=parcel",
    "/people/{person}/join/",
    "/people/{person}/join/?group={other}",
    "/people/{person}/leave/{group}/",
    "/people/{person}/leave/{other}/",
    "/people/{person}/off/",
    "/people/{off}/on/",
    "/people/{person}/link/",
    "/people/take-back/{own_grant}/",
    "/people/take-back/{group_grant}/",
    "/people/groups/{group}/",
    "/people/groups/{group}/grant/",
    "/people/groups/{group}/grant/?capability=administer&scope=subject&subject=order+",
)


# --- the matrix ----------------------------------------------------------------------------------------------------------


def test_the_matrix_tells_of_each_person_what_they_may_and_where(ada: Client):
    person = factories.user("olivia", "support")
    grant(person, "approve", "workflow", "parcel")
    page = html(ada, "/people/?q=olivia")
    assert names(page) == ["olivia"]
    cells = [text(cell).strip() for cell in re.findall(r'<td data-label="[^"]+"[^>]*>(.*?)</td>', page)]
    assert cells == ["Everywhere", "Everywhere", "workflow parcel", "Everywhere", "1 of 8"]


def test_names_capability_and_workflow_filter(ada: Client):
    factories.user("olivia", "operators")
    jun, kim = factories.user("jun", first_name="Juniper"), factories.user("kim")
    grant(jun, "approve", "workflow", "parcel")
    grant(kim, "approve", "workflow", "refund")
    assert names(html(ada, "/people/?capability=approve")) == ["ada", "jun", "kim", "olivia"]
    assert names(html(ada, "/people/?capability=approve&workflow=parcel")) == ["ada", "jun", "olivia"]
    assert names(html(ada, "/people/?capability=administer")) == ["ada"]
    assert names(html(ada, "/people/?workflow=refund")) == ["ada", "kim", "olivia"]
    assert names(html(ada, "/people/?q=unipe")) == ["jun"]
    assert "Nobody matches" in html(ada, "/people/?q=nobody")


def test_people_who_are_switched_off_stand_on_a_page_of_their_own(ada: Client):
    factories.user("olivia", "operators", is_active=False)
    assert names(html(ada, "/people/")) == ["ada"]
    assert names(html(ada, "/people/?state=off")) == ["olivia"]


def test_groups_have_their_matrix(ada: Client):
    grant(Group.objects.create(name="parcels"), "operate", "workflow", "parcel")
    assert {"admins", "operators", "parcels", "support"} <= set(names(html(ada, "/people/groups/")))
    assert names(html(ada, "/people/groups/?q=parc")) == ["parcels"]
    shown = names(html(ada, "/people/groups/?capability=operate&workflow=parcel"))
    assert {"admins", "support", "parcels"} <= set(shown)


def test_pages_follow_one_another_by_name_forth_and_back(ada: Client):
    for number in range(120):
        factories.user(f"p{number:03}")
    first = html(ada, "/people/?q=p")
    later = re.findall(r'href="([^"]+)" rel="next"', first)[0].replace("&amp;", "&")
    second = html(ada, f"/people/{later}")
    assert names(first)[-1] < names(second)[0]
    assert len(names(first)) == len(names(second)) == 50
    earlier = re.findall(r'href="([^"]+)" rel="prev"', second)[0].replace("&amp;", "&")
    assert names(html(ada, f"/people/{earlier}")) == names(first)
    assert "No more names" in html(ada, "/people/?after=zzz")


@pytest.mark.parametrize("path", PATHS)
def test_it_asks_the_database_at_most_twelve_things_however_many_people_hold_something(
    ada: Client, path: str
):
    factories.approval_policy()
    group, other = Group.objects.get(name="operators"), Group.objects.get(name="support")
    many = User.objects.bulk_create(User(username=f"p{number}", is_active=number > 0) for number in range(61))
    joined, permitted = User.groups.through, User.user_permissions.through
    joined.objects.bulk_create(joined(user=one, group=group) for one in many)
    retry = Permission.objects.get(codename="retry_run")
    permitted.objects.bulk_create(permitted(user=one, permission=retry) for one in many)
    off, person = many[0], many[1]
    own = [grant(one, "operate", "workflow", "parcel") for one in many][1]
    path = path.format(
        person=person.pk,
        off=off.pk,
        group=group.pk,
        other=other.pk,
        own_grant=own.pk,
        group_grant=grant(group, "operate", "workflow", "refund").pk,
    )
    with CaptureQueriesContext(connection) as asked:
        response = ada.get(path)
    assert response.status_code == 200
    assert len(asked) <= MOST_QUERIES, [one["sql"] for one in asked]


# --- one person, one group -----------------------------------------------------------------------------------------------


def test_a_page_says_what_a_person_can_do_where_and_through_what(ada: Client):
    person = factories.user("olivia", "operators", first_name="Olivia", last_name="Smith")
    found = grant(person, "operate", "workflow", "parcel")
    page = html(ada, f"/people/{person.pk}/")
    said = text(page)
    assert "What can olivia do?" in said
    assert "Sees runs, sees what is in them and decides approvals everywhere." in said
    assert "Operates runs of workflow parcel." in said
    assert "May also start runs, say whether an effect happened and declare workers gone, everywhere." in said
    assert "start runs, say whether an effect happened" in said
    assert f'href="/people/take-back/{found.pk}/"' in page
    assert "granted by Ada" in said


def test_a_page_says_what_a_stranger_cannot(ada: Client):
    person = factories.user("nora")
    assert "Nothing: no group and no grant lets them see a run." in text(html(ada, f"/people/{person.pk}/"))


def test_a_page_says_which_policies_let_a_person_decide_and_what_was_changed(ada: Client):
    factories.approval_policy()
    person = factories.user("olivia", "operators")
    services.grant(
        Actor.of(User.objects.get(username="ada")),
        Whom("person", person.pk),
        "operate",
        "workflow",
        "parcel",
        reason="helps out",
    )
    said = text(html(ada, f"/people/{person.pk}/"))
    assert "tool book_courier" in said
    assert "Granted Operate: workflow parcel by ada : helps out" in said


def test_the_page_of_a_group_shows_its_members(ada: Client):
    factories.user("olivia", "operators")
    group = Group.objects.get(name="operators")
    page = html(ada, f"/people/groups/{group.pk}/")
    assert "A group of 1 person." in text(page)
    assert "olivia" in text(page)


@pytest.mark.parametrize("path", ["/people/99999/", "/people/groups/99999/", "/people/99999/off/"])
def test_nobody_of_that_number_is_not_found(path: str, ada: Client):
    assert ada.get(path).status_code == 404


# --- who can? ------------------------------------------------------------------------------------------------------------


def test_who_can_do_something_in_a_workflow_and_how(ada: Client):
    jun = factories.user("jun")
    grant(jun, "operate", "workflow", "parcel")
    grant(factories.user("kim"), "operate", "workflow", "refund")
    page = html(ada, "/people/who/?can=runs.retry_run&workflow=parcel&under=")
    assert names(page) == ["ada", "jun"]
    assert "2 people can retry failed runs in workflow parcel" in text(page)
    assert "in workflow parcel, by a grant of their own" in text(page)


def test_who_can_approve_what_a_tool_asks_for_are_those_whom_its_policy_names(ada: Client):
    silent = Group.objects.create(name="silent")
    rule = {"groups": ["operators", "silent"], "votes": 2, "when": "amount > 100"}
    factories.approval_policy(rules=[rule])
    factories.user("olivia", "operators")
    jun = factories.user("jun")  # may decide, and is in no group that is named
    grant(jun, "approve", "workflow", "parcel")
    nora = factories.user("nora")  # may not decide, and is in the group
    silent.user_set.add(nora)
    every = html(ada, "/people/who/?can=approvals.decide_approval&workflow=parcel&under=")
    assert {"ada", "jun", "olivia"} <= set(names(every))
    assert "nora" not in names(every)
    page = html(ada, "/people/who/?can=approvals.decide_approval&workflow=parcel&under=tool+book_courier")
    assert names(page) == ["olivia"]
    assert "asks operators or silent for 2 votes where amount &gt; 100" in text(page)


def test_a_question_that_nobody_offers_is_told(ada: Client):
    assert ada.get("/people/who/?can=fly").status_code == 422
    assert ada.get("/people/who/?can=runs.retry_run&workflow=nonesuch").status_code == 422


# --- the forms of the verbs ----------------------------------------------------------------------------------------------


def sent(browser: Client, path: str, reason: str = "because", seen: str = ""):
    form = browser.get(path).context["form"]
    return browser.post(path, {"seen": seen or form.initial["seen"], "reason": reason})


def test_a_grant_is_chosen_first_then_explained_then_made(ada: Client):
    person = factories.user("olivia")
    factories.run(workflow="parcel")
    path = f"/people/{person.pk}/grant/"
    assert "Choose what" in html(ada, path)
    chosen = f"{path}?capability=approve&scope=workflow&workflow=parcel"
    said = text(html(ada, chosen))
    assert "olivia may decide approvals" in said
    assert "It reaches 1 run now, and all to come" in said
    assert not Grant.objects.exists(), "a GET changes nothing"
    done = sent(ada, chosen)
    assert done["Location"] == f"/people/{person.pk}/"
    assert Grant.objects.get().name == "parcel"
    assert "has been granted" in html(ada, f"/people/{person.pk}/")


def test_a_choice_that_is_half_made_says_what_is_missing(ada: Client):
    person = factories.user()
    assert ada.get(f"/people/{person.pk}/grant/?capability=view&scope=workflow").status_code == 422
    assert ada.get(f"/people/{person.pk}/grant/?capability=view&scope=subject&subject=+").status_code == 422


def test_a_stale_page_shows_what_is_so_now_and_keeps_what_was_typed(ada: Client):
    person = factories.user("olivia", "operators")
    operators = Group.objects.get(name="operators").pk
    response = sent(ada, f"/people/{person.pk}/leave/{operators}/", reason="has moved on", seen="0" * 64)
    assert response.status_code == 409
    page = response.content.decode()
    assert "has changed since the page was loaded" in page
    assert 'value="has moved on"' in page
    assert person.groups.exists()
    assert services.version(person) in page, "sent again, it is done"


def test_every_verb_of_a_person_works_from_its_page(ada: Client):
    person = factories.user("olivia", "operators")
    groups = {group.name: group.pk for group in Group.objects.all()}
    assert "in which" not in html(ada, f"/people/{person.pk}/join/")
    assert sent(ada, f"/people/{person.pk}/join/?group={groups['support']}").status_code == 302
    assert sent(ada, f"/people/{person.pk}/leave/{groups['operators']}/").status_code == 302
    assert [group.name for group in person.groups.all()] == ["support"]
    found = grant(person, "view")
    assert sent(ada, f"/people/take-back/{found.pk}/").status_code == 302
    assert "/sign-in/first/" in sent(ada, f"/people/{person.pk}/link/").content.decode()
    assert sent(ada, f"/people/{person.pk}/off/").status_code == 302
    assert "/sign-in/first/" in sent(ada, f"/people/{person.pk}/on/").content.decode()
    kinds = AuditEvent.objects.order_by("id").values_list("kind", flat=True)
    assert list(kinds) == [
        "group_joined",
        "group_left",
        "capability_taken_back",
        "sign_in_link_made",
        "person_switched_off",
        "person_switched_on",
    ]


def test_a_group_is_granted_something_and_gets_a_page_when_it_is_added(ada: Client):
    made = ada.post("/people/groups/add/", {"name": "parcels", "reason": "new team"})
    group = Group.objects.get(name="parcels")
    assert made["Location"] == f"/people/groups/{group.pk}/"
    chosen = f"/people/groups/{group.pk}/grant/?capability=operate&scope=subject&subject=order+"
    assert sent(ada, chosen)["Location"] == f"/people/groups/{group.pk}/"
    assert Grant.objects.get(group=group).name == "order "


def test_what_a_verb_takes_away_is_told_before(ada: Client):
    factories.approval_policy()
    person = factories.user("olivia", "operators")
    operators = Group.objects.get(name="operators")
    said = text(html(ada, f"/people/{person.pk}/leave/{operators.pk}/"))
    assert "No longer: approve (everywhere)" in said
    assert "tool book_courier needs" in said
    person.groups.add(Group.objects.get(name="admins"))
    assert "They lose no capability" in text(html(ada, f"/people/{person.pk}/leave/{operators.pk}/"))


def test_nobody_switches_themselves_off_from_the_page_either(ada: Client):
    mine = User.objects.get(username="ada").pk
    assert f'href="/people/{mine}/off/"' not in html(ada, f"/people/{mine}/")
    response = sent(ada, f"/people/{mine}/off/")
    assert response.status_code == 409
    assert "you would lock yourself out" in response.content.decode()


def test_the_navigation_leads_whoever_may_manage_people_there(ada: Client):
    assert 'href="/people/"' in html(ada, "/runs/")
    assert 'href="/people/"' not in client("support").get("/runs/").content.decode()
