"""Retention takes a family from the top, and none of it while one of its children works."""

import pytest

from runs.models import Run
from runs.services.retention import RETENTION, Rule, delete_finished
from runs.states import Status
from tests.runs.engine.family import as_running, ended, family, parked, silently_ended
from tests.runs.services.test_retention import years_pass

pytestmark = pytest.mark.django_db

PARENTS, CHILDREN = Rule("parcel", 90, "setting"), Rule("f_child", 90, "setting")


def test_a_child_is_kept_as_long_as_its_parent() -> None:
    run, _, made = parked(2)
    for one in made:
        silently_ended(one)
    years_pass()
    assert delete_finished(RETENTION, CHILDREN).runs == 0
    as_running(run)
    ended(run, Status.FAILED)
    years_pass(300)
    # It may be retried, and then reads what they came to.
    assert delete_finished(RETENTION, CHILDREN).runs == 0
    assert delete_finished(RETENTION, PARENTS).runs == 1
    assert delete_finished(RETENTION, CHILDREN).runs == 2
    assert not Run.objects.exists()


def test_a_parent_is_kept_while_a_child_works() -> None:
    run, _, (first, second) = parked(2)
    silently_ended(first)
    as_running(run)
    ended(run, Status.FAILED)
    years_pass()
    assert delete_finished(RETENTION, PARENTS).runs == 0
    silently_ended(second)
    assert delete_finished(RETENTION, PARENTS).runs == 1
    assert len(family(run)) == 2
