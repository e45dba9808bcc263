"""Adding a group."""

import pytest
from django.contrib.auth.models import Group

from agentops.people import services
from runs.errors import Invalid, NotAllowed
from runs.models import AuditEvent
from tests import factories

pytestmark = pytest.mark.django_db


def test_a_group_is_there_and_holds_nothing_and_the_audit_tells():
    made = services.add_group(factories.admin("ada"), " parcels ", reason="new team")
    assert (made.name, made.permissions.count()) == ("parcels", 0)
    event = AuditEvent.objects.get()
    assert (event.kind, event.target, event.actor) == ("group_added", "group parcels", "ada")


@pytest.mark.parametrize("name", ["", "  ", "g" * 151, "a\x00b", "a\u202eb", "Operators"])
def test_what_is_no_name_or_taken_is_refused(name: str):
    before = Group.objects.count()
    with pytest.raises(Invalid):
        services.add_group(factories.admin(), name, reason="x")
    assert Group.objects.count() == before


def test_whoever_may_not_manage_people_adds_none():
    with pytest.raises(NotAllowed):
        services.add_group(factories.support(), "parcels", reason="x")
