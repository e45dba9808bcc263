"""People in front of a browser."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from runs.lifecycle import Actor
from tests import factories

type SignIn = Callable[[Actor], Client]


@pytest.fixture
def sign_in(db: None) -> SignIn:
    def signed_in(actor: Actor) -> Client:
        assert actor.user is not None
        client = Client()
        client.force_login(actor.user)
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
    assert actor.user is not None
    group = actor.user.groups.get()  # type: ignore[attr-defined]
    group.permissions.remove(Permission.objects.get(codename="view_payload"))
    return sign_in(actor)
