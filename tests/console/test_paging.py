"""Keyset paging: no row twice, none left out, whatever is added meanwhile."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from django.http import QueryDict

from agentops.console.paging import page
from runs.models.worker import Worker

AT = datetime(2026, 11, 29, tzinfo=UTC)


def _add(*numbers: int) -> None:
    Worker.objects.bulk_create(
        Worker(
            id=UUID(int=number), host="h", pid=number, queues=[], capabilities=[], slots=1,
            started_at=AT, beat_at=AT, beat_until=AT,
        )
        for number in numbers
    )  # fmt: skip


def _pids(query: str) -> tuple[list[int], str, str]:
    found = page(Worker.objects.all(), QueryDict(query), size=3)
    return [row.pid for row in found.rows], found.newer.removeprefix("?"), found.older.removeprefix("?")


@pytest.mark.django_db
def test_older_and_newer_lead_through_all_rows_and_back() -> None:
    _add(*range(1, 9))
    first, newer, older = _pids("q=lamp")
    assert (first, newer) == ([8, 7, 6], "")
    second, _, older = _pids(older)
    third, back, end = _pids(older)
    assert (second, third, end) == ([5, 4, 3], [2, 1], "")
    assert _pids(back)[0] == [5, 4, 3]
    assert back.startswith("q=lamp&after=")


@pytest.mark.django_db
def test_rows_that_arrive_meanwhile_move_nothing() -> None:
    _add(*range(1, 7))
    _, _, older = _pids("")
    _add(7, 8, 9)
    assert _pids(older)[0] == [3, 2, 1]


@pytest.mark.django_db
def test_a_page_beyond_the_last_row_leads_back_to_the_first() -> None:
    _add(5)
    rows, newer, older = _pids(f"before={UUID(int=1)}")
    assert (rows, newer, older) == ([], "", "")
    found = page(Worker.objects.all(), QueryDict(f"before={UUID(int=1)}"), size=3)
    assert found.newer == "?"


@pytest.mark.django_db
@pytest.mark.parametrize("query", ["before=nonsense", "after='; DROP TABLE runs_worker", "before="])
def test_a_key_that_is_none_shows_the_first_page(query: str) -> None:
    _add(1, 2)
    assert _pids(query)[0] == [2, 1]


@pytest.mark.django_db
def test_everything_on_one_page_needs_no_links() -> None:
    _add(1, 2)
    assert page(Worker.objects.all(), QueryDict(""), size=3).alone
