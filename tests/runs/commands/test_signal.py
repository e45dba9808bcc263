"""`manage.py signal`."""

import io

import pytest
from django.core.management import CommandError, call_command

from runs.models import Signal
from runs.models.operation import OpStatus
from runs.models.run import new_id
from tests import factories

pytestmark = pytest.mark.django_db


def signal(*arguments) -> str:
    out = io.StringIO()
    call_command("signal", "paid", *map(str, arguments), stdout=out)
    return out.getvalue()


def test_a_signal_reaches_the_run_that_waits_for_it():
    wait = factories.signal_wait()
    out = signal("--run", wait.run_id, "--data", '{"amount": 3}')
    wait.refresh_from_db()
    assert (wait.status, wait.result) == (OpStatus.DONE, {"amount": 3})
    assert "delivered" in out


def test_the_same_id_again_counts_once():
    wait = factories.signal_wait(correlation="tx-1")
    signal("--correlation", "tx-1", "--id", "7")
    assert "received before" in signal("--correlation", "tx-1", "--id", "7")
    assert Signal.objects.get().consumed_by == wait.pk


def test_the_same_id_with_another_payload_is_told_to_change_nothing():
    factories.signal_wait(correlation="tx-1")
    signal("--correlation", "tx-1", "--id", "7", "--data", '{"amount": 3}')
    assert "this one changes nothing" in signal(
        "--correlation", "tx-1", "--id", "7", "--data", '{"amount": 4}'
    )
    assert Signal.objects.get().payload == {"amount": 3}


def test_mistakes_are_one_sentence():
    with pytest.raises(CommandError, match="no run"):
        signal("--run", new_id())
    with pytest.raises(CommandError, match="not valid JSON"):
        signal("--correlation", "x", "--data", "{")
    factories.operator("olga")
    with pytest.raises(CommandError, match="permission"):
        signal("--correlation", "x", "--as", "olga")
