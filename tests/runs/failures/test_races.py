"""People and failing runs that meet at one group, in sessions of their own."""

import threading

import pytest
from django.db import connection, transaction

from runs.errors import Stale
from runs.models import AuditEvent, FailureGroup, FailureTally
from runs.services import failures as verbs
from tests import factories
from tests.races import Caller, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)


def test_of_two_people_who_change_a_state_from_the_same_page_one_is_told():
    group = FailureGroup.objects.get(pk=factories.fingerprint(factories.failed()))
    ada, sam = factories.support("ada"), factories.support("sam")
    with transaction.atomic():
        FailureGroup.objects.select_for_update().get(pk=group.pk)
        first = Caller(lambda: verbs.acknowledge_failure(ada, group.pk, reason="mine", seen_revision=0))
        wait_until_blocked(1)
        second = Caller(lambda: verbs.handle_failure(sam, group.pk, reason="over", seen_revision=0))
        wait_until_blocked(2)
    assert first.join().error is None
    assert isinstance(second.join().error, Stale)
    group.refresh_from_db()
    assert (group.state, group.changed_by) == ("acknowledged", "ada")
    assert AuditEvent.objects.filter(target=group.target).count() == 1


def test_a_failure_that_was_on_its_way_when_a_person_said_handled_opens_the_group():
    """Its transaction began first and commits last: without the lock the group would stay handled with a new failure in it."""
    group = FailureGroup.objects.get(pk=factories.fingerprint(factories.failed()))
    sam, told = factories.support("sam"), threading.Event()

    def fail() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT agentops_now()")  # its moment is before the person's
            told.wait(20)
            factories.failed()

    failing = Caller(fail)
    with transaction.atomic():
        verbs.handle_failure(sam, group.pk, reason="over")
        told.set()
        wait_until_blocked(1)
    failing.join()
    assert failing.error is None
    group.refresh_from_db()
    assert group.state == "open"


def test_a_person_waits_for_a_failure_that_is_being_written():
    group = FailureGroup.objects.get(pk=factories.fingerprint(factories.failed()))
    sam = factories.support("sam")
    with transaction.atomic():
        factories.failed()
        change = Caller(lambda: verbs.handle_failure(sam, group.pk, reason="over"))
        wait_until_blocked(1)
    assert change.join().error is None
    group.refresh_from_db()
    assert group.state == "handled"


def test_failures_of_one_group_at_one_moment_are_all_counted():
    number, begin = 6, threading.Barrier(6)

    def fail() -> None:
        begin.wait(20)
        factories.failed()

    callers = [Caller(fail) for _ in range(number)]
    assert [caller.join().error for caller in callers] == [None] * number
    assert sum(FailureTally.objects.values_list("failures", flat=True)) == number
    assert FailureGroup.objects.count() == 1


def test_two_failures_that_open_a_handled_group_write_one_event():
    group = FailureGroup.objects.get(pk=factories.fingerprint(factories.failed()))
    verbs.handle_failure(factories.support(), group.pk, reason="over")
    with transaction.atomic():
        FailureGroup.objects.select_for_update().get(pk=group.pk)
        callers = []
        for number in (1, 2):
            callers.append(Caller(factories.failed))
            wait_until_blocked(number)
    assert [caller.join().error for caller in callers] == [None, None]
    assert AuditEvent.objects.filter(kind="failure_reopened").count() == 1
