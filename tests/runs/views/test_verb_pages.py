"""What the pages of all verbs on a run share: how much they ask the database."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db

FAILED = ("retry", "fork", "compare")
WAITING = ("cancel", "force-resume", "kill", "skip", "state", "signal")


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
