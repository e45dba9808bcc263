"""What people did stands in the timeline of a run, in order of time; and each lane leads to its page."""

import re
from datetime import timedelta

import pytest
from django.db import transaction

from runs import clock, lifecycle, services
from runs.models import AuditEvent
from runs.models.operation import Kind
from runs.states import Outcome, Status
from tests import factories
from tests.runs.views.people import client_with
from tests.runs.views.test_run import attempt, page

pytestmark = pytest.mark.django_db


def lanes(html):
    """The rows of the timeline as text, without the markup."""
    fall = html[html.index('<ol aria-label="Timeline">') :].partition("</section>")[0]
    rows = re.findall(r'<div class="fall-row.*?</div>', fall, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in rows]


def act(run, kind, actor, reason="", **data):
    with transaction.atomic():
        lifecycle.append_event(lifecycle.lock_run(run.pk), kind, actor, reason, **data)


def test_what_people_did_stands_between_the_attempts_with_name_and_reason(support):
    run = factories.run(Status.RETRYING)
    before = clock.now() - timedelta(minutes=10)
    attempt(run, started_at=before, ended_at=before + timedelta(seconds=2))
    services.retry(factories.support("sam"), run.pk, reason="provider is back")
    later = clock.now() + timedelta(seconds=1)
    attempt(run, 2, started_at=later, ended_at=later + timedelta(seconds=1), outcome=Outcome.SUSPENDED)
    told = lanes(page(support, run))
    place = next(n for n, row in enumerate(told) if row.startswith("sam let it try again at once"))
    assert told[place].endswith("provider is back")
    tries = [n for n, row in enumerate(told) if row.startswith("pack")]
    assert tries[0] < place < tries[1]


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("force_resumed", {}, "ada forced it on"),
        ("state_edited", {}, "ada edited the state"),
        ("skipped", {"step": "pack", "to": "ship"}, "ada skipped step pack, on to ship"),
        ("cancel_requested", {}, "ada asked for its cancel"),
        ("doubt_answered", {"tool": "refund", "happened": False}, "ada said that refund did not happen"),
        ("vote", {"verdict": "approve"}, "ada voted: approved"),
        ("request_opened", {"verb": "force_resume"}, "ada asked others to approve: force resume"),
    ],
)
def test_each_act_has_its_words(kind, data, words, support):
    run = factories.run(Status.WAITING)
    act(run, kind, factories.actor("ada"), "because", **data)
    (row,) = (row for row in lanes(page(support, run)) if row.startswith("ada"))
    assert row.startswith(words) and row.endswith("because")


def test_a_decision_is_one_line_and_leads_to_its_approval(operator):
    approval = factories.approval()
    with transaction.atomic():
        run = lifecycle.lock_run(approval.run_id)
        about = {"approval": str(approval.pk)}
        voted, decided = about | {"verdict": "approve"}, about | {"verdict": "approved"}
        olga = factories.actor("olga")
        lifecycle.append_events(run, olga, "looks right", ("vote", voted), ("approval_decided", decided))
    html = page(operator, run)
    (row,) = (row for row in lanes(html) if row.startswith("olga"))
    assert row.startswith("olga approved") and row.endswith("looks right")
    assert re.search(rf'href="/approvals/{approval.pk}/">olga approved<', html)


def test_what_workers_did_and_who_looks_after_it_are_no_acts(support):
    run = factories.run(Status.WAITING)
    act(run, "waiting", lifecycle.worker_actor(None))
    act(run, "item_claimed", factories.actor("ada"))
    act(run, "state_edited", factories.actor("bob"))
    told = lanes(page(support, run))
    assert [row for row in told if "bob" in row]
    assert not [row for row in told if "ada" in row or "worker" in row]


