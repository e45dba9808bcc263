"""The stage on which pairs race."""

from collections.abc import Iterator

import pytest
from django.conf import settings
from django.test import TransactionTestCase
from pytest_django import DjangoDbBlocker

from tests.harness.sessions import pooled
from tests.races.stage import Stage, watched


@pytest.fixture(scope="module")
def stage(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Stage]:
    """One stage on one database for all pairs: each empties it itself, which takes less than making it anew."""
    as_found = TransactionTestCase._fixture_teardown  # type: ignore[attr-defined]
    with django_db_blocker.unblock(), pytest.MonkeyPatch.context() as patch:
        # The test server has been up for so long: otherwise every worker would get a first lease to beat.
        patch.setattr(settings, "AGENTOPS_LEASE_SECONDS", 0.5)
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda test_case: None)
        with pooled():
            made = Stage()
            with watched(made, patch):
                yield made
            made.end()
        as_found(TransactionTestCase())
