"""Faults that consoles of other systems had, provoked on the pages of this one; docs/faults.md says which is which."""

import re
import threading
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db import connection, connections
from django.test import Client
from django.urls import reverse

from runs import clock, doctor, selectors
from runs.models import Attempt, Run
from runs.models.operation import Kind, OpStatus
from runs.pages import reasons
from runs.states import Outcome, Status
from tests import factories
from tests.harness.data import fill
from tests.harness.server import Databases
from tests.runs.views.people import client

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("status", list(Status))
def test_list_and_page_say_the_same_of_a_run_in_every_status(operator: Client, status: Status) -> None:
    run = factories.run(status)
    badge = re.compile(r'<span class="status[^"]*"[^>]*>(?:<svg.*?</svg>)?([^<]+)<', re.DOTALL)
    page = operator.get(f"/runs/{run.pk}/").content.decode().partition("run-title")[2]
    _, _, rows = operator.get("/runs/").content.decode().partition("<tbody")
    assert badge.findall(page.partition("</header>")[0]) == [status.label]
    assert badge.findall(rows) == [status.label]


def test_the_page_shows_the_newest_reason_and_not_the_first(operator: Client) -> None:
    run = factories.run(Status.FAILED, reason="reason of today", attempt_no=2)
    for number, error in ((1, "error of yesterday"), (2, "error of today")):
        Attempt.objects.create(
            run_id=run.pk,
            step_seq=run.step_seq,
            attempt_no=number,
            epoch=number,
            step=run.step,
            outcome=Outcome.FAILED,
            started_at=clock.now(),
            ended_at=clock.now(),
            error_type="ValueError",
            error=error,
        )
    html = operator.get(f"/runs/{run.pk}/").content.decode()
    head = html.partition('id="timeline"')[0]
    assert "reason of today" in head
    assert "error of yesterday" not in head
    listed = operator.get("/runs/").content.decode()
    assert "reason of today" in listed
    assert "yesterday" not in listed


def test_a_child_that_failed_stands_first_among_hundreds_that_did_not(operator: Client) -> None:
    parent = factories.run(Status.WAITING)
    wait = factories.operation(parent, Kind.CHILD, OpStatus.OPEN, children=200, children_wanted=200)
    family: dict[str, Any] = {"parent_id": parent.pk, "parent_operation_id": wait.pk, "depth": 1}
    for index in range(199):
        factories.run(Status.COMPLETED, child_index=index, **family)
    factories.run(Status.FAILED, child_index=199, reason="no such city", **family)
    section = operator.get(f"/runs/{parent.pk}/").content.decode().partition('id="children"')[2]
    rows = section.partition("<tbody>")[2].partition("</tr>")[0]
    assert "no such city" in rows


def test_polling_leaves_the_token_of_an_open_form_valid() -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(factories.user("", "support"))
    run = factories.run()
    page = browser.get(f"/runs/{run.pk}/cancel/").content.decode()
    found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert found is not None
    for _ in range(5):
        assert browser.get(f"/runs/{run.pk}/", headers={"HX-Request": "true"}).status_code == 200
    answer = browser.post(
        f"/runs/{run.pk}/cancel/",
        {"csrfmiddlewaretoken": found[1], "seen_version": run.seen_version, "reason": "enough"},
    )
    assert answer.status_code == 302
    run.refresh_from_db()
    assert run.status == "cancelled"


def test_an_open_request_can_be_decided_after_a_reload_and_in_another_browser() -> None:
    approval = factories.approval()
    address = reverse("approvals:approval", args=[approval.pk])
    person = factories.user("", "operators")
    browsers = [Client(), Client()]
    for browser in browsers:
        browser.force_login(person)
        for _ in range(2):
            assert f"/approvals/{approval.pk}/decide/" in browser.get(address).content.decode()
    decide = reverse("approvals:decide", args=[approval.pk])
    given = {"version": approval.version, "digest": approval.digest, "verdict": "approve", "reason": ""}
    assert browsers[1].post(decide, given).status_code == 302
    approval.refresh_from_db()
    assert approval.state == "approved"
    assert f"/approvals/{approval.pk}/decide/" not in browsers[0].get(address).content.decode()


@pytest.mark.django_db(transaction=True)
def test_a_list_whose_query_takes_too_long_is_refused_and_not_shown_in_part() -> None:
    fill(200)
    browser = client("operators")
    browser.raise_request_exception = False
    connections.close_all()
    locked, release = threading.Event(), threading.Event()

    def hold() -> None:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("LOCK TABLE runs_run IN ACCESS EXCLUSIVE MODE")
            locked.set()
            release.wait(20)
            cursor.execute("ROLLBACK")
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    assert locked.wait(20)
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '50ms'")
    try:
        answer = browser.get("/runs/")
    finally:
        release.set()
        holder.join()
        connection.close()
    assert answer.status_code == 503
    assert "/runs/0" not in answer.content.decode()


def test_the_number_of_running_runs_is_that_of_the_rows_that_the_list_shows(operator: Client) -> None:
    dead = factories.worker(reaped=True)
    for _ in range(5):
        factories.run(Status.RUNNING, worker_id=dead.pk)
    factories.run(Status.COMPLETED)
    html = operator.get("/runs/?status=running").content.decode()
    shown = set(re.findall(r'class="subject"><a href="/runs/([0-9a-f-]{36})/"', html))
    assert shown == {str(pk) for pk in Run.objects.filter(status="running").values_list("pk", flat=True)}
    assert len(shown) == 5
    assert html.count("its worker") >= 5


@pytest.mark.django_db(transaction=True)
def test_a_copy_of_the_database_beside_it_changes_no_number() -> None:
    run = factories.run(Status.RUNNING)
    before = (selectors.needs(), reasons.why_not_moving(run))
    name = settings.DATABASES["default"]["NAME"]
    connections.close_all()
    url = connection.get_connection_params()
    maintenance = psycopg.conninfo.make_conninfo(
        host=url["host"], port=url["port"], user=url["user"], dbname="postgres"
    )
    databases = Databases(maintenance)
    databases.copy(name, "beside")
    try:
        beside = psycopg.conninfo.make_conninfo(maintenance, dbname="beside")
        with psycopg.connect(beside) as raw:
            # The copy's lease runs out, and its run is held by a transaction.
            raw.execute("UPDATE runs_worker SET closed_at = now()")
            raw.execute("SELECT FROM runs_run FOR UPDATE")
            assert (selectors.needs(), reasons.why_not_moving(run)) == before
            doctor.load()
            found = {problem.check for problem in doctor.examine() if problem.severity == doctor.ERROR}
            assert found <= {"durability"}
    finally:
        databases.drop("beside")
