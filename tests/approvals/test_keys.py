"""An approval holds over a change of the secret key, and over a journey through the database."""

from typing import Any

import pytest
from pytest_django import Settings

from approvals.models import Approval
from approvals.services import decide
from approvals.waits import ApprovalWait
from tests import factories

pytestmark = pytest.mark.django_db


def approved(arguments: Any = None) -> Approval:
    approval = factories.approval(arguments=arguments)
    decide(factories.operator(), approval.pk, version=1, digest=approval.digest, verdict="approve")
    return approval


def test_an_approval_of_before_a_change_of_the_key_is_still_one(settings: Settings):
    approval = approved()
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "another key " * 5
    assert ApprovalWait().confirm(approval.operation, 1)


def test_without_the_earlier_key_it_is_none(settings: Settings):
    approval = approved()
    settings.SECRET_KEY = "another key " * 5
    assert not ApprovalWait().confirm(approval.operation, 1)


@pytest.mark.parametrize("number", [1e16, 1.5e300, -0.0, 5e-324, 2**70])
def test_a_number_that_the_database_would_write_otherwise_is_still_what_was_approved(number: float):
    assert ApprovalWait().confirm(approved({"amount": number}).operation, 1)
