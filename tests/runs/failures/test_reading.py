"""What pages and the inbox read of failures, and by which index."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from runs import clock, selectors
from runs.bulk.selection import Filter
from runs.diagnosis import failures
from runs.models import FailureGroup, Grant, Run
from runs.models.run import new_id
from runs.services import failures as verbs
from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def person(db):
    return factories.user("vera", "support")


def test_nothing_unhandled_is_a_state(person):
    told = failures.overview(person, failures.groups(person), "failure")
    assert (told.unhandled, told.runs, told.without, told.oldest) == (0, 0, 0, None)
    assert not failures.unhandled(person).exists()


def test_unhandled_are_all_but_the_handled_the_latest_first(person):
    one, two, three = (factories.failed(kind) for kind in ("KeyError", "Refused", "Timeout"))
    clock.shift(timedelta(minutes=1))
    factories.failed("KeyError")
    verbs.handle_failure(factories.support(), factories.fingerprint(two), reason="over")
    assert [group.pk for group in failures.unhandled(person)] == [one.fingerprint, three.fingerprint]


def test_the_overview_counts_groups_by_state_and_runs_that_are_still_failed(person):
    run = factories.failed("KeyError")
    factories.failed("KeyError")
    handled = factories.failed("Refused")
    verbs.handle_failure(factories.support(), factories.fingerprint(handled), reason="over")
    factories.run(Status.FAILED)
    told = failures.overview(person, failures.groups(person), "failure")
    assert told.by_state == {"open": 1, "acknowledged": 0, "fixed": 0, "handled": 1}
    assert (told.unhandled, told.runs, told.without, told.oldest) == (1, 2, 1, run.finished_at)


def test_counts_stop_at_the_limit(person, monkeypatch):
    monkeypatch.setattr(selectors, "COUNT_LIMIT", 2)
    for _ in range(4):
        run = factories.failed()
    group = FailureGroup.objects.get(pk=factories.fingerprint(run))
    assert failures.still(person, [group]) == {group.pk: 3}


def test_a_trend_counts_by_day_and_by_hour_up_to_now(person):
    run = factories.failed()
    clock.shift(timedelta(hours=2))
    factories.failed()
    clock.shift(timedelta(days=3))
    factories.failed()
    trend = failures.trends([factories.fingerprint(run)], clock.now())[factories.fingerprint(run)]
    assert (len(trend.days), len(trend.hours)) == (14, 24)
    assert (trend.days[-1], trend.days[-4], sum(trend.days)) == (1, 2, 3)
    assert (trend.hours[-1], sum(trend.hours)) == (1, 1)
    clock.shift(timedelta(days=14))
    assert (
        sum(failures.trends([factories.fingerprint(run)], clock.now())[factories.fingerprint(run)].days) == 0
    )


def test_pages_go_on_where_the_last_one_ended(person, monkeypatch):
    monkeypatch.setattr(failures, "GROUPS", 2)
    made = [factories.fingerprint(factories.failed(f"Error{letter}")) for letter in "ABCDE"]
    FailureGroup.objects.filter(pk__in=made[:2]).update(last_at=clock.now())  # two at the same moment
    seen, place = [], None
    while True:
        shown, place, _ = failures.page(failures.groups(person), place and failures.Place.parse(str(place)))
        seen += [group.pk for group in shown]
        if place is None:
            break
    assert sorted(seen) == sorted(made)
    assert len(seen) == 5


@pytest.mark.parametrize(
    "text",
    ["", "x", "1", "1.x", "9999999999999999999.01a22b13-1f6f-741d-a87e-a7b6ddf84cd6", "-1.5", "١.x", "1e5.x"],
)
def test_what_is_no_place_asks_for_the_first_page(text):
    assert failures.Place.parse(text) is None


def test_who_sees_a_part_of_the_runs_sees_their_groups_and_counts_theirs_alone():
    parcels, letters = factories.failed(), factories.failed(workflow="letter")
    factories.failed(subject="refund 1")
    one, two = factories.user("one"), factories.user("two")
    Grant.objects.create(user=one, capability="view", scope="workflow", name="letter", granted_by="x")
    Grant.objects.create(user=two, capability="view", scope="subject", name="refund ", granted_by="x")
    assert [group.pk for group in failures.unhandled(one)] == [letters.fingerprint]
    (group,) = failures.unhandled(two)
    assert group.pk == parcels.fingerprint
    assert failures.still(two, [group]) == {group.pk: 1}
    assert not failures.seen_whole(two, group)
    assert not failures.may_read(one, FailureGroup.objects.get(pk=factories.fingerprint(letters)))


# --- indexes -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def many(person):
    """20,000 runs of which 2,000 are failed, in 40 groups; analysed. One of the groups' fingerprints."""
    failed, good = factories.failed(), factories.run(Status.COMPLETED)
    copied = (
        "INSERT INTO runs_run SELECT made.* FROM runs_run r CROSS JOIN generate_series(1, %s) AS number"
        " CROSS JOIN LATERAL jsonb_populate_record(r, jsonb_build_object('id', gen_random_uuid(),"
        " 'fingerprint', CASE WHEN r.fingerprint IS NOT NULL THEN md5((number %% 40)::text) END)) AS made WHERE r.id = %s"
    )
    groups = (
        "INSERT INTO runs_failure_group SELECT made.* FROM runs_failure_group g CROSS JOIN generate_series(0, 39) AS number"
        " CROSS JOIN LATERAL jsonb_populate_record(g, jsonb_build_object('fingerprint', md5(number::text))) AS made"
    )
    with connection.cursor() as cursor:
        cursor.execute(copied, [2000, failed.pk])
        cursor.execute(copied, [18000, good.pk])
        cursor.execute(groups)
        cursor.execute("ANALYZE runs_run")
        cursor.execute("ANALYZE runs_failure_group")
    return (
        Run.objects.exclude(pk=failed.pk)
        .filter(status=Status.FAILED)
        .values_list("fingerprint", flat=True)[0]
    )


