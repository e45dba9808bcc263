"""The pages on failures."""

import re

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from runs import clock, lifecycle, services
from runs.diagnosis import failures
from runs.models import Attempt, AuditEvent, FailureGroup, Grant, Run, Worker
from runs.models.operation import Kind
from runs.models.run import new_id
from runs.services import failures as verbs
from runs.states import Outcome, Status
from tests import factories
from tests.runs.views.people import client, client_with

pytestmark = pytest.mark.django_db

LIST = reverse("runs:failures")
HOSTILE = "<script>alert(1)</script> \u202e\U000e0041 javascript:alert(2) <img src=//evil.test/x>"


@pytest.fixture
def support(db) -> Client:
    return client("support")


def text(answer) -> str:
    """What a reader of the page sees."""
    body = re.sub(
        r"<(script|style).*?</\1>", "", answer.content.decode().split("<main", 1)[-1], flags=re.DOTALL
    )
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def page(run: Run) -> str:
    return reverse("runs:failure", args=[run.fingerprint])


def change(run: Run, what: str) -> str:
    return reverse("runs:change_failure", args=[run.fingerprint, what])


# --- the list ------------------------------------------------------------------------------------------------------------


def test_nothing_unhandled_can_be_seen(support):
    told = text(support.get(LIST))
    assert "Nothing is unhandled." in told
    assert "No run has failed without somebody having dealt with it." in told


def test_each_group_is_a_line_with_its_runs_and_where_it_happens(support):
    factories.failed("KeyError", "no order 7")
    run = factories.failed("KeyError", "no order 8")
    answer = support.get(LIST)
    told = text(answer)
    assert "2 failed runs in 1 group that is not handled; it is open." in told
    assert "KeyError no order &lt;n&gt; parcel , pack , version 1" in told
    assert page(run) in answer.content.decode()
    assert 'aria-label="2 in 24 hours, 2 in 14 days"' in answer.content.decode()


def test_the_tabs_hold_what_they_say(support):
    kept, over = factories.failed("KeyError"), factories.failed("Refused")
    verbs.handle_failure(factories.support("sam"), factories.fingerprint(over), reason="over")
    assert "Refused" not in text(support.get(LIST))
    handled = text(support.get(LIST, {"state": "handled"}))
    assert "Refused" in handled
    assert "KeyError" not in handled
    assert "sam" in handled
    verbs.handle_failure(factories.support(), factories.fingerprint(kept), reason="over")
    assert "Nothing is unhandled." in text(support.get(LIST))
    assert "None here" in text(support.get(LIST, {"state": "fixed"})) or "Nothing unhandled" in text(
        support.get(LIST, {"state": "fixed"})
    )


def test_runs_in_attention_are_an_option(support):
    factories.failed("KeyError")
    factories.doubt()
    failures.give_fingerprints()
    assert "InDoubt" not in text(support.get(LIST))
    told = text(support.get(LIST, {"what": "attention"}))
    assert "InDoubt" in told
    assert "KeyError" not in told
    assert "1 run in attention in 1 group" in told


@pytest.mark.parametrize(
    ("query", "there"),
    [
        ({"workflow": "letter"}, False),
        ({"workflow": "parcel"}, True),
        ({"workflow": "parcel", "version": "2"}, False),
        ({"workflow": "parcel", "version": "1"}, True),
        ({"version": "9" * 30}, True),
        ({"seen": "day"}, True),
        ({"seen": "nonsense"}, True),
        ({"workflow": "\x00"}, True),
        ({"before": "nonsense"}, True),
    ],
)
def test_the_filters_are_the_address(support, query, there):
    factories.failed("KeyError")
    assert ("KeyError" in text(support.get(LIST, query))) is there


def test_older_groups_are_on_the_next_page(support, monkeypatch):
    monkeypatch.setattr(failures, "GROUPS", 2)
    for letter in "ABC":
        factories.failed(f"Error{letter}")
    first = support.get(LIST)
    following = re.search(r'href="(\?before=[^"]+)" rel="next"', first.content.decode())
    assert following
    second = text(support.get(LIST + following[1]))
    shown = [f"Error{letter}" for letter in "ABC" if f"Error{letter}" in text(first)]
    assert len(shown) == 2
    assert [name for name in ("ErrorA", "ErrorB", "ErrorC") if name in second] == list(
        {"ErrorA", "ErrorB", "ErrorC"} - set(shown)
    )


