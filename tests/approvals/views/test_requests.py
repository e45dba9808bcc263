"""Pages of requests, and signing in again."""

import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from approvals.models import Approval, Request, RequestVote
from approvals.policies import verbs
from runs import clock
from runs.models import Run
from runs.states import Status
from tests import factories
from tests.people import SignIn

pytestmark = pytest.mark.django_db


def guard(verb: str = "force_resume", **rule: Any) -> None:
    verbs.set_policy(factories.admin(), "verb", verb, rules=[{"groups": ["admins"], **rule}])


@pytest.fixture
def sam(sign_in: SignIn) -> Client:
    return sign_in(factories.support("sam"))


@pytest.fixture
def ada(sign_in: SignIn) -> Client:
    return sign_in(factories.admin("ada"))


def ask(browser: Client, run: Run) -> Request:
    """Force a run on in the browser."""
    url = reverse("runs:force_resume", args=[run.pk])
    page = browser.get(url).content.decode()
    hidden = dict(re.findall(r'name="(seen_\w+)" value="([^"]*)"', page))
    answer = browser.post(url, {**hidden, "reason": "it is stuck"})
    made = Request.objects.get(state="open")
    assert answer.status_code == 302 and answer.headers["Location"] == reverse(
        "requests:request", args=[made.pk]
    )
    return made


def decide(browser: Client, made: Request, verdict: str = "approve", **more: Any) -> Any:
    sent = {"digest": made.digest, "verdict": verdict, "reason": "seen"} | more
    return browser.post(reverse("requests:decide", args=[made.pk]), sent)


def test_whoever_asks_is_led_to_the_request_and_others_carry_it_out(sam, ada):
    guard()
    run = factories.run(Status.WAITING)
    made = ask(sam, run)
    url = reverse("requests:request", args=[made.pk])
    own = sam.get(url).content.decode()
    assert "Nothing was done yet" in own and "you asked for this" in own and "Withdraw this request" in own
    page = ada.get(url).content.decode()
    assert "it is stuck" in page and "Approve this" in page
    assert made.title in ada.get(reverse("requests:list")).content.decode()
    decide(ada, made)
    assert "Carried out" in ada.get(url).content.decode()
    run.refresh_from_db()
    assert run.wake_at is not None and run.wake_at <= clock.now()


def test_ones_own_request_is_not_decided_by_oneself(ada):
    guard()
    made = ask(ada, factories.run(Status.WAITING))
    assert decide(ada, made).status_code == 403
    assert not RequestVote.objects.exists()


def test_a_rejection_needs_a_reason_and_is_told(sam, ada):
    guard()
    made = ask(sam, factories.run(Status.WAITING))
    assert decide(ada, made, "reject", reason="").status_code == 422
    decide(ada, made, "reject", reason="it waits on purpose")
    assert "it waits on purpose" in sam.get(reverse("requests:request", args=[made.pk])).content.decode()


def test_a_stale_tab_and_a_replayed_form_change_nothing(sam, ada, sign_in):
    guard(votes=2)
    made = ask(sam, factories.run(Status.WAITING))
    decide(ada, made)
    decide(ada, made)
    sam.post(reverse("requests:withdraw", args=[made.pk]))
    answer = decide(sign_in(factories.admin("bea")), made, reason="typed with care")
    assert answer.status_code == 409 and "withdrawn by sam" in answer.content.decode()
    assert RequestVote.objects.count() == 1


def test_what_an_effect_is_said_to_have_returned_is_content(sam, ada, blindfolded):
    guard("answer_doubt", groups=["admins", "operators"])
    doubt = factories.doubt()
    url = reverse("runs:answer_doubt", args=[doubt.run_id, doubt.pk])
    hidden = dict(re.findall(r'name="(seen_\w+)" value="([^"]*)"', sam.get(url).content.decode()))
    sam.post(url, {**hidden, "answer": "yes", "reference": "secret-reference-7", "reason": "their list"})
    made = Request.objects.get()
    page = reverse("requests:request", args=[made.pk])
    assert "secret-reference-7" in ada.get(page).content.decode()
    assert "secret-reference-7" not in blindfolded.get(page).content.decode()
    assert decide(blindfolded, made).status_code == 403
    # Also once its run has been deleted.
    over = factories.request(run_id=uuid.uuid4(), state="rejected", closed_by="ada", closed_at=clock.now())
    factories.request_vote(over, verdict="reject", reason="secret-reference-7")
    page = reverse("requests:request", args=[over.pk])
    assert "secret-reference-7" in ada.get(page).content.decode()
    assert "secret-reference-7" not in blindfolded.get(page).content.decode()


