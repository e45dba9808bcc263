"""Telling whether a process of this machine has ended, and what that proves about a worker."""

import os
import subprocess
import sys

import pytest

from runs.engine import leases, machine
from tests import factories

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def ended() -> str:
    """A process that was here, was killed, and is only a zombie at first."""
    with subprocess.Popen(["sleep", "60"]) as process:
        identity = machine.identity(process.pid)
        assert not machine.has_ended(identity)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert machine.has_ended(identity)
    return identity


def test_a_living_process_has_not_ended():
    assert not machine.has_ended(machine.identity(os.getpid()))


def test_a_killed_process_has_ended(ended: str):
    assert machine.has_ended(ended)


def test_a_later_process_with_the_same_number_is_another_one():
    place, _, started = machine.identity(os.getpid()).rpartition("/")
    assert machine.has_ended(f"{place}/{int(started) - 1}")


@pytest.mark.parametrize("process", ["", "other-boot/pid:[1]/1/5", f"{'x' * 36}/pid:[4026531836]/1/5"])
def test_nothing_is_known_about_a_process_elsewhere(process: str):
    assert not machine.has_ended(process)


@pytest.mark.django_db
def test_a_closed_worker_whose_process_is_gone_is_reaped_and_others_are_not(ended: str):
    gone = factories.worker(process=ended)
    alive = factories.worker(process=machine.identity(os.getpid()))
    elsewhere = factories.worker(process="")
    for worker in (gone, alive, elsewhere):
        leases.close(worker.pk)
    assert leases.note_ended() == 1
    for worker in (gone, alive, elsewhere):
        worker.refresh_from_db()
    assert (gone.reaped_at is not None, alive.reaped_at, elsewhere.reaped_at) == (True, None, None)


@pytest.mark.django_db
def test_a_worker_whose_lease_is_good_is_left_to_its_sentinel(ended: str):
    factories.worker(process=ended)
    assert leases.note_ended() == 0
