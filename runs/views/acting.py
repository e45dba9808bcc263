"""Who acts through a page."""

from typing import cast

from django.contrib.auth.models import User
from django.http import HttpRequest

from runs.lifecycle import Actor


def actor(request: HttpRequest) -> Actor:
    """The person who is signed in; pages without a sign-in do not come here."""
    return Actor.of(cast(User, request.user))