def plan(sql: str, parameters: Any) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}", parameters)
        return "\n".join(line for (line,) in cursor.fetchall())


def test_lists_and_counts_read_indexes_and_never_the_whole_table(many, person):
    of_one = failures.runs_of(person, many, Status.FAILED)
    for rows in (of_one[:51], of_one.order_by().values("pk")[:1001], of_one.filter(pk__lt=new_id())[:51]):
        assert "run_by_fingerprint" in plan(*rows.query.sql_with_params())
    left = failures.unhandled(person)
    runs = Run.objects.filter(status=Status.FAILED, fingerprint__in=left.order_by().values("pk"))
    for rows in (runs.values("pk")[:1001], failures.without().values("pk")[:100]):
        assert "Seq Scan on runs_run" not in plan(*rows.query.sql_with_params())
    assert "run_without_fingerprint" in plan(*failures.without().values("pk")[:100].query.sql_with_params())


def test_nothing_of_a_list_of_groups_is_sorted(many, person):
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    for rows, index in (
        (failures.unhandled(person), "failure_unhandled"),
        (failures.groups(person).filter(state="handled"), "failure_by_state"),
    ):
        read = plan(*rows[: failures.GROUPS + 1].query.sql_with_params())
        assert index in read
        assert "Sort" not in read


# --- as a bulk -----------------------------------------------------------------------------------------------------------


def test_a_bulk_chooses_the_failed_runs_of_one_group(many, person):
    run, other = factories.failed("Refused"), factories.failed("Timeout")
    chosen = Filter.of({"status": "failed", "fingerprint": str(run.fingerprint)})
    assert list(chosen.narrowed(chosen.among(Status.FAILED))) == [run]
    assert other not in chosen.among(Status.FAILED)
    read = plan(*chosen.among(Status.FAILED).order_by("pk").values("pk")[:100].query.sql_with_params())
    assert "run_by_fingerprint" in read