def test_changed_limits_that_act_on_it_are_in_its_timeline_and_others_are_not():
    admin, run = client_with("view_run", "view_policy"), factories.run(Status.WAITING)
    factories.operation(run, Kind.QUERY, name="get_order")
    for target in (
        "step parcel/pack",
        "tool get_order",
        "tool refund",
        "step parcels/pack",
        "workflow other",
    ):
        AuditEvent.objects.create(
            kind="limits_changed",
            target=target,
            actor="adam",
            reason=f"for {target}",
            old={"max_attempts": 5},
            new={"max_attempts": 8},
        )
    told = [row for row in lanes(page(admin, run)) if row.startswith("adam")]
    assert [row.rpartition("for ")[2] for row in told] == ["step parcel/pack", "tool get_order"]
    assert "retry limit: 5 attempts to 8 attempts" in told[0]
    assert not [row for row in lanes(page(client_with("view_run"), run)) if row.startswith("adam")]


def test_a_page_of_earlier_attempts_has_the_acts_of_its_own_time(support):
    run = factories.run(Status.FAILED)
    start = clock.now() - timedelta(hours=1)
    for number in range(1, 41):
        at = start + timedelta(minutes=number)
        attempt(run, number, started_at=at, ended_at=at + timedelta(seconds=1))
    ada = factories.actor("ada")
    for minute, kind in ((5, "state_edited"), (35, "force_resumed")):
        clock.shift(start + timedelta(minutes=minute, seconds=30) - clock.now())
        act(run, kind, ada)
        clock.shift(timedelta(0))
    newest, earlier = lanes(page(support, run)), lanes(page(support, run, "?before=1.16"))
    assert any(row.startswith("ada forced it on") for row in newest)
    assert not any(row.startswith("ada edited the state") for row in newest)
    assert any(row.startswith("ada edited the state") for row in earlier)
    assert not any(row.startswith("ada forced it on") for row in earlier)


def test_what_was_said_to_the_agent_is_for_those_who_may_see_payloads(support):
    run = factories.run(Status.WAITING)
    act(run, "asked_back", factories.actor("ada"), "why 77 euros?")
    assert "why 77 euros?" in "".join(lanes(page(support, run)))
    assert "why 77 euros?" not in "".join(lanes(page(client_with("view_run"), run)))


def test_each_lane_leads_to_its_page(support):
    run = factories.run(Status.RUNNING, attempt_no=2)
    attempt(run)
    effect = factories.operation(run, attempt_no=1)
    html = page(support, run)
    assert f'<a class="t" href="/runs/{run.pk}/operations/{effect.pk}/">book_courier</a>' in html
    assert f'<a href="/runs/{run.pk}/attempts/1/1/">Open this attempt' in html
    assert f'<a class="t" href="/runs/{run.pk}/attempts/1/2/">pack</a>' in html


def test_it_leads_to_forks_and_counts_the_other_runs_on_its_subject(support):
    run = factories.run(Status.COMPLETED, subject="order 77")
    assert "no other run is on it" in page(support, run)
    fork = factories.run(Status.RUNNING, forked_from=run.pk, forked_visit=1, subject="order 77")
    factories.run(subject="order 77"), factories.run(subject="Order 77")
    html = page(support, run)
    assert "2 other runs on it" in html
    assert f'href="/runs/{fork.pk}/"' in html and "from visit 1, by" in html
    assert f'href="/runs/{run.pk}/"' in page(support, fork)


def test_hostile_words_of_people_are_shown_harmless(support):
    run = factories.run(Status.WAITING)
    act(run, "force_resumed", factories.actor("ada"), "<script>alert(1)</script>\u202e" + "x" * 2000)
    html = page(support, run)
    assert "<script>alert" not in html and "\u202e" not in html
    assert "x" * 500 not in html.partition("</ol>")[0]


def test_a_thousand_acts_cost_no_more_queries(support, django_assert_max_num_queries):
    run = factories.run(Status.WAITING)
    ada = factories.actor("ada")
    with transaction.atomic():
        locked = lifecycle.lock_run(run.pk)
        lifecycle.append_events(locked, ada, "again", *[("force_resumed", {})] * 1000)
    with django_assert_max_num_queries(12):
        html = page(support, run)
    assert len([row for row in lanes(html) if row.startswith("ada")]) == 50
    assert "the newest 50 are shown" in html