def test_a_poll_that_knows_the_page_is_answered_304_until_something_fails(support):
    factories.failed()
    polled = {"HX-Request": "true"}
    first = support.get(LIST, headers=polled)
    known = polled | {"HX-PTag": first.headers["HX-PTag"]}
    assert support.get(LIST, headers=known).status_code == 304
    factories.failed()
    assert support.get(LIST, headers=known).status_code == 200


def test_runs_that_are_in_no_group_yet_are_not_passed_over_in_silence(support):
    factories.run(Status.FAILED)
    told = text(support.get(LIST))
    assert "Runs have failed, and none is in a group yet." in told
    assert "Nothing is unhandled" not in told
    assert "Not in groups yet" in told


def test_the_navigation_counts_open_groups(support):
    run = factories.failed()
    assert 'title="Open groups of failures">1<' in support.get(reverse("runs:list")).content.decode()
    verbs.acknowledge_failure(factories.support(), factories.fingerprint(run), reason="mine")
    assert "Open groups of failures" not in support.get(reverse("runs:list")).content.decode()


# --- one group -----------------------------------------------------------------------------------------------------------


def test_a_group_shows_a_sample_with_its_traceback_and_its_runs(support):
    run = factories.failed(
        "KeyError", "no order 7", traceback="Traceback:\n  KeyError: 'x'", subject="order 7"
    )
    told = text(support.get(page(run)))
    assert "1 run of parcel is still failed at step pack ." in told
    assert "no order &lt;n&gt;" in told
    assert "KeyError : no order 7 visit 1, try 1" in told
    assert "Traceback" in told
    assert "order 7" in told
    assert "Nobody has said anything about it yet." in told


def test_what_went_on_after_a_retry_is_counted_apart(support):
    run, other = factories.failed(), factories.failed()
    services.retry(factories.support(), other.pk)
    claimed = {"status": Status.RUNNING, "worker_id": factories.worker().pk, "sort_at": None}
    Run.objects.filter(pk=other.pk).update(**claimed)
    with transaction.atomic():
        lifecycle.end(lifecycle.lock_run(other.pk), Status.COMPLETED, factories.SYSTEM)
    told = text(support.get(page(run)))
    assert "1 run of parcel is still failed" in told
    assert "1 completed since." in told
    completed = support.get(page(run), {"runs": "completed"}).content.decode()
    assert str(other.pk) in completed
    assert f"/runs/{run.pk}/" not in completed.split('id="runs"')[1]


def test_the_same_error_in_other_versions_is_named(support):
    run, newer = factories.failed(), factories.failed(version=2)
    answer = support.get(page(run))
    assert "By version" in text(answer)
    assert page(newer) in answer.content.decode()


def test_all_of_it_can_be_retried_as_one_bulk():
    run = factories.failed()
    address = f"?verb=retry&amp;status=failed&amp;fingerprint={run.fingerprint}"
    assert address in client("admins").get(page(run)).content.decode()
    assert address not in client("operators").get(page(run)).content.decode()


def test_a_group_that_is_not_there(support):
    assert support.get(reverse("runs:failure", args=[new_id()])).status_code == 404


def test_pages_cost_a_fixed_number_of_queries(support):
    for letter in "ABCDEFGH":
        for number in range(3):
            run = factories.failed(f"Error{letter}", version=number % 2 + 1)
    for address in (LIST, page(run), reverse("runs:compare", args=[run.pk])):
        support.get(address)
        with CaptureQueriesContext(connection) as asked:
            assert support.get(address).status_code == 200
        assert len(asked) <= 12, (address, [query["sql"][:80] for query in asked])


def test_a_group_says_which_code_failed_and_what_live_workers_have(support):
    run = factories.failed(workflow="parcel")
    of_run = Worker.objects.filter(pk__in=Attempt.objects.filter(run_id=run.pk).values("worker_id"))
    assert of_run.update(code_version="shop 1.0", closed_at=clock.now()) == 1
    factories.worker(
        code_version="shop 1.1", capabilities=["parcel@1/pack", "parcel@2/pack", "parcels@7/pack"]
    )
    told = text(support.get(page(run)))
    assert "failed in shop 1.0" in told
    assert "live workers: version 2 (code shop 1.1), version 1 (code shop 1.1)" in told


