"""The webhook endpoint."""

import json
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.conf import settings as project
from django.test import Client
from standardwebhooks import Webhook

from runs.models import Signal
from runs.models.operation import OpStatus
from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db

URL = "/webhooks/shop"


def post(body, *, webhook_id="msg_1", at=None, secret=None, signed=None, **headers):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    moment = at or datetime.now(UTC)
    signature = Webhook(secret or project.AGENTOPS_WEBHOOK_SECRET).sign(
        webhook_id, moment, (signed or raw).decode(errors="replace")
    )
    given = {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": signature,
    } | headers
    return Client(enforce_csrf_checks=True).post(
        URL, raw, content_type="application/json", headers={k: v for k, v in given.items() if v is not None}
    )


def settled(**address):
    return {"type": "paid", "data": {"amount": 3} | address}


def test_a_signed_webhook_settles_the_wait_of_its_run():
    wait = factories.signal_wait()
    response = post(settled(run_id=str(wait.run_id)))
    assert response.status_code == 200
    signal = Signal.objects.get()
    assert response.json() == {"signal": str(signal.pk), "answer": "delivered to the wait that it was for"}
    wait.refresh_from_db()
    assert wait.status == OpStatus.DONE
    assert (signal.source, signal.external_id, signal.name, signal.sent_by) == (
        "shop",
        "msg_1",
        "paid",
        "webhook shop",
    )


def test_a_webhook_finds_its_run_by_correlation_key():
    wait = factories.signal_wait(correlation="tx-1")
    assert post(settled(correlation="tx-1")).status_code == 200
    wait.refresh_from_db()
    assert wait.status == OpStatus.DONE


def test_a_webhook_before_its_wait_is_kept():
    assert post(settled(correlation="tx-1")).json()["answer"].startswith("kept")


def test_the_same_webhook_again_is_answered_alike_and_counts_once():
    wait = factories.signal_wait()
    first, again = post(settled(run_id=str(wait.run_id))), post(settled(run_id=str(wait.run_id)))
    assert (again.status_code, again.json()) == (200, first.json())
    assert Signal.objects.count() == 1


def test_a_webhook_for_a_finished_run_is_answered_and_stored():
    run = factories.run(Status.COMPLETED)
    response = post(settled(run_id=str(run.pk)))
    assert response.status_code == 200 and "finished" in response.json()["answer"]
    assert Signal.objects.get().ignored


def test_a_webhook_for_an_unknown_run_is_404():
    assert post(settled(run_id=str(uuid.uuid4()))).status_code == 404


@pytest.mark.parametrize(
    "changes",
    [
        {"secret": "whsec_b3RoZXIgc2VjcmV0IG90aGVyIHNlY3JldA=="},
        {"at": timedelta(minutes=-6)},
        {"at": timedelta(minutes=6)},
        {"signed": b'{"type": "paid", "data": {"amount": 4}}'},
        {"webhook-signature": None},
        {"webhook-signature": "v1"},
        {"webhook-signature": "v1,%%%"},
        {"webhook-signature": "v2,AAAA"},
        {"webhook-id": None},
        {"webhook-id": "msg_2"},
        {"webhook-timestamp": "yesterday"},
    ],
)
def test_what_is_not_signed_for_exactly_this_message_now_is_refused(changes):
    wait = factories.signal_wait()
    if "at" in changes:
        changes = {"at": datetime.now(UTC) + changes["at"]}
    response = post(settled(run_id=str(wait.run_id)), **changes)
    assert response.status_code == 401
    assert "signature" in response.json()["error"]
    assert not Signal.objects.exists()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "JSON"),
        (b'{"type": "paid", "data": {"amount": NaN}}', "NaN"),
        ([], "type"),
        ({"type": 3, "data": {}}, "type"),
        ({"type": "paid"}, "data"),
        ({"type": "paid", "data": {}}, "correlation key"),
        ({"type": "paid", "data": {"run_id": "seven"}}, "run_id"),
        ({"type": "paid", "data": {"run_id": 7}}, "run_id"),
        ({"type": "paid", "data": {"correlation": 7}}, "correlation"),
    ],
)
def test_a_body_that_says_nothing_usable_is_400_with_the_reason(body, says):
    response = post(body)
    assert response.status_code == 400
    assert says in response.json()["error"]


def test_a_body_that_is_no_text_is_refused_before_it_is_parsed():
    assert post(b"\xff\xfe\x00").status_code == 401


def test_a_body_above_the_limit_is_413(settings):
    settings.AGENTOPS_PAYLOAD_LIMIT = 100
    assert post(settled(correlation="x" * 200)).status_code == 413


def test_without_a_secret_nothing_is_accepted(settings):
    settings.AGENTOPS_WEBHOOK_SECRET = ""
    assert post(settled(correlation="tx"), secret="whsec_YWFhYWFhYWFhYWFhYWFhYWFhYWE=").status_code == 503


def test_only_post_is_answered():
    assert Client().get(URL).status_code == 405
