"""People in front of a browser; fixtures for the tests of pages."""

from collections.abc import Callable
from typing import cast

import pytest
from django.contrib.auth.models import User
from django.test import Client

from runs.lifecycle import Actor

type SignIn = Callable[[Actor], Client]


@pytest.fixture
def sign_in(db: None) -> SignIn:
    def signed_in(actor: Actor) -> Client:
        client = Client()
        client.force_login(cast(User, actor.user))
        return client

    return signed_in
