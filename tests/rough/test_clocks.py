"""Workers whose clocks are ten minutes apart, each in a time zone of its own: the database's clock decides."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from django.db.models import F

from agentops.sandbox.client import SandboxLedger
from runs.engine.classify import classify
from runs.models import Attempt, Operation, Run, Worker
from tests.harness.processes import Child, Processes
from tests.rough.conftest import (
    Cluster,
    Login,
    assert_nothing_lost_or_repeated,
    begin,
    left,
    nobody_was_taken_for_dead,
)

pytestmark = pytest.mark.django_db(transaction=True)

# Debian's package libfaketime; moves the wall clock of a process and of what it starts.
LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
SLEEP_S = 1.5


@pytest.fixture
def shifted() -> dict[str, dict[str, str]]:
    """The environments of processes with other clocks."""
    if LIBRARY is None:
        if os.environ.get("CI") == "true":
            pytest.fail("libfaketime is not installed: apt-get install libfaketime")
        pytest.skip("libfaketime is not installed")
    # Only the wall clock: leases count on one that nobody sets.
    shared = {"LD_PRELOAD": str(LIBRARY), "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    return {
        "ahead": shared | {"FAKETIME": "+10m", "TZ": "Asia/Kolkata"},
        "behind": shared | {"FAKETIME": "-10m", "TZ": "America/St_Johns"},
    }


def test_clocks_ten_minutes_apart_change_no_lease_no_timer_and_no_retry(
    shifted: dict[str, dict[str, str]],
    login: Login,
    cluster: Cluster,
    processes: Processes,
    ledger: SandboxLedger,
) -> None:
    # Some providers' answers are errors, so that back-off is counted too.
    ledger.fault_rates({"429": 0.3}, seed=1)
    workers = [cluster.start(login.url, "--slots", "4", env=env) for env in shifted.values()]
    skews = [skew_of(child) for child in workers]
    assert skews[0] > timedelta(minutes=9)
    assert skews[1] < -timedelta(minutes=9)
    processes.wait_until(lambda: Worker.objects.count() == 2, 30, "both workers are there")
    ids = begin(16, seconds=SLEEP_S)
    processes.wait_until(lambda: left() == 0, 60, "all runs complete")
    while Attempt.objects.values("worker_id").distinct().count() < 2 and len(ids) < 200:
        ids += begin(16, seconds=SLEEP_S)  # the faster one took them all
        processes.wait_until(lambda: left() == 0, 60, "all runs complete")
    assert_nothing_lost_or_repeated(ids, ledger)
    assert nobody_was_taken_for_dead()
    assert not Attempt.objects.filter(outcome__in=["timed_out", "fenced"]).exists()
    assert Worker.objects.filter(closed_at=None).count() == 2
    assert Attempt.objects.values("worker_id").distinct().count() == 2
    slept = Operation.objects.filter(kind="timer").annotate(took=F("finished_at") - F("started_at"))
    assert slept.count() == len(ids)
    for operation in slept:
        assert timedelta(seconds=SLEEP_S) <= operation.took < timedelta(seconds=SLEEP_S + 20)
    run = Run.objects.filter(pk__in=ids).earliest("created_at")
    for attempt in Attempt.objects.all():
        # Not one recorded moment comes from the clock of a worker.
        assert run.created_at <= attempt.started_at <= attempt.ended_at
        assert attempt.ended_at - run.created_at < timedelta(minutes=2)


def skew_of(child: Child) -> timedelta:
    """How far the clock of a cluster's log lines is ahead of this one."""

    def written() -> str | None:
        stamps = [line.split()[0] for line in child.log_path.read_text().splitlines() if line[:2] == "20"]
        return stamps[-1] if stamps else None

    stamp = child.wait_until(written, 20, f"{child.name} writes a line")
    assert stamp is not None
    return datetime.fromisoformat(stamp) - datetime.now(UTC)


@pytest.mark.django_db(transaction=False)
def test_a_moment_to_try_again_is_reckoned_by_the_clock_that_names_it() -> None:
    headers = {"Date": "Wed, 21 Oct 2015 07:28:00 GMT", "Retry-After": "Wed, 21 Oct 2015 07:28:30 GMT"}
    request = httpx.Request("POST", "http://provider.example")
    answer = httpx.Response(429, headers=headers, request=request)
    found = classify(httpx.HTTPStatusError("busy", request=request, response=answer), effect=True)
    assert found.retry_after == 30
