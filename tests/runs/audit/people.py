"""Who reads the audit in these tests, what they see, and time that passes."""

import re
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from runs.models import Clock, Grant
from tests import factories


def passes(minutes: float) -> None:
    """Let business time go on."""
    shift = Clock.objects.filter(pk=1).values_list("shift", flat=True).first() or timedelta()
    Clock.objects.update_or_create(id=1, defaults={"shift": shift + timedelta(minutes=minutes)})


def text(response: Any) -> str:
    """What a page says, without markup."""
    return _bare(response.content.decode())


def entries(console: Client, **query: Any) -> str:
    """The entries of the list, as text."""
    response = console.get(reverse("audit:list"), query)
    assert response.status_code == 200
    return " ".join(
        _bare(one) for one in re.findall(r'<ol class="acts">.*?</ol>', response.content.decode(), re.S)
    )


def _bare(markup: str) -> str:
    spaced = re.sub(r"<small>|</(p|li|h1|h2|dt|dd|span)>", " ", markup)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", spaced))


def auditor(*grants: tuple[str, str, str], also: tuple[str, ...] = ()) -> User:
    """Somebody who may read the audit, and sees the runs of these grants alone."""
    made = factories.user()
    made.user_permissions.set(Permission.objects.filter(codename__in=["view_auditevent", *also]))
    for capability, scope, name in grants:
        Grant.objects.create(user=made, capability=capability, scope=scope, name=name, granted_by="ada")
    return User.objects.get(pk=made.pk)


def browser(user: User) -> Client:
    made = Client()
    made.force_login(user)
    return made
