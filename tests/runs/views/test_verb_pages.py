"""What the pages of all verbs on a run share: how much they ask the database."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from runs.models import Run
from runs.states import AttentionKind, Status
from tests import factories
from tests.runs.views.people import client_with

pytestmark = pytest.mark.django_db

FAILED = ("retry", "fork", "compare")
WAITING = ("cancel", "force-resume", "kill", "skip", "state", "signal", "priority")


@pytest.mark.parametrize("verb", FAILED + WAITING)
@pytest.mark.parametrize("effects", [0, 30])
def test_it_asks_the_database_at_most_twelve_things_however_much_the_run_has_done(admin, verb, effects):
    run = factories.run(status=Status.FAILED) if verb in FAILED else factories.signal_wait().run
    for number in range(effects):
        factories.operation(
            run, name="book_courier", position=f"{number + 2}", compensate_with="cancel_courier"
        )
    page = f"/runs/{run.pk}/{verb}/"
    admin.get(page)  # what is read once for each process
    with CaptureQueriesContext(connection) as asked:
        response = admin.get(page)
    assert response.status_code == 200
    assert len(asked) <= 12, [one["sql"] for one in asked]


@pytest.mark.parametrize("verb", ["cancel", "force-resume", "retry", "kill"])
def test_none_tells_what_failed_to_whoever_may_not_see_what_is_in_the_run(admin, verb):
    run = factories.run(Status.RETRYING) if verb == "retry" else _stuck("secret-of-the-run")
    factories.attempt(run, error_type="Refused", error="secret-of-the-run")
    page = f"/runs/{run.pk}/{verb}/"
    assert b"secret-of-the-run" in admin.get(page).content
    blind = client_with("view_run", "cancel_run", "force_resume_run", "retry_run", "kill_run").get(page)
    assert blind.status_code == 200
    assert b"secret-of-the-run" not in blind.content


def _stuck(reason: str) -> Run:
    return factories.run(Status.ATTENTION, attention_kind=AttentionKind.DIVERGED, reason=reason)
