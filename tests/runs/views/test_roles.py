"""Every address of runs × every role × look and do, against one table."""

from dataclasses import dataclass
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, reverse

from runs import urls
from runs.models import Attempt, Message
from runs.states import Status
from tests import factories
from tests.runs.views.people import client

pytestmark = pytest.mark.django_db

ROLES = ("operators", "support", "admins")
#: In no group: signed in, with no permission.
STRANGER = "stranger"

ALL, SUPPORT = frozenset(ROLES), frozenset({"support", "admins"})


@dataclass(frozen=True)
class May:
    """Who may look at the page (GET) and who may use its form (POST); None: the page has no form."""

    look: frozenset[str]
    do: frozenset[str] | None = None


TABLE = {
    "list": May(ALL),
    "subject": May(ALL),
    "run": May(ALL),
    "attempt": May(ALL),
    "operation": May(ALL),
    "value": May(ALL),
    "operation_value": May(ALL),
    "record_value": May(ALL),
    "start": May(ALL),
    "start_workflow": May(ALL, ALL),
    "retry": May(SUPPORT, SUPPORT),
    "cancel": May(SUPPORT, SUPPORT),
    "fork": May(SUPPORT, SUPPORT),
    "skip": May(SUPPORT, SUPPORT),
    "edit_state": May(SUPPORT, SUPPORT),
    "kill": May(frozenset({"admins"}), frozenset({"admins"})),
    "evidence": May(ALL),
    "force_resume": May(SUPPORT, SUPPORT),
    "signal": May(SUPPORT, SUPPORT),
    "failures": May(ALL),
    "failure": May(ALL),
    "change_failure": May(SUPPORT, SUPPORT),
    "compare": May(ALL),
    "answer_doubt": May(ALL, ALL),
    "declare_gone": May(ALL, ALL),
}
#: No pages, only forms: tests/runs/views/test_bundle.py.
SENT = {"bundle"}
#: Signed by whoever calls, not by a session: tests/runs/test_webhooks.py.
SIGNED = {"webhook"}


@pytest.fixture
def addresses() -> dict[str, str]:
    """An address of each page, of a run that has what the page shows."""
    doubt = factories.doubt()
    run = doubt.run
    Attempt.objects.create(
        run_id=run.pk,
        step_seq=1,
        attempt_no=1,
        epoch=1,
        step="pack",
        outcome="suspended",
        started_at=run.created_at,
        ended_at=run.created_at,
    )
    message = Message.objects.create(
        run_id=run.pk, step_seq=1, position="000001", attempt_no=1, role="user", content="hello", digest="d"
    )
    failed, waiting = factories.run(Status.FAILED), factories.run(Status.WAITING)
    broken = factories.failed()
    arguments: dict[str, list[Any]] = {
        "list": [],
        "subject": [],
        "start": [],
        "start_workflow": ["parcel"],
        "run": [run.pk],
        "attempt": [run.pk, 1, 1],
        "operation": [run.pk, doubt.pk],
        "value": [run.pk, "state"],
        "operation_value": [run.pk, doubt.pk, "request"],
        "record_value": [run.pk, "messages", message.pk],
        "retry": [failed.pk],
        "cancel": [waiting.pk],
        "fork": [failed.pk],
        "skip": [failed.pk],
        "edit_state": [failed.pk],
        "kill": [waiting.pk],
        "evidence": [run.pk, doubt.pk, factories.evidence(doubt).pk],
        "force_resume": [waiting.pk],
        "signal": [waiting.pk],
        "failures": [],
        "failure": [broken.fingerprint],
        "change_failure": [broken.fingerprint, "acknowledge"],
        "compare": [broken.pk],
        "answer_doubt": [run.pk, doubt.pk],
        "declare_gone": [factories.worker(beats=False).pk],
    }
    return {name: reverse(f"runs:{name}", args=given) for name, given in arguments.items()}


def test_the_table_names_every_address():
    named = {pattern.name for pattern in urls.urlpatterns if isinstance(pattern, URLPattern)}
    assert named == set(TABLE) | SIGNED | SENT


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("role", [*ROLES, STRANGER])
def test_who_may_look_and_who_may_do(name, role, addresses):
    browser, may = client(*([role] if role in ROLES else [])), TABLE[name]
    looked = browser.get(addresses[name]).status_code
    assert looked == (200 if role in may.look else 403)
    # An empty form: whoever may is told what is missing, whoever may not is refused before.
    done = browser.post(addresses[name], {}).status_code
    if may.do is None:
        assert done in (405, 403)
    else:
        assert done == (422 if role in may.do else 403)


@pytest.mark.parametrize("name", TABLE)
def test_an_anonymous_visitor_sees_the_sign_in_page_only(name, addresses):
    for answer in (Client().get(addresses[name]), Client().post(addresses[name], {})):
        assert answer.status_code == 302
        assert answer.headers["Location"].startswith("/sign-in/?next=")
    polled = Client().get(addresses[name], headers={"HX-Request": "true"})
    assert (polled.status_code, polled.content) == (401, b"You are signed out.")


@pytest.mark.parametrize("name", [name for name, may in TABLE.items() if may.do is not None])
def test_a_form_without_its_token_is_refused(name, addresses):
    browser = client("admins")
    browser.handler.enforce_csrf_checks = True
    assert browser.post(addresses[name], {}).status_code == 403
