"""The pages of bulks: choosing, starting, looking, stopping; as people in front of a browser."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from agentops.look.samples import HOSTILE
from runs import clock
from runs.lifecycle import Actor
from runs.models import Bulk, BulkItem, Event
from runs.models.run import new_id
from runs.services import bulk
from runs.states import Status
from tests import factories
from tests.people import SignIn
from tests.runs.bulk.test_work import made, ready, running, work

pytestmark = pytest.mark.django_db

LIST, NEW = reverse("runs:bulks"), reverse("runs:bulk_new")
VERBS = ("start", "continue", "pause", "resume", "stop")


def at(name: str, of: Bulk) -> str:
    return reverse(f"runs:{name}", args=[of.pk])


def send(client: Client, url: str, **fields: Any) -> HttpResponse:
    return client.post(url, fields)  # type: ignore[return-value]


def new(client: Client, **changes: Any) -> HttpResponse:
    form = {"verb": "retry", "name": "Outage", "reason": "It is over", "bulk_id": str(uuid.uuid4())}
    return send(client, NEW, **(form | changes))


@pytest.fixture
def sam(db: None) -> Actor:
    return factories.support("sam")


@pytest.fixture
def browser(sam: Actor, sign_in: SignIn) -> Client:
    return sign_in(sam)


# --- a new one ---------------------------------------------------------------------------------------------------------


def test_an_address_is_a_filter_and_shows_how_many_match(browser: Client) -> None:
    for number in range(12):
        factories.run(Status.FAILED, subject=f"order {number}")
    factories.run(Status.FAILED, step="ship")
    html = browser.get(f"{NEW}?verb=retry&workflow=parcel&step=pack&failure_kind=exhausted").content.decode()
    assert "Retry 12 runs" in html
    assert "<bdi>order 11</bdi>" in html and "<bdi>order 1</bdi>" not in html
    assert "Step <b><bdi>pack</bdi></b>" in html


def test_a_change_of_priority_asks_for_the_new_one(browser: Client) -> None:
    factories.run(Status.QUEUED)
    html = browser.get(f"{NEW}?verb=prioritise").content.decode()
    assert "Change the priority of 1 run" in html and 'name="priority"' in html
    assert 'name="priority"' not in browser.get(f"{NEW}?verb=cancel").content.decode()
    sent = {"verb": "prioritise", "bulk_id": str(new_id()), "name": "VIP", "reason": "Promised"}
    assert browser.post(NEW, sent).status_code == 422
    html = browser.post(NEW, sent | {"priority": "9"}, follow=True).content.decode()
    assert Bulk.objects.get().priority == 9 and "New priority" in html


def test_the_address_without_its_last_slash_leads_there_with_its_filter(browser: Client) -> None:
    answer = browser.get("/bulk/new?verb=retry&step=act")
    assert (answer.status_code, answer["Location"]) == (301, "/bulk/new/?verb=retry&step=act")


def test_more_than_a_thousand_are_said_to_be_more(browser: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runs.bulk.selection.COUNT_LIMIT", 3)
    for _ in range(5):
        factories.run(Status.FAILED)
    html = browser.get(NEW).content.decode()
    assert "Retry 1,000+ runs" in html
    assert "No filter: every run that this can be done to" in html


def test_it_makes_a_bulk_that_is_counted_and_does_nothing_to_a_run(browser: Client, sam: Actor) -> None:
    factories.run(Status.FAILED)
    answer = new(browser, workflow="parcel")
    of = Bulk.objects.get()
    assert (answer.status_code, answer["Location"]) == (302, at("bulk", of))
    assert (of.status, of.name, of.reason, of.started_by_name) == ("counting", "Outage", "It is over", "sam")
    assert of.filter == {"workflow": "parcel"}
    assert (
        "The runs are being chosen: 0 so far. No live worker" in browser.get(at("bulk", of)).content.decode()
    )


def test_a_form_that_is_sent_twice_makes_one_bulk(browser: Client) -> None:
    again = str(uuid.uuid4())
    assert new(browser, bulk_id=again)["Location"] == new(browser, bulk_id=again)["Location"]
    assert Bulk.objects.count() == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": ""}, "This field is required."),
        ({"reason": " "}, "This field is required."),
        ({"verb": "dance"}, "Select a valid choice."),
        ({"status": "completed"}, "Select a valid choice."),
        ({"status": "waiting"}, "There is nothing to retry about a run that is waiting."),
        ({"created_from": "yesterday"}, "Enter a valid date/time."),
    ],
)
def test_what_is_missing_or_wrong_comes_back_with_the_form(
    changes: dict[str, str], said: str, browser: Client
) -> None:
    factories.run(Status.FAILED)
    answer = new(browser, **changes)
    assert answer.status_code == 422
    assert said in answer.content.decode()
    assert not Bulk.objects.exists()


def test_a_status_that_no_verb_is_for_is_answered_with_a_sentence(browser: Client) -> None:
    assert browser.get(f"{NEW}?status=completed&created_from=%00&workflow={'x' * 400}").status_code == 200


# --- one ---------------------------------------------------------------------------------------------------------------


def test_the_dry_run_says_how_many_and_why_not_the_others(browser: Client, sam: Actor) -> None:
    for _ in range(3):
        factories.run(Status.FAILED)
    factories.run(Status.FAILED, deadline_at=clock.now() - timedelta(hours=1))
    of = ready(sam)
    html = browser.get(at("bulk", of)).content.decode()
    assert "3 of 4 runs can be retried, 1 cannot." in html
    assert "Nothing has been done to any of them." in html
    assert "Its deadline passed at …" in html
    assert "Start with 3 runs" in html
    listed = browser.get(at("bulk", of), {"show": "out"}).content.decode()
    assert listed.count('class="num muted place"') == 1


def test_from_start_to_end(browser: Client, sam: Actor) -> None:
    runs = [factories.run(Status.FAILED) for _ in range(4)]
    of = ready(sam)
    answer = send(browser, at("bulk_start", of), canary="1", rate="600", seen_revision=of.revision)
    assert (answer.status_code, answer["Location"]) == (302, at("bulk", of))
    work(of)
    html = browser.get(at("bulk", of)).content.decode()
    assert "The first 1 run is done: 1 under way. It waits for a person" in html
    assert "Go on with 3 runs" in html
    send(browser, at("bulk_continue", of), rate="6000", seen_revision=of.revision)
    work(of, minutes=1)
    html = browser.get(at("bulk", of)).content.decode()
    assert "All is done: 4 of 4 runs were retried: 4 under way." in html
    assert [Event.objects.filter(run_id=run.pk, kind="retried").count() for run in runs] == [1] * 4


def test_pause_resume_and_stop(browser: Client, sam: Actor) -> None:
    for _ in range(3):
        factories.run(Status.FAILED)
    of = running(sam, rate=1)
    assert "2 runs are left" in browser.get(at("bulk_pause", of)).content.decode()
    send(browser, at("bulk_pause", of), reason="lunch")
    assert work(of, minutes=9).status == "paused"
    assert "Paused by sam: lunch. 2 runs are left" in browser.get(at("bulk", of)).content.decode()
    send(browser, at("bulk_resume", of), rate="2", seen_revision=of.revision)
    of.refresh_from_db()
    assert (of.status, of.rate) == ("running", 2)
    send(browser, at("bulk_stop", of))
    assert work(of, minutes=9).status == "stopped"
    html = browser.get(at("bulk", of)).content.decode()
    assert "Stopped by sam. 1 of 3 runs was retried: 1 under way; the rest is as it was." in html
    assert not any(at(f"bulk_{name}", of) in html for name in VERBS)


def test_looking_at_a_verb_does_nothing(browser: Client, sam: Actor) -> None:
    factories.run(Status.FAILED)
    of = ready(sam)
    for name in VERBS:
        assert browser.get(at(f"bulk_{name}", of), {"rate": "1", "canary": "1"}).status_code == 200
        browser.head(at(f"bulk_{name}", of))
        assert browser.put(at(f"bulk_{name}", of)).status_code == 405
    of.refresh_from_db()
    assert (of.status, of.revision) == ("ready", 2)


def test_a_stale_page_is_409_with_the_fresh_view_and_what_was_typed(browser: Client, sam: Actor) -> None:
    for _ in range(2):
        factories.run(Status.FAILED)
    of = running(sam)
    bulk.pause_bulk(sam, of.pk)
    bulk.resume_bulk(sam, of.pk)
    bulk.pause_bulk(sam, of.pk)
    answer = send(browser, at("bulk_resume", of), rate="77", seen_revision=of.revision)
    html = answer.content.decode()
    assert answer.status_code == 409
    assert "changed since the page was loaded; it is now paused" in html
    assert 'value="77"' in html
    of.refresh_from_db()
    assert of.status == "paused"


@pytest.mark.parametrize("name", ["start", "pause", "resume", "continue"])
def test_a_verb_that_does_not_apply_is_409(name: str, browser: Client, sam: Actor) -> None:
    factories.run(Status.FAILED)
    of = ready(sam)
    bulk.stop_bulk(sam, of.pk)
    of.refresh_from_db()
    answer = send(browser, at(f"bulk_{name}", of), rate="60", canary="5", seen_revision=of.revision)
    assert answer.status_code == 409
    assert "this bulk is stopped" in answer.content.decode()


def test_a_double_click_starts_once(browser: Client, sam: Actor) -> None:
    factories.run(Status.FAILED)
    of = ready(sam)
    form: dict[str, Any] = {"canary": "5", "rate": "60", "seen_revision": of.revision}
    assert [send(browser, at("bulk_start", of), **form).status_code for _ in range(2)] == [302, 302]
    of.refresh_from_db()
    assert of.revision == form["seen_revision"] + 1


# --- who ---------------------------------------------------------------------------------------------------------------


def test_everybody_who_sees_runs_sees_bulks_and_only_those_who_may_change_them(
    sam: Actor, sign_in: SignIn
) -> None:
    factories.run(Status.FAILED)
    of = ready(sam)
    operator, stranger = sign_in(factories.operator()), sign_in(factories.stranger())
    assert "Outage" in operator.get(LIST).content.decode()
    assert "Start with" not in operator.get(at("bulk", of)).content.decode()
    assert stranger.get(LIST).status_code == stranger.get(at("bulk", of)).status_code == 403
    for client in (operator, stranger):
        assert new(client).status_code == client.get(NEW).status_code == 403
        for name in VERBS:
            assert send(client, at(f"bulk_{name}", of)).status_code == 403
    of.refresh_from_db()
    assert (of.status, Bulk.objects.count()) == ("ready", 1)


def test_a_run_that_the_viewer_may_not_see_is_a_line_without_content(sam: Actor, sign_in: SignIn) -> None:
    from runs.models import Grant

    theirs, other = (
        factories.run(Status.FAILED, workflow="mine"),
        factories.run(Status.FAILED, subject="secret"),
    )
    of = ready(sam)
    viewer = factories.stranger()
    Grant.objects.create(
        user_id=viewer.id, capability=Grant.Capability.VIEW, scope=Grant.Scope.WORKFLOW, name="mine"
    )
    browser = sign_in(viewer)
    assert browser.get(at("bulk", of)).status_code == 404
    assert of.name not in browser.get(LIST).content.decode()
    # One of their own, made while they saw more.
    Bulk.objects.filter(pk=of.pk).update(started_by=viewer.id)
    html = browser.get(at("bulk", of)).content.decode()
    assert str(theirs.pk) in html
    assert str(other.pk) not in html and "secret" not in html
    assert html.count("a run that you may not see") == 1


def test_someone_who_may_retry_a_part_chooses_from_that_part(sam: Actor, sign_in: SignIn) -> None:
    from runs.models import Grant

    factories.run(Status.FAILED, workflow="mine")
    factories.run(Status.FAILED)
    person = factories.stranger("pat")
    Grant.objects.create(
        user_id=person.id, capability=Grant.Capability.OPERATE, scope=Grant.Scope.WORKFLOW, name="mine"
    )
    browser = sign_in(person)
    assert "Retry 1 run" in browser.get(NEW).content.decode()
    of = ready(person)
    assert (of.total, BulkItem.objects.get(bulk=of).place) == (1, 1)
    # A bulk of somebody else over runs that are not theirs is none of their business.
    assert send(browser, at("bulk_stop", ready(sam))).status_code == 404


# --- how ---------------------------------------------------------------------------------------------------------------


def test_an_idle_poll_is_answered_304_until_something_changes(browser: Client, sam: Actor) -> None:
    factories.run(Status.FAILED)
    of = made(sam)
    for url in (LIST, at("bulk", of)):
        first = browser.get(url, headers={"HX-Request": "true"})
        assert first.content.decode().lstrip().startswith('<div class="parts" id="bulk')
        told = {"HX-Request": "true", "HX-PTag": first["HX-PTag"]}
        assert browser.get(url, headers=told).status_code == 304
    work(of)
    assert browser.get(at("bulk", of), headers=told).status_code == 200


def test_the_number_of_queries_does_not_grow(
    browser: Client, sam: Actor, django_assert_max_num_queries: Any
) -> None:
    for _ in range(20):
        factories.run(Status.FAILED)
    of = ready(sam)
    for url in (LIST, NEW, f"{NEW}?verb=cancel&q=order&subject=order+7", at("bulk", of), at("bulk_stop", of)):
        browser.get(url)
        with django_assert_max_num_queries(12):
            assert browser.get(url).status_code == 200


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_harmless(text: str, browser: Client, sam: Actor) -> None:
    clean = text.encode("utf-8", "replace").decode().replace("\x00", "")
    factories.run(Status.FAILED, subject=clean)
    of = ready(sam)
    Bulk.objects.filter(pk=of.pk).update(
        name=clean or "x", reason=clean or "x", said=clean, filter={"step": clean, "workflow": clean}
    )
    BulkItem.objects.filter(bulk=of).update(look=clean, said=clean)
    for url in (LIST, at("bulk", of), at("bulk_stop", of), f"{NEW}?verb=cancel"):
        html = browser.get(url).content.decode()
        assert "<script>alert" not in html
        assert "\u202e" not in html


def test_pages_of_runs_go_on_from_a_place(
    browser: Client, sam: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runs.bulk.reading.ITEMS", 2)
    for _ in range(5):
        factories.run(Status.FAILED)
    of = ready(sam)

    def places(query: str) -> list[str]:
        html = browser.get(at("bulk", of) + query).content.decode()
        return [part.partition("<")[0] for part in html.split('class="num muted place">')[1:]]

    assert places("") == ["1", "2"]
    assert places("?after=2") == ["3", "4"]
    assert places("?after=4") == ["5"]
    assert places("?before=5") == ["3", "4"]
    assert places("?before=3") == ["1", "2"]
