"""The list of runs."""

import re

import pytest

from runs import selectors
from runs.models import Run
from runs.models.run import new_id
from runs.states import FailureKind, Status
from tests import factories
from tests.harness.data import fill
from tests.runs.views.people import client_with

pytestmark = pytest.mark.django_db


def shown(response):
    """Ids of the listed runs, in order."""
    return re.findall(r'class="subject"><a href="/runs/([0-9a-f-]{36})/"', response.content.decode())


def ids(*some):
    return [str(run.pk) for run in some]


def test_it_lists_runs_newest_first_with_why_they_wait(operator):
    first, second = factories.run(), factories.signal_wait(correlation="tx-1").run
    response = operator.get("/runs/")
    assert shown(response) == ids(second, first)
    html = response.content.decode()
    assert "the signal paid for tx-1 has not come" in html
    assert "it is due, but no live worker looks at queue default; start one" in html


def test_what_needs_people_stands_on_top(operator):
    html = operator.get("/runs/").content.decode()
    assert "Nothing waits for a person." in html
    factories.run(Status.ATTENTION)
    factories.run(Status.FAILED)
    factories.run(Status.FAILED, failure_kind=FailureKind.DECLARED)
    factories.approval()
    html = operator.get("/runs/").content.decode()
    assert re.search(r"<b>1</b> in attention", html)
    assert re.search(r"<b>1</b> in the dead letter", html)
    assert re.search(r"<b>1</b> open approval<", html)
    assert html.index("in attention") < html.index("<table")


def test_filters_narrow_it_and_the_dead_letter_leaves_declared_failures_out(operator):
    waiting, failed = factories.run(Status.WAITING), factories.run(Status.FAILED)
    declared = factories.run(Status.FAILED, failure_kind=FailureKind.DECLARED, subject="order 7")
    assert shown(operator.get("/runs/?status=waiting")) == ids(waiting)
    assert shown(operator.get("/runs/?status=failed")) == ids(declared, failed)
    assert shown(operator.get("/runs/?status=dead_letter")) == ids(failed)
    assert shown(operator.get("/runs/?subject=order+7")) == ids(declared)
    assert shown(operator.get("/runs/?workflow=other")) == []
    assert len(shown(operator.get("/runs/?status=no_status"))) == 3


def test_search_finds_by_id_subject_start_key_and_error(operator):
    run = factories.run(Status.FAILED, subject="order 77", start_key="mail-8", reason="provider said 503")
    other = factories.run()
    for text in (str(run.pk), "order 77", "mail-8", "said 503"):
        assert shown(operator.get("/runs/", {"q": text})) == ids(run), text
    assert shown(operator.get("/runs/", {"q": "a\x00b"})) == []
    assert "hx-trigger" not in operator.get("/runs/?q=x").content.decode(), "a search is not polled"
    assert set(shown(operator.get("/runs/", {"q": "  "}))) == set(ids(run, other))


def test_pages_hold_fifty_and_lead_to_their_neighbours(operator):
    template = factories.run()
    for _ in range(63):
        template.pk = new_id()
        template._state.adding = True
        template.save(force_insert=True)
    first = operator.get("/runs/?status=queued")
    assert len(shown(first)) == 50
    found = re.search(r'href="(\?[^"]*before=[^"]*)"', first.content.decode())
    assert found
    older = found[1].replace("&amp;", "&")
    second = operator.get("/runs/" + older)
    assert len(shown(second)) == 14
    assert not set(shown(first)) & set(shown(second))
    assert "status=queued" in older


def test_counts_are_honest(operator, monkeypatch):
    monkeypatch.setattr(selectors, "COUNT_LIMIT", 2)
    for _ in range(4):
        factories.run(Status.ATTENTION)
    assert "<b>1,000+</b> in attention" in operator.get("/runs/").content.decode()


def test_empty_says_why(operator, support):
    assert "No runs yet" in operator.get("/runs/").content.decode()
    assert "No run is like this now." in operator.get("/runs/?status=failed").content.decode()
    html = operator.get("/runs/?q=zz&status=failed").content.decode()
    assert "No id, subject or start key begins with" in html and 'href="?status=failed"' in html


def test_a_poll_gets_the_region_or_304(operator):
    run = factories.run(Status.WAITING)
    first = operator.get("/runs/", headers={"HX-Request": "true"})
    assert first.content.decode().startswith('<div class="parts" id="runs"')
    tag = first.headers["HX-PTag"]
    assert operator.get("/runs/", headers={"HX-Request": "true", "HX-PTag": tag}).status_code == 304
    Run.objects.filter(pk=run.pk).update(step="ship")
    assert operator.get("/runs/", headers={"HX-Request": "true", "HX-PTag": tag}).status_code == 200


def test_it_takes_as_many_queries_for_many_runs_as_for_few(operator, django_assert_max_num_queries):
    operator.get("/runs/")
    for status in Status:
        factories.run(status)
        factories.signal_wait()
        factories.approval()
    with django_assert_max_num_queries(12):
        assert len(shown(operator.get("/runs/"))) == 27


def test_only_get(operator):
    assert operator.post("/runs/").status_code == 405


def test_a_wrong_role_is_refused(stranger):
    assert stranger.get("/runs/").status_code == 403


def test_who_may_not_start_sees_no_button(operator):
    assert "Start a run" in operator.get("/runs/").content.decode()
    assert "Start a run" not in client_with("view_run").get("/runs/").content.decode()


def test_a_large_table_is_shown_in_pages_and_counted_to_a_thousand(operator, django_assert_max_num_queries):
    fill(3000)
    with django_assert_max_num_queries(14):
        response = operator.get("/runs/?status=completed")
    assert len(shown(response)) == 50
    assert "1,000+" in response.content.decode()
