"""manage.py fingerprint."""

from io import StringIO

import pytest
from django.core.management import call_command

from runs.models import Run
from runs.states import Status
from tests import factories

pytestmark = pytest.mark.django_db


def test_what_failed_before_is_sorted_in_and_a_second_time_nothing_is_left():
    old = [factories.run(Status.FAILED), factories.run(Status.ATTENTION)]
    told = StringIO()
    call_command("fingerprint", stdout=told)
    call_command("fingerprint", stdout=told)
    assert told.getvalue().splitlines() == [
        "2 runs are sorted into failure groups.",
        "0 runs are sorted into failure groups.",
    ]
    assert not Run.objects.filter(pk__in=[run.pk for run in old], fingerprint=None).exists()
