"""People in front of a browser."""

import pytest
from django.test import Client

from tests import factories
from tests.people import SignIn, sign_in

__all__ = ["SignIn", "sign_in"]


@pytest.fixture
def ada(sign_in: SignIn) -> Client:
    """An admin."""
    return sign_in(factories.admin("ada"))