def test_nobody_without_the_permission_sees_requests(sign_in, sam):
    guard()
    made = ask(sam, factories.run(Status.WAITING))
    stranger = sign_in(factories.stranger())
    for url in (reverse("requests:list"), reverse("requests:request", args=[made.pk])):
        assert stranger.get(url).status_code == 403


# --- signing in again ------------------------------------------------------------------------------------------------------


def old_sign_in(browser: Client) -> None:
    session = browser.session
    session["signed_in_at"] = "2020-01-01T00:00:00+00:00"
    session.save()


def test_an_old_sign_in_is_asked_for_the_password_and_comes_back_with_what_was_typed(sam, ada):
    guard(fresh_minutes=10)
    made = ask(sam, factories.run(Status.WAITING))
    old_sign_in(ada)
    asked = decide(ada, made, reason="typed with care")
    page, again = reverse("requests:request", args=[made.pk]), asked.headers["Location"]
    assert again.startswith(reverse("sign_in_again")) and not RequestVote.objects.exists()
    assert "within the last 10 minutes" in ada.get(again).content.decode()
    wrong = ada.post(again, {"password": "guess", "next": page})
    assert wrong.status_code == 422 and "not your password" in wrong.content.decode()
    right = ada.post(again, {"password": "secret", "next": page})
    assert right.headers["Location"] == page
    assert 'value="typed with care"' in ada.get(page).content.decode()
    decide(ada, made)
    assert Request.objects.get().state == "done"


def test_an_approval_can_want_a_young_sign_in_too(olga):
    verbs.set_policy(
        factories.admin(), "tool", "book_courier", rules=[{"groups": ["operators"], "fresh_minutes": 10}]
    )
    approval = factories.approval(tool="book_courier")
    url = reverse("approvals:decide", args=[approval.pk])
    sent = {"version": "1", "digest": approval.digest, "verdict": "approve", "reason": "typed with care"}
    old_sign_in(olga)
    answer = olga.post(url, sent)
    assert answer.headers["Location"].startswith(reverse("sign_in_again"))
    page = reverse("approvals:approval", args=[approval.pk])
    olga.post(answer.headers["Location"], {"password": "secret", "next": page})
    assert "typed with care" in olga.get(page).content.decode()
    olga.post(url, sent)
    assert Approval.objects.get().state == "approved"


def test_a_request_without_a_limit_has_a_target_as_other_items_have(ada):
    made = factories.request(expires_at=None)
    pages = [reverse("requests:list"), reverse("requests:request", args=[made.pk])]
    texts = [ada.get(page).content.decode() for page in pages]
    assert "target, asked" in texts[0] and "past" not in texts[0]
    assert "No time limit, target" in texts[1]
    clock.shift(timedelta(hours=4, seconds=1))
    texts = [ada.get(page).content.decode() for page in pages]
    assert "1 of them past its target" in texts[0] and "past its target, asked" in texts[0]
    assert "Past its target since" in texts[1] and 'class="late"' in texts[1]


def test_whatever_should_have_been_decided_first_stands_first_with_a_time_limit_or_without(ada):
    factories.request(title="due in five hours", expires_at=clock.now() + timedelta(hours=5))
    factories.request(title="due in an hour")
    factories.request(title="without a limit", expires_at=None)
    page = ada.get(reverse("requests:list")).content.decode()
    places = [page.index(title) for title in ("due in an hour", "without a limit", "due in five hours")]
    assert places == sorted(places)


def test_signing_in_again_leads_to_this_site_only_and_is_for_who_is_signed_in(olga):
    url = reverse("sign_in_again")
    answer = olga.post(url, {"password": "secret", "next": "https://evil.example/"})
    assert answer.headers["Location"] == "/"
    assert Client().get(url).status_code == 302


def test_guessing_the_password_of_a_session_is_slowed_down(olga):
    url = reverse("sign_in_again")
    for _ in range(6):
        page = olga.post(url, {"password": "guess", "next": "/"}).content.decode()
    assert "Too many attempts" in page
    assert "Too many attempts" in olga.post(url, {"password": "secret", "next": "/"}).content.decode()
