"""Search looks things up; it never reads all runs."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentops.benchmark.fill import fill
from agentops.benchmark.works.pages import ask, long_run
from runs import search, selectors
from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db


def found(text: str) -> set[object]:
    return set(search.matching(text))


def test_a_run_is_found_by_the_ends_of_its_subject_its_start_key_its_workflow_and_its_error():
    run = factories.run(Status.FAILED, subject="Order 1042", start_key="Mail-8-x", reason="provider said 503")
    factories.run(subject="order 7", start_key="other")
    for text in ("order 10", "1042", "42", "MAIL-8", "said", "Order 1042", str(run.pk)[:20], run.pk.hex):
        assert found(text) == {run.pk}, text
    assert len(found("parcel")) == 2
    for text in ("der 10", "8-x", "parce", "1042 "):
        assert found(text) == set(), text


def test_the_error_is_looked_for_in_runs_that_failed_or_need_attention():
    failed = factories.run(Status.FAILED, reason="no answer from paybridge")
    standing = factories.run(Status.ATTENTION, reason="no answer from paybridge, and no receipt")
    assert found("from PAYBRIDGE") == {failed.pk, standing.pk}


@pytest.mark.parametrize("text", ["%", "_", "\\", "order%", "100%_", "\\%", "'", "; --"])
def test_signs_of_patterns_stand_for_themselves(text):
    factories.run(subject="order 7", start_key="k")
    assert found(text) == set()
    run = factories.run(subject=f"{text} at the beginning")
    other = factories.run(subject=f"at the end {text}")
    assert found(text) == {run.pk, other.pk}


def test_each_way_finds_so_many_and_no_more(monkeypatch):
    monkeypatch.setattr(search, "LIMIT", 3)
    for _ in range(5):
        factories.run(subject="order 7")
    assert len(found("order")) == 3


def test_a_search_within_a_status_is_narrowed_by_it():
    factories.run(Status.WAITING, subject="order 7")
    failed = factories.run(Status.FAILED, subject="order 7")
    assert [run.pk for run in selectors.runs(search="order", status=Status.FAILED)] == [failed.pk]


@pytest.mark.django_db(transaction=True)
def test_every_way_has_an_index():
    fill(500)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE runs_run SET start_key = 'mail ' || id")
        cursor.execute("VACUUM ANALYZE runs_run")
        # What is small is read as a whole all the same, if that is allowed.
        cursor.execute("SET enable_seqscan = off")
        plans = []
        for text in ("order 77", "0198"):
            with CaptureQueriesContext(connection) as caught:
                search.matching(text)
            cursor.execute(f"EXPLAIN {caught.captured_queries[-1]['sql']}")
            plans += [line for (line,) in cursor.fetchall()]
        cursor.execute("RESET enable_seqscan")
    plan = "\n".join(plans)
    for index in (
        "run_subject_begins",
        "run_subject_ends",
        "run_start_key",
        "run_by_workflow",
        "runs_run_pkey",
    ):
        assert f" {index} " in plan, plan
    assert "Seq Scan" not in plan


@pytest.mark.django_db(transaction=True)
def test_pages_make_the_same_queries_however_much_there_is(settings):
    settings.ALLOWED_HOSTS = ["localhost"]
    fill(200)
    few = {name: asked.queries for name, asked in ask(long_run(30), 1).items()}
    # The same runs again: whether one of a page is unfinished, which asks for its reason, does not change.
    for _ in range(3):
        fill(200)
    many = {name: asked.queries for name, asked in ask(long_run(300), 1).items()}
    assert many.keys() >= few.keys()
    assert {name: count for name, count in many.items() if count > 12} == {}
    # A page of an earlier attempt exists on the longer run alone.
    more = {name: (few[name], many[name]) for name in few if many[name] > few[name]}
    assert set(more) <= {"run earlier", "run attempt"}


def test_a_page_of_a_long_run_is_no_longer_than_that_of_a_short_one(admin):
    run = factories.run(Status.WAITING)
    long_run_rows = 400
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runs_attempt (run_id, step_seq, attempt_no, epoch, step, outcome, started_at, ended_at, error_type,"
            " error, traceback, closed_by) SELECT %s, n, 1, n, 'pack', 'succeeded', now(), now(), '', '', '', ''"
            " FROM generate_series(1, %s) n",
            [run.pk, long_run_rows],
        )
    html = admin.get(f"/runs/{run.pk}/").content.decode()
    assert html.count('class="attempt"') <= selectors.ATTEMPTS
    assert "Earlier" in html and len(html) < 300_000


def test_what_is_counted_up_to_a_thousand_says_so(admin):
    run = factories.run(Status.WAITING)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runs_attempt (run_id, step_seq, attempt_no, epoch, step, outcome, started_at, ended_at, error_type,"
            " error, traceback, closed_by) SELECT %s, n, 1, n, 'pack', 'failed', now(), now(), '', '', '', ''"
            " FROM generate_series(1, 1200) n",
            [run.pk],
        )
    assert "1,000+ ended, 1,000+ failed" in admin.get(f"/runs/{run.pk}/").content.decode()


@pytest.fixture
def admin(db: None) -> Client:
    client = Client()
    client.force_login(factories.user("", "admins"))
    return client
