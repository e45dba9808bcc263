"""A bulk of many runs beside new ones, against a real worker that is too small for all of them at once."""

import math
import os
import time
from collections.abc import Callable

import pytest
from django.db import connection

from runs import codec
from runs.bulk.selection import Filter
from runs.lifecycle import Actor
from runs.models import Attempt, Bulk, Run
from runs.services import bulk, start
from runs.states import Status
from tests import factories
from tests.chaos.conftest import QUICK
from tests.e2e.shop.workflows import Order
from tests.harness.processes import Processes

#: Seconds that a retried run keeps a slot.
TAKES = "0.05"


def many(number: int) -> None:
    """Failed runs of `print_label`, copies of one, made inside PostgreSQL."""
    given = codec.encode(Order(order="7"))
    one = factories.run(
        Status.FAILED,
        workflow="print_label",
        step="print_it",
        state={"address": "7 Main Street"},
        input=given,
        input_digest=codec.digest(given),
    )
    names = ", ".join(f'"{field.column}"' for field in Run._meta.local_concrete_fields if field.name != "id")
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO runs_run (id, {names}) SELECT gen_random_uuid(), {names} FROM runs_run,"
            " generate_series(2, %s) WHERE id = %s",
            [number, one.pk],
        )
        cursor.execute("ANALYZE runs_run")


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def waits(number: int, actor: Actor) -> list[float]:
    """Start so many runs, one every 50 ms, and return the seconds from each start to its first attempt."""
    begun = []
    for order in range(number):
        begun.append(start(actor, "print_label", {"order": f"new {order}"}).run.pk)
        time.sleep(0.05)  # the pace of the load, not a wait for something
    deadline = time.monotonic() + 60
    while Run.objects.filter(pk__in=begun, finished_at=None).exists():
        assert time.monotonic() < deadline, "a new run does not end"
        time.sleep(0.1)
    first = Attempt.objects.filter(run_id__in=begun, step_seq=1, attempt_no=1)
    created = dict(Run.objects.filter(pk__in=begun).values_list("pk", "created_at"))
    return [(one.started_at - created[one.run_id]).total_seconds() for one in first]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("runs", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_new_runs_start_while_a_bulk_offers_workers_more_than_they_can_do(
    runs: int,
    processes: Processes,
    tmp_path: os.PathLike[str],
    record_property: Callable[[str, object], None],
) -> None:
    printer = processes.folder / "printer"
    printer.touch()
    shop = QUICK | {"AGENTOPS_APPS": "tests.e2e.shop", "LABEL_PRINTER": str(printer), "PRINTING_TAKES": TAKES}
    many(runs)
    person = factories.support("sam")
    processes.worker("--slots", "2", processes=1, env=shop)
    alone = waits(1 if runs < 1000 else 20, person)  # for the figure that the long form tells
    made = bulk.create_bulk(
        person, "retry", Filter(workflow="print_label"), name="Outage", reason="over", rate=6000, canary=1
    ).bulk

    def is_now(status: str) -> Callable[[], bool]:
        return lambda: Bulk.objects.filter(pk=made.pk, status=status).exists()

    processes.wait_until(is_now("ready"), 120, "the runs are counted")
    bulk.start_bulk(person, made.pk)
    processes.wait_until(is_now("review"), 20, "the first run is done")
    bulk.continue_bulk(person, made.pk)
    processes.wait_until(lambda: Bulk.objects.get(pk=made.pk).done > 20, 20, "the bulk is at work")
    beside = waits(40 if runs < 1000 else 400, person)
    made.refresh_from_db()
    figures = {
        name: round(percentile(values, 0.99), 3) for name, values in (("alone", alone), ("beside", beside))
    }
    record_property("p99_s", figures)
    print(
        f"p99 of a new run's start: {figures}, {made.done} of {made.total} retried meanwhile, {made.status}"
    )
    assert made.status == "running"
    assert percentile(beside, 0.99) < 3
