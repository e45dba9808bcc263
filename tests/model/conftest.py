"""A stage with its people."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import TransactionTestCase
from pytest_django import DjangoDbBlocker

from runs.engine import doubt
from tests.model.stage import Stage, staged


@pytest.fixture(scope="module")
def committed(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The database with what tests commit, put back once after the module: each test has a queue of its own.

    Putting it back after each of them would take longer than the tests.
    """
    restore: Any = TransactionTestCase._fixture_teardown  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda test_case: None)
        yield
    with django_db_blocker.unblock():
        restore(None)


@pytest.fixture
def stage(committed: None, transactional_db: None, settings: Any) -> Iterator[Stage]:
    """A stage on which nothing happens twice, whatever the test does there."""
    # The pause after a restart of PostgreSQL: its server has been up for longer.
    settings.AGENTOPS_LEASE_SECONDS = 0.01
    with staged() as made:
        yield made
        assert [thing for thing, n in made.world.ledger.items() if n > 1] == []


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """After how many looks at an effect in doubt a person is asked, at least."""
    return lambda most: monkeypatch.setattr(doubt, "LOOKS", most)
