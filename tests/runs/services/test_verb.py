"""What all verbs share."""

import threading

import pytest
from django.db import OperationalError, transaction

from runs import lifecycle
from runs.services.verb import verb
from tests import factories
from tests.races import Caller, wait_until_blocked


@pytest.mark.django_db(transaction=True)
def test_a_verb_that_a_deadlock_ended_is_run_again_as_a_whole():
    first, second = factories.run(), factories.run()
    holds_first, held_second, tries = threading.Event(), threading.Event(), []

    @verb
    def both() -> str:
        tries.append(1)
        lifecycle.lock_run(first.pk)
        holds_first.set()
        assert held_second.wait(10)
        lifecycle.lock_run(second.pk)
        return "done"

    caller = Caller(both)
    assert holds_first.wait(10)
    with transaction.atomic():
        lifecycle.lock_run(second.pk)
        held_second.set()
        wait_until_blocked(1)
        # The other session has waited longer, so that PostgreSQL ends it and not this one.
        lifecycle.lock_run(first.pk)
    assert caller.join().error is None
    assert (caller.result, len(tries)) == ("done", 2)


@pytest.mark.django_db(transaction=True)
def test_other_database_errors_are_not_repeated():
    tries = []

    @verb
    def act() -> None:
        tries.append(1)
        raise OperationalError("the connection is closed")

    with pytest.raises(OperationalError):
        act()
    assert len(tries) == 1
