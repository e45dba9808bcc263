"""People who use the console."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

PASSWORD = "brass-lamp-without-plug"


@pytest.fixture
def mara(db: None) -> User:
    """A person with every permission."""
    return User.objects.create_superuser(
        "mara.okafor", password=PASSWORD, first_name="Mara", last_name="Okafor"
    )


@pytest.fixture
def nobody(db: None) -> User:
    """A person who is in no group."""
    return User.objects.create_user("k.ito", password=PASSWORD)


@pytest.fixture
def signed_in(mara: User) -> Client:
    client = Client()
    client.force_login(mara)
    return client
