"""The page of one operation: what came of it, in a sentence; each time that it was sent; what it belongs to."""

import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from runs import clock, lifecycle, services
from runs.models import Run
from runs.models.operation import Kind, OpStatus
from runs.services.doubt import File
from runs.states import Status
from tests import factories
from tests.runs.views.people import client_with

pytestmark = pytest.mark.django_db

ASKED = {"order": "1042", "amount": "184.50", "currency": "EUR"}


def page(client, operation):
    response = client.get(f"/runs/{operation.run_id}/operations/{operation.pk}/")
    assert response.status_code == 200
    return response.content.decode()


def because(html):
    """The sentences that the page begins with, as text."""
    return re.sub(r"<[^>]+>", "", html[html.index('class="because"') :].partition("</p>")[0]).partition(">")[
        2
    ]


def sent(error="", *, answered=False, by="", ended=True, **more):
    """An earlier send, as the engine keeps it."""
    at = datetime(2026, 11, 30, 14, 2, tzinfo=UTC)
    return {
        "at": at.isoformat(),
        "attempt": 1,
        "epoch": 1,
        "worker": str(uuid.uuid4()),
        "key": str(uuid.uuid4()),
        "ended": at.isoformat() if ended else None,
        "answered": answered,
        "error_type": error and "ReadTimeout",
        "error": error,
        "by": by,
    } | more


def charge(run=None, **fields):
    run = run or factories.run(Status.COMPLETED)
    given: dict[str, Any] = {"name": "charge_customer", "request": ASKED, "provider_ref": "ch_1", "tries": 1}
    return factories.operation(run, **(given | fields))


# --- the sentence ----------------------------------------------------------------------------------------------------------


def test_it_says_what_was_done_how_much_when_and_what_the_provider_calls_it(support):
    operation = charge(earlier_sends=[sent("no answer within 28 s")])
    at = f"{operation.finished_at:%H:%M:%S}"
    assert because(page(support, operation)) == (
        f"Charged customer €184.50 once, at {at}; provider reference ch_1. Sent twice; the first got no answer."
    )


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "Sent once, and answered."),
        ({"settled_by": "verify"}, "Sent once; it got no answer. The provider was asked, and has it."),
        ({"settled_by": "bob"}, "Sent once; it got no answer. bob found out and said so."),
        (
            {"settled_by": "verify", "earlier_sends": [sent("lost")]},
            "Sent twice; neither got an answer. The provider was asked, and has it.",
        ),
        (
            {"earlier_sends": [sent("503", answered=True)]},
            "Sent twice; the first answer was an error.",
        ),
        ({"earlier_sends": [sent(answered=True, error_type="NotSent")]}, "Sent once, and answered."),
        ({"earlier_sends": [sent(error_type="NotSent")]}, "Sent once, and answered."),
    ],
)
def test_it_says_how_often_it_was_sent_and_who_knows(fields, told, support):
    assert because(page(support, charge(**fields))).endswith(f"ch_1. {told}")


@pytest.mark.parametrize(
    ("status", "fields", "told"),
    [
        (OpStatus.FAILED, {"error_type": "Refused"}, "charge_customer did not happen."),
        (OpStatus.RETRY, {"error_type": "Busy"}, "charge_customer has not happened so far."),
        (OpStatus.PENDING, {}, "Nobody knows whether charge_customer happened."),
        (
            OpStatus.RETRY,
            {"error_type": "ReadTimeout", "settled_by": "verify"},
            "charge_customer has not happened so far. Sent once; it got no answer; the provider was asked and did not have it.",
        ),
        (
            OpStatus.PENDING,
            {"error_type": "NotSent", "earlier_sends": [sent("lost")]},
            "Nobody knows whether charge_customer happened. Sent once; it got no answer.",
        ),
    ],
)
def test_it_says_what_is_true_of_one_that_is_not_done(status, fields, told, support):
    run = factories.run(Status.ATTENTION)
    operation = charge(run, status=status, provider_ref="", **fields)
    assert because(page(support, operation)).startswith(told)


def test_what_was_proved_absent_under_a_cancel_is_not_said_to_be_sent_again(support):
    run = factories.run(Status.CANCELLED)
    operation = charge(run, status=OpStatus.RETRY, settled_by="verify", error_type="ReadTimeout")
    assert because(page(support, operation)) == (
        "charge_customer did not happen. Sent once; it got no answer; the provider was asked and did not have it."
    )


@pytest.mark.parametrize(
    ("kind", "fields", "told"),
    [
        (
            Kind.APPROVAL,
            {"result": {"verdict": "approved"}, "settled_by": "olga"},
            "Approval of charge_customer: approved by olga at",
        ),
        (Kind.SIGNAL, {"name": "paid"}, "Signal paid: it came at"),
        (Kind.TIMER, {"name": ""}, "Timer: it ran out at"),
        (Kind.CHILD, {"name": ""}, "Child runs: they have ended at"),
        (Kind.MODEL, {"name": "gpt"}, "Model gpt answered at"),
        (Kind.QUERY, {"name": "get_order"}, "Query get_order answered at"),
    ],
)
def test_it_says_what_became_of_a_wait_and_of_a_question(kind, fields, told, support):
    run = factories.run(Status.COMPLETED)
    operation = factories.operation(run, kind, **({"name": "charge_customer"} | fields))
    assert because(page(support, operation)).startswith(told)


