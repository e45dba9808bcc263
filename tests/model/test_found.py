"""What random interleavings found, each with a name."""

from datetime import timedelta

import pytest

from runs import doctor
from runs.services import force_resume
from tests import factories
from tests.model.stage import Stage
from tests.model.test_machine import ALWAYS, examined
from tests.model.test_rules import again, begin, claimed

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
