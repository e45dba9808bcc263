"""The page of worker processes."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from agentops.look.samples import HOSTILE
from runs.models import Worker
from runs.states import Status
from tests import factories
from tests.runs.limits_views.conftest import SignIn

pytestmark = pytest.mark.django_db

WORKERS = reverse("runs:workers")


def row(html: str, worker: Worker) -> str:
    found = html.partition(f'id="worker-{worker.pk}"')[2].partition("</tr>")[0]
    assert found
    return found


def test_each_worker_has_its_state_slots_runs_and_beat(ada: Client) -> None:
    live = factories.worker(host="app-1", pid=42, queues=["default", "slow"])
    draining = factories.worker(draining=True, lost_slots=2)
    lost, ended = factories.worker(beats=False), factories.worker(reaped=True)
    run = factories.run(Status.RUNNING, worker_id=live.pk)
    html = ada.get(WORKERS).content.decode()
    for text in (
        "Live",
        "<bdi>app-1</bdi>, 42",
        "default, slow",
        "1 of 4",
        reverse("runs:run", args=[run.pk]),
    ):
        assert text in row(html, live), text
    assert "Draining" in row(html, draining)
    assert "2 lost" in row(html, draining)
    assert "Lost" in row(html, lost)
    assert "Ended" in row(html, ended)
    gone = reverse("runs:declare_gone", args=[lost.pk])
    assert gone in row(html, lost)
    assert html.count("/gone/") == 1


def test_a_closed_worker_that_nobody_reaped_is_lost_however_old(ada: Client) -> None:
    old = factories.worker(beats=False)
    Worker.objects.filter(pk=old.pk).update(closed_at=old.beat_until - timedelta(days=3))
    assert "not reaped" in row(ada.get(WORKERS).content.decode(), old)


def test_one_that_ended_long_ago_is_not_shown(ada: Client) -> None:
    old = factories.worker(reaped=True)
    Worker.objects.filter(pk=old.pk).update(
        closed_at=old.beat_at - timedelta(hours=2), reaped_at=old.beat_at - timedelta(hours=2)
    )
    assert str(old.pk) not in ada.get(WORKERS).content.decode()


def test_where_there_is_none_it_says_how_to_start_one(ada: Client) -> None:
    assert "manage.py worker" in ada.get(WORKERS).content.decode()


def test_an_idle_poll_is_answered_304(ada: Client) -> None:
    factories.worker()
    first = ada.get(WORKERS, headers={"HX-Request": "true"})
    assert first.content.decode().lstrip().startswith('<div class="parts" id="workers"')
    told = {"HX-Request": "true", "HX-PTag": first["HX-PTag"]}
    assert ada.get(WORKERS, headers=told).status_code == 304
    factories.worker()
    assert ada.get(WORKERS, headers=told).status_code == 200


def test_only_those_who_may_see_workers_do(sign_in: SignIn) -> None:
    assert sign_in(factories.operator()).get(WORKERS).status_code == 200
    assert sign_in(factories.stranger()).get(WORKERS).status_code == 403
    assert Client().get(WORKERS)["Location"].startswith("/sign-in/")


def test_writing_to_it_is_refused(ada: Client) -> None:
    assert ada.post(WORKERS).status_code == 405


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_harmless(text: str, ada: Client) -> None:
    clean = text.encode("utf-8", "replace").decode().replace("\x00", "")
    factories.worker(host=clean, code_version=clean, queues=[clean])
    html = ada.get(WORKERS).content.decode()
    assert "<script>alert" not in html
    assert "\u202e" not in html


def test_the_number_of_queries_does_not_grow(ada: Client, django_assert_max_num_queries: Any) -> None:
    for _ in range(4):
        factories.run(Status.RUNNING)
    with django_assert_max_num_queries(12):
        ada.get(WORKERS)
