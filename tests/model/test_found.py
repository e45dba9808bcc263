"""What random interleavings found, each with a name."""

from datetime import timedelta

import pytest

from runs import doctor
from runs.services import force_resume
from tests import factories
from tests.model.stage import Stage
from tests.model.test_machine import ALWAYS, examined
from tests.model.test_rules import again, answered_behind_a_flying_send, begin, claimed, stop, the_effect

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_run_that_is_forced_on_after_its_time_limit_is_watched(stage: Stage) -> None:
    """Doctor took its wake time, which is now, for one that comes too late."""
    run, worker = begin(stage, short=False, wait="timer"), stage.worker()
    claimed(worker).finish()
    stage.pass_time(timedelta(hours=2))
    force_resume(factories.support(), run.pk, reason="go on")
    assert doctor.unwatched_time_limit in ALWAYS
    assert examined(ALWAYS) == []
    claimed(worker).finish()
    assert again(run).status == "completed"


def test_a_cancel_asks_about_an_earlier_send_although_the_last_one_was_refused(stage: Stage) -> None:
    """That the second send certainly did nothing says nothing about the first: the run was cancelled, and its effect was done."""
    run, other = answered_behind_a_flying_send(stage, "refused")
    assert (again(run).status, the_effect(run).earlier_send_open) == ("retrying", True)
    stage.world.land(stage.world.net[0])
    stop(run)
    claimed(other).finish()
    assert (again(run).status, again(run).attention_kind) == ("attention", "in_doubt")


def test_what_was_refused_behind_an_earlier_send_is_sent_again_under_its_key(stage: Stage) -> None:
    run, other = answered_behind_a_flying_send(stage, "refused")
    stage.world.land(stage.world.net[0])
    stage.pass_time(timedelta(minutes=2))
    claimed(other).finish()
    assert again(run).status == "completed"
    assert {request.key for request in stage.world.net} == {str(the_effect(run).provider_key)}
    assert (stage.world.ledger.total(), the_effect(run).tries) == (1, 2)
