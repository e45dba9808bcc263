"""Browsers in which somebody is signed in."""

from django.contrib.auth.models import Permission
from django.test import Client

from tests import factories


def client(*groups: str) -> Client:
    """A browser with somebody of these groups signed in."""
    made = Client()
    made.force_login(factories.user("", *groups))
    return made


def client_with(*permissions: str) -> Client:
    """A browser with somebody signed in who has these permissions of `runs` and no others."""
    person = factories.user()
    chosen = Permission.objects.filter(content_type__app_label="runs", codename__in=permissions)
    assert chosen.count() == len(permissions)
    person.user_permissions.set(chosen)
    made = Client()
    made.force_login(person)
    return made