def test_what_is_fixed_in_a_version_that_no_worker_has_yet_says_so(support):
    run = factories.failed(workflow="parcel")
    factories.worker()
    verbs.fix_failure(factories.support(), factories.fingerprint(run), version=2, reason="found it")
    assert "No live worker executes version 2 yet" in text(support.get(page(run)))
    factories.worker(capabilities=["parcel@2/pack"])
    assert "No live worker executes" not in text(support.get(page(run)))


# --- what people say -----------------------------------------------------------------------------------------------------

SAID = {
    "acknowledge": ({}, "acknowledged"),
    "fix": ({"version": "2"}, "fixed"),
    "handle": ({}, "handled"),
    "note": ({}, "open"),
}


@pytest.mark.parametrize("what", SAID)
def test_each_form_says_what_follows_and_does_it(support, what):
    fields, state = SAID[what]
    run = factories.failed()
    shown = support.get(change(run, what))
    assert shown.status_code == 200
    answer = support.post(change(run, what), {"seen_revision": 0, "reason": "because", **fields}, follow=True)
    assert answer.redirect_chain == [(page(run), 302)]
    assert FailureGroup.objects.get(pk=factories.fingerprint(run)).state == state
    assert "“ because ”" in text(answer)


def test_a_group_can_be_opened_again(support):
    run = factories.failed()
    verbs.handle_failure(factories.support(), factories.fingerprint(run), reason="over")
    support.post(change(run, "reopen"), {"seen_revision": 1, "reason": "not over"})
    assert FailureGroup.objects.get(pk=factories.fingerprint(run)).state == "open"


@pytest.mark.parametrize("what", ["acknowledge", "fix", "handle", "note"])
def test_a_form_without_a_reason_is_shown_again(support, what):
    run = factories.failed()
    assert support.post(change(run, what), {"seen_revision": 0}).status_code == 422
    assert not AuditEvent.objects.exists()


def test_a_version_that_cannot_be_is_shown_at_its_field(support):
    run = factories.failed(version=3)
    answer = support.post(change(run, "fix"), {"seen_revision": 0, "reason": "x", "version": "2"})
    assert answer.status_code == 422
    assert "version 3 has failed" in text(answer)
    assert (
        support.post(change(run, "fix"), {"seen_revision": 0, "reason": "x", "version": "9" * 30}).status_code
        == 422
    )


def test_a_stale_page_is_answered_409_with_the_fresh_state_and_what_was_typed(support):
    run = factories.failed()
    verbs.acknowledge_failure(factories.support("ada"), factories.fingerprint(run), reason="mine")
    answer = support.post(change(run, "handle"), {"seen_revision": 0, "reason": "typed before"})
    assert answer.status_code == 409
    told = text(answer)
    assert "it is now acknowledged" in told
    assert 'value="typed before"' in answer.content.decode()
    assert 'name="seen_revision" value="1"' in answer.content.decode()
    assert FailureGroup.objects.get(pk=factories.fingerprint(run)).state == "acknowledged"


def test_a_verb_that_the_state_does_not_allow_has_no_form(support):
    run = factories.failed()
    answer = support.get(change(run, "reopen"))
    assert "This group is open, which does not allow this" in text(answer)
    assert 'method="post" action="/failures/' not in answer.content.decode()


def test_an_unknown_verb_and_get_change_nothing(support):
    run = factories.failed()
    assert support.get(change(run, "forget")).status_code == 404
    assert support.post(change(run, "forget"), {}).status_code == 404
    support.get(change(run, "handle"), {"reason": "x", "seen_revision": 0})
    assert FailureGroup.objects.get(pk=factories.fingerprint(run)).state == "open"


# --- who sees what -------------------------------------------------------------------------------------------------------


def test_who_may_not_see_content_sees_that_something_failed_and_not_how_it_reads():
    run = factories.failed(
        "KeyError", "customer bob is unknown", traceback="Traceback: bob", subject="order 7"
    )
    factories.run(Status.COMPLETED)
    blind = client_with("view_run")
    for address in (LIST, page(run), reverse("runs:compare", args=[run.pk])):
        answer = blind.get(address)
        assert answer.status_code == 200
        main = answer.content.decode().split("<main")[1]
        assert "KeyError" in main
        if address != reverse("runs:compare", args=[run.pk]):
            assert "bob" not in main
    assert "bob" in client("support").get(page(run)).content.decode()