# --- sends -----------------------------------------------------------------------------------------------------------------


def test_every_send_stands_there_with_its_attempt_worker_and_what_came_of_it(support):
    first, second = sent("no answer within 28 s"), sent("no route", answered=True, error_type="Busy")
    operation = charge(earlier_sends=[first, second], step_seq=1, attempt_no=3)
    html = page(support, operation)
    rows = html[html.index('class="log sends"') :].partition("</ol>")[0].split("<li ")[1:]
    assert len(rows) == 3
    assert "It <bdi>got no answer</bdi>" in rows[0] and "no answer within 28 s" in rows[0]
    assert first["worker"][:13] in rows[0] and first["key"] in rows[0]
    assert "was answered with an error, Busy: it did not happen" in rows[1]
    assert "was answered: it happened" in rows[2]
    assert f"/runs/{operation.run_id}/attempts/1/3/" in rows[2]


def test_who_may_not_see_payloads_reads_neither_amount_nor_errors(support):
    operation = charge(earlier_sends=[sent("secret-1")], request={"amount": "77.10", "currency": "EUR"})
    seen, hidden = page(support, operation), page(client_with("view_run"), operation)
    assert "secret-1" in seen and "77.10" in seen
    assert "secret-1" not in hidden and "77.10" not in hidden
    assert because(hidden).startswith("Charged customer once, at ")


# --- what it belongs to ----------------------------------------------------------------------------------------------------


def test_an_effect_and_what_undid_it_lead_to_each_other(support):
    run = factories.run(Status.CANCELLED)
    done = charge(run)
    undone = factories.operation(run, name="refund", compensates=done.pk)
    html = page(support, done)
    assert f'href="/runs/{run.pk}/operations/{undone.pk}/"' in html
    assert "It was undone by refund, at " in html
    assert f'href="/runs/{run.pk}/operations/{done.pk}/"' in page(support, undone)


def test_an_effect_and_the_fork_that_took_it_over_lead_to_each_other(support):
    run = factories.run(Status.COMPLETED)
    done = charge(run)
    fork = factories.run(Status.WAITING, forked_from=run.pk, forked_visit=1)
    copy = charge(fork, copied_from=done.pk, position=done.position, step_seq=done.step_seq)
    assert f'href="/runs/{fork.pk}/operations/{copy.pk}/"' in page(support, done)
    html = page(support, copy)
    assert f'href="/runs/{run.pk}/operations/{done.pk}/"' in html
    assert "did not do it again" in html


def test_it_says_who_answered_a_doubt_with_which_reason_and_file(support):
    doubt = factories.doubt(call_ended_at=clock.now() - timedelta(hours=1), name="book_courier")
    services.answer_doubt(
        factories.support("tomas"),
        doubt.pk,
        happened=True,
        reference="bk-9",
        reason="seen in their ledger",
        file=File("ledger.png", b"seen"),
    )
    html = page(support, doubt)
    answers = html[html.index('id="answers"') :].partition("</section>")[0]
    for text in ("tomas", "It happened", "bk-9", "seen in their ledger", "ledger.png"):
        assert text in answers, text


@pytest.mark.parametrize("happened", [True, False])
def test_what_its_last_call_said_stays_when_somebody_finds_out_what_became_of_it(happened, support):
    lost = {"error_type": "ReadTimeout", "error": "no answer within 28 s"}
    worker = factories.worker(reaped=True)
    doubt = factories.doubt(call_ended_at=clock.now(), intent_worker_id=worker.pk, **lost)
    clock.shift(timedelta(minutes=5))
    given: dict[str, Any] = {"reference": "bk-9"} if happened else {}
    services.answer_doubt(factories.support("tomas"), doubt.pk, happened=happened, **given)
    html = page(support, doubt)
    sends = html[html.index('class="log sends"') :].partition("</ol>")[0]
    assert "ReadTimeout: no answer within 28 s" in sends
    assert "28 s" not in page(client_with("view_run"), doubt)
    # Of the run it is no error any more.
    assert b"error-line" not in support.get(f"/runs/{doubt.run_id}/").content


# --- size ------------------------------------------------------------------------------------------------------------------


def test_it_takes_at_most_twelve_queries(support, django_assert_max_num_queries):
    doubt = factories.doubt(earlier_sends=[sent("lost")] * 50)
    with transaction.atomic():
        lifecycle.append_event(
            Run.objects.select_for_update().get(pk=doubt.run_id), "noted", factories.SYSTEM
        )
    with django_assert_max_num_queries(12):
        html = page(support, doubt)
    assert "between the first and the latest 50 there were more" in html
