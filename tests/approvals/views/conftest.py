"""People in front of a browser."""

from typing import cast

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from tests import factories
from tests.people import SignIn, sign_in

__all__ = ["SignIn", "sign_in"]


@pytest.fixture
def olga(sign_in: SignIn) -> Client:
    """An operator."""
    return sign_in(factories.operator("olga"))


@pytest.fixture
def blindfolded(sign_in: SignIn) -> Client:
    """Somebody who may decide, and sees no payload."""
    actor = factories.operator("blind")
    group = cast(User, actor.user).groups.get()
    group.permissions.remove(Permission.objects.get(codename="view_payload"))
    return sign_in(actor)
