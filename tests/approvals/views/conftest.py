"""People in front of a browser."""

from collections.abc import Callable
from typing import cast

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from runs.lifecycle import Actor
from tests import factories

type SignIn = Callable[[Actor], Client]


@pytest.fixture
def sign_in(db: None) -> SignIn:
    def signed_in(actor: Actor) -> Client:
        client = Client()
        client.force_login(cast(User, actor.user))
        return client

    return signed_in


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
