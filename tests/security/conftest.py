"""A browser in which somebody who may do everything is signed in."""

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from tests.security.world import World, world

PASSWORD = "brass-lamp-without-plug"


@pytest.fixture
def everything(db: None) -> World:
    return world()


@pytest.fixture
def mara(db: None) -> User:
    """A person with every permission and in every group."""
    made = User.objects.create_superuser("mara.okafor", password=PASSWORD)
    made.groups.set(Group.objects.all())
    return made


@pytest.fixture
def console(mara: User) -> Client:
    client = Client()
    client.force_login(mara)
    return client