def test_who_may_not_see_content_is_not_told_which_values_are_the_same(support):
    runs = run, good = factories.failed(subject="order 7"), factories.run(Status.COMPLETED)
    for one in runs:
        result = {"customer": str(one.pk)}
        factories.operation(
            one, Kind.QUERY, name="get_order", position="1", ordinal=1, step_seq=1, result=result
        )
        Attempt.objects.get_or_create(
            run_id=one.pk,
            step_seq=1,
            attempt_no=1,
            defaults={
                "epoch": 1,
                "step": "pack",
                "outcome": Outcome.FAILED if one is run else Outcome.SUCCEEDED,
                "started_at": one.created_at,
                "ended_at": one.created_at,
            },
        )
    address = reverse("runs:compare", args=[run.pk])
    assert "1 value differs" in text(support.get(address)) and good
    blind = client_with("view_run")
    for answer in (blind.get(address), blind.get(address, headers={"HX-Request": "true"})):
        assert answer.status_code == 200
        assert "differs" not in text(answer) and "answered otherwise" not in text(answer)


def test_who_sees_one_workflow_sees_no_other_groups():
    seen, other = factories.failed(), factories.failed(workflow="letter")
    person = factories.user("nils")
    Grant.objects.create(user=person, capability="view", scope="workflow", name="parcel", granted_by="x")
    browser = Client()
    browser.force_login(person)
    assert "letter , pack" not in text(browser.get(LIST))
    assert browser.get(page(seen)).status_code == 200
    assert browser.get(page(other)).status_code == 404
    assert browser.get(reverse("runs:compare", args=[other.pk])).status_code == 404


def test_hostile_text_is_harmless_on_every_page(support):
    run = factories.failed(HOSTILE, HOSTILE, traceback=HOSTILE, subject=HOSTILE, step=HOSTILE)
    verbs.note_failure(factories.support(), factories.fingerprint(run), reason=HOSTILE)
    good = factories.run(Status.COMPLETED, subject=HOSTILE, step=HOSTILE)
    Attempt.objects.create(
        run_id=good.pk,
        step_seq=1,
        attempt_no=1,
        epoch=1,
        step=HOSTILE,
        outcome=Outcome.SUCCEEDED,
        started_at=good.created_at,
        ended_at=good.created_at,
    )
    for address in (LIST, page(run), change(run, "note"), reverse("runs:compare", args=[run.pk])):
        body = support.get(address).content.decode()
        assert "<script>alert" not in body
        assert "<img" not in body
        assert "\u202e" not in body
        assert "\U000e0041" not in body
        assert 'href="javascript' not in body


# --- a failed run beside a good one --------------------------------------------------------------------------------------


def test_the_comparison_begins_with_a_sentence(support):
    run = factories.failed("KeyError", "no order 7")
    address = reverse("runs:compare", args=[run.pk])
    assert "No run of parcel has completed yet" in text(support.get(address))
    good = factories.run(Status.COMPLETED)
    Attempt.objects.create(
        run_id=good.pk,
        step_seq=1,
        attempt_no=1,
        epoch=1,
        step="pack",
        outcome=Outcome.SUCCEEDED,
        started_at=good.created_at,
        ended_at=good.created_at,
    )
    told = text(support.get(address))
    assert "there the good run ended it as succeeded; this one ended it as failed with KeyError." in told
    assert "Its error: “ no order 7 ”." in told
    part = support.get(address, headers={"HX-Request": "true"})
    assert text(part).startswith("Different from visit 1 on, step pack")
    assert "Its error" not in text(client_with("view_run").get(address))


def test_another_run_can_be_compared_with(support):
    run, other = factories.failed(), factories.run(Status.COMPLETED)
    factories.run(Status.COMPLETED)
    address = reverse("runs:compare", args=[run.pk])
    assert f"/runs/{other.pk}/" in support.get(address, {"with": str(other.pk)}).content.decode()
    elsewhere = factories.run(Status.COMPLETED, workflow="letter")
    for unknown in ("nonsense", str(elsewhere.pk), str(run.pk), HOSTILE, "\x00"):
        answer = support.get(address, {"with": unknown})
        assert answer.status_code == 200
        assert "There is no other run of parcel with this id." in text(answer)
