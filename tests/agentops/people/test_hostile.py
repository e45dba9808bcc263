"""Names and reasons that would deceive are shown as what they are, on every page of people."""

import pytest

from tests.runs.views.people import client
from tests.security.hostile import HOSTILE, harmless
from tests.security.world import PLACES, world

pytestmark = pytest.mark.django_db


def test_hostile_names_are_harmless_on_every_page():
    made, browser = world(" ".join(HOSTILE)), client("admins")
    for name in PLACES:
        if name.startswith("people:"):
            response = browser.get(made.url(name))
            assert response.status_code == 200, name
            assert harmless(response.content.decode(), typed=False), name
